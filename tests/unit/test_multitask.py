"""One policy for several tasks: each has its own value, on a scale of its own, and no task moves another's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import VECTORS, B, T, generator, make_batch
from tests.build.errors import refuses
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.rl.algos.policy_gradient.policy_and_value import Answer, PolicyAndValue
from zerobeast.rl.algos.policy_gradient.vtrace_loss import loss
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets import PopArt, StepInput
from zerobeast.rl.ops.tree import tree_map
from zerobeast.services.broker.sessions import Sessions

TASKS, WIDTH = 3, 5
TASK = torch.tensor([2, 0, 2, 1])  #: task of each row of a batch


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_each_row_gets_the_value_of_its_task_and_the_policy_ignores_the_task(*, core: str) -> None:
    config = RunConfig.model_validate({"net": {"core_width": 8, "core": core}})
    net = PolicyAndValue(config.net, VECTORS)
    net.value = PopArt(net.value, TASKS)
    torch.nn.init.normal_(net.value.weight, generator=generator())
    nothing = torch.zeros(T, B)
    inputs = StepInput(torch.randn(T, B, 5), nothing.long(), nothing, nothing == 0)
    state = net.initial_state(B)
    (logits, values), _ = net(inputs, state, TASK)
    alone = [net(inputs, state, torch.full((B,), task))[0] for task in range(TASKS)]
    for row, task in enumerate(TASK):
        assert torch.equal(values[:, row], alone[task].value[:, row])
        assert not torch.isclose(values[:, row], alone[(task + 1) % TASKS].value[:, row]).any()
    assert all(torch.equal(logits, each.logits) for each in alone)
    assert torch.equal(net(inputs, state)[0].value, alone[0].value), "of the first by default"


class Heads(nn.Module):
    """Logits as parameters, and K values from fixed features, in double precision, with the interface of a network."""

    value_scale = PolicyAndValue.value_scale

    def __init__(self) -> None:
        super().__init__()
        g = generator(5)
        torch.manual_seed(1)
        self.logits = nn.Parameter(0.5 * torch.randn(T + 1, B, 3, generator=g, dtype=torch.float64))
        self.features = torch.randn(T + 1, B, WIDTH, generator=g, dtype=torch.float64)
        self.value = PopArt(nn.Linear(WIDTH, TASKS).double())
        self.value.mean.copy_(torch.tensor([3.0, -40.0, 2000.0]))
        self.value.scale.copy_(torch.tensor([0.5, 20.0, 700.0]))

    def forward(self, inputs: StepInput, core: Tensor, task: Tensor) -> tuple[Answer, Tensor]:
        steps = slice(T, None) if len(inputs.obs) == 1 else slice(len(inputs.obs))
        values = torch.stack([self.value(self.features[:, row])[:, int(k)] for row, k in enumerate(task)], 1)
        return Answer(self.logits[steps], values[steps]), core


def by_hand(config: Any, net: Heads, batch: Batch) -> Tensor:
    """IMPALA's loss with K heads, each in its own normalised units, computed one number at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for b, task in enumerate(TASK.tolist()):
        mean, scale = net.value.mean[task], net.value.scale[task]
        normalised = net.features[:, b] @ net.value.weight[task] + net.value.bias[task]
        value = (scale * normalised + mean).tolist()
        target = value[T]
        for t in reversed(range(T)):
            following, target = target, value[t]  # V-trace's target of the next step; of a void step, its value
            if not batch.mask[t, b]:
                continue
            taken = batch.last_action[t + 1, b]
            log_pi, log_mu = net.logits[t, b].log_softmax(0), batch.extras["logits"][t, b].log_softmax(0)
            ratio = (log_pi[taken] - log_mu[taken]).exp().item()
            gamma = 0.0 if batch.terminated[t + 1, b] else config.discount
            reward = float(batch.reward[t + 1, b])
            delta = reward + gamma * value[t + 1] - value[t]
            target = value[t] + min(1.0, ratio) * (delta + gamma * (following - value[t + 1]))
            advantage = min(1.0, ratio) * (reward + gamma * following - value[t])
            total = total - log_pi[taken] * advantage / scale
            total = total + config.baseline_cost * 0.5 * (normalised[t] - (target - mean) / scale) ** 2
            total = total + config.entropy_cost * (log_pi.exp() * log_pi).sum()
    return total


def test_the_gradient_is_that_of_k_heads_written_out_in_loops() -> None:
    run: dict[str, Any] = {"env": {"id": "One-v0,Two-v0,Three-v0"}, "net": {"core_width": 8}, "total_steps": 1000}
    run["impala"] = {"popart": True, "reward_clipping": "none", "discount": 0.75}
    algorithm: Any = make_algorithm(RunConfig.model_validate(run), VECTORS)
    config, net = algorithm.config.algorithm, Heads()
    batch = make_batch(algorithm, resets=0.2, seed=1)._replace(task=TASK)
    batch = batch._replace(reward=batch.reward * torch.tensor([1.0, 30.0, 1000.0])[TASK])
    batch = tree_map(lambda entry: entry.double() if entry.is_floating_point() else entry, batch)
    assert not batch.mask.all()
    total = loss(config, algorithm.family, net, batch, entropy_cost=config.entropy_cost)[0]  # type: ignore[arg-type]
    expected = by_hand(config, net, batch)
    torch.testing.assert_close(total, expected, rtol=1e-10, atol=0)
    parameters = [net.logits, net.value.weight, net.value.bias]
    found, wanted = (torch.autograd.grad(each, parameters) for each in (total, expected))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
        assert mine.any()


def test_the_broker_serves_all_environments_of_a_run_if_they_are_alike() -> None:
    config = RunConfig.model_validate({"env": {"id": "One-v0,Two-v0"}, "impala": {"popart": True}})
    sessions = Sessions(config, 1, device=torch.device("cpu"), dtype=torch.float32, seed=1)

    def greet(**changes: Any) -> Any:
        return sessions.agree({"num_envs": 1, "env": replace(VECTORS, **changes).to_wire()}, 0.0, settled=True)[0]

    assert greet(env_id="Two-v0") is greet(env_id="One-v0")
    for changes in ({"env_id": "One-v0", "obs": ArraySpace.box((6,))}, {"env_id": "Three-v0"}):
        with refuses(kind=RemoteProtocolError, reason="terms"):
            greet(**changes)
