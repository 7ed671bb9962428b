"""A2C: its loss against returns worked out one by one, and against the algorithms that it is a special case of."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from tests.build.batches import MINATAR, PANEL, REACH, VECTORS, B, T, algorithm_of, make_batch, on_policy, unrolled
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.data.batch import Batch

PLAIN = {"discount": 0.9, "entropy_cost": 0.03, "baseline_cost": 0.25}
a2c = partial(algorithm_of, "a2c")


def lambda_return(batch: Batch, values: Tensor, t: int, b: int, gamma: float, decay: float) -> float:
    """(1 - lambda) sum of lambda^(n-1) G^(n), the remaining weight on the longest, without a recursion."""
    returns, total, weight = [], 0.0, 1.0
    for n in range(t, T):
        total += weight * float(batch.reward[n + 1, b])
        weight *= gamma
        if batch.terminated[n + 1, b]:
            returns.append(total)
            break
        returns.append(total + weight * float(values[n + 1, b]))
        if batch.truncated[n + 1, b]:
            break
    shares = [(1 - decay) * decay**n for n in range(len(returns) - 1)] + [decay ** (len(returns) - 1)]
    return sum(share * each for share, each in zip(shares, returns, strict=True))


def reference(algorithm: Any, net: Any, batch: Batch, decay: float) -> dict[str, float]:
    """The loss and its parts as means over transitions, one by one, with torch's distributions."""
    logits, values = (entry.double() for entry in unrolled(net, batch))
    terms = []
    for t in range(T):
        for b in range(B):
            if not batch.mask[t, b]:
                continue
            if algorithm.env.action.kind == "box":
                mean, log_std = logits[t, b].chunk(2)
                middle, half = torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0])
                policy: Any = Independent(Normal(middle + half * mean, half * log_std.exp()), 1)
            else:
                policy = Categorical(logits=logits[t, b])
            advantage = lambda_return(batch, values, t, b, PLAIN["discount"], decay) - values[t, b]
            pg = -policy.log_prob(batch.last_action[t + 1, b].double()) * advantage
            terms.append(torch.stack([pg, 0.5 * advantage**2, policy.entropy()]))
    pg, baseline, entropy = torch.stack(terms).mean(0).tolist()
    total = pg + PLAIN["baseline_cost"] * baseline - PLAIN["entropy_cost"] * entropy
    return {"pg_loss": pg, "baseline_loss": baseline, "entropy": entropy, "total": total}


@pytest.mark.parametrize("decay", [1.0, 0.8, 0.0])
@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize("env", [VECTORS, REACH], ids=["choices", "real actions"])
def test_the_loss_is_that_of_returns_worked_out_one_by_one(env: EnvSpec, *, use_lstm: bool, decay: float) -> None:
    algorithm = a2c(env, net={"use_lstm": use_lstm}, trace_decay=decay, **PLAIN)
    net = algorithm.network()
    batch = on_policy(net, make_batch(algorithm, resets=0.4))
    assert batch.truncated.any()
    assert batch.terminated.any()
    loss, metrics = algorithm.loss(net, batch)
    expected = reference(algorithm, net, batch, decay)
    assert {name: metrics[name].item() for name in expected} == pytest.approx(expected, rel=1e-5)
    assert metrics["total"].item() == loss.item()


@pytest.mark.parametrize("lagging", [False, True], ids=["on policy", "behind"])
@pytest.mark.parametrize("env", [VECTORS, MINATAR, PANEL, REACH], ids=lambda env: env.env_id)
def test_loss_and_gradients_equal_those_of_impala(env: EnvSpec, *, lagging: bool) -> None:
    settings = {**PLAIN, "trace_decay": 0.8, "reduction": "mean", "reward_clipping": "none"}
    one, two = a2c(env, **settings), algorithm_of("impala", env, **settings)
    net = one.network()
    batch = make_batch(one, resets=0.3)
    batch = batch if lagging else on_policy(net, batch)
    found = [each.loss(net, batch) for each in (one, two)]
    gradients = [torch.autograd.grad(loss, list(net.parameters())) for loss, _ in found]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    for name in ("total", "pg_loss", "baseline_loss", "entropy"):
        torch.testing.assert_close(found[0][1][name], found[1][1][name], rtol=1e-4, atol=1e-6)
