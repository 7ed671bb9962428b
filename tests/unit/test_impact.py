"""IMPACT's loss against one written out in loops."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import B, T, algorithm_of, generator, make_batch, with_logits
from zerobeast.rl.algos.impact.algorithm import loss
from zerobeast.rl.algos.policy_gradient.policy_and_value import Answer
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.ops.tree import tree_map

impact = partial(algorithm_of, "impact")


class Table(nn.Module):
    """Logits and values of T + 1 steps as parameters, in double precision, behind the interface of a network."""

    def __init__(self, n_logits: int, seed: int = 5) -> None:
        super().__init__()
        g = generator(seed)
        self.logits = nn.Parameter(0.5 * torch.randn(T + 1, B, n_logits, generator=g, dtype=torch.float64))
        self.values = nn.Parameter(torch.randn(T + 1, B, generator=g, dtype=torch.float64))

    def forward(self, inputs: StepInput, core: Tensor, task: Tensor | None = None) -> tuple[Answer, Tensor]:
        steps = slice(T, None) if len(inputs.obs) == 1 else slice(len(inputs.obs))
        return Answer(self.logits[steps], self.values[steps]), core

    def value_scale(self, task: Tensor) -> Tensor:
        return torch.ones(B)


def doubled(algorithm: Any) -> Batch:
    """A batch in double precision, whose behaviour is not too far from the table."""
    batch = make_batch(algorithm, resets=0.3)
    batch = with_logits(batch, 0.5 * batch.extras["logits"])
    return Batch(*tree_map(lambda entry: entry.double() if entry.is_floating_point() else entry, batch))


def by_hand(config: Any, net: Table, batch: Batch, target_logits: Tensor, kl_cost: float) -> float:
    """The loss of discrete actions, one float after the other."""

    def log_probs(logits: Tensor) -> list[float]:
        most = max(logits.tolist())
        log_sum = most + math.log(sum(math.exp(logit - most) for logit in logits.tolist()))
        return [logit - log_sum for logit in logits.tolist()]

    total, count = 0.0, 0
    for b in range(B):
        value = net.values[:, b].tolist()
        correction = 0.0  # of the next step's value
        for t in reversed(range(T)):
            if not batch.mask[t, b]:
                correction = 0.0
                continue
            taken = int(batch.last_action[t + 1, b])
            pi, aim, mu = (log_probs(of[t, b]) for of in (net.logits, target_logits, batch.extras["logits"]))
            trust = math.exp(aim[taken] - mu[taken])
            gamma = 0.0 if batch.terminated[t + 1, b] else config.discount
            delta = float(batch.reward[t + 1, b]) + gamma * value[t + 1] - value[t]
            advantage = delta + gamma * config.trace_decay * correction
            correction = (
                min(config.rho_bar, trust) * delta + gamma * config.trace_decay * min(config.c_bar, trust) * correction
            )
            ratio = min(math.exp(mu[taken] - aim[taken]), config.rho) * math.exp(pi[taken] - mu[taken])
            kept = min(max(ratio, 1 - config.clip), 1 + config.clip)
            total -= min(ratio * advantage, kept * advantage)
            total += config.baseline_cost * 0.5 * correction**2
            total += config.entropy_cost * sum(math.exp(p) * p for p in pi)
            total += kl_cost * sum(math.exp(q) * (q - p) for p, q in zip(pi, aim, strict=True))
            count += 1
    return total / count


@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("trace_decay", [0.7, 1.0])
@pytest.mark.parametrize("kl_cost", [0.0, 0.4])
def test_the_loss_equals_one_written_out_in_loops(rho: float, trace_decay: float, kl_cost: float) -> None:
    algorithm = impact(rho=rho, trace_decay=trace_decay, clip=0.3, discount=0.75, rho_bar=1.2, c_bar=0.9)
    net, batch, target = Table(3), doubled(algorithm), Table(3, seed=9).logits.detach()[:-1]
    config = algorithm.config.algorithm
    total, metrics = loss(config, algorithm.family, net, batch, target, kl_cost=kl_cost)
    assert total.item() == pytest.approx(by_hand(config, net, batch, target, kl_cost), rel=1e-10)
    assert not batch.mask.all()
    assert 0 < metrics["clipped"] < 1
