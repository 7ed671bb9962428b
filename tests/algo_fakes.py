"""Environments of every kind of action, and random batches of them, for tests of networks and algorithms."""

from typing import Any

import torch
from torch import Tensor, nn

from zerobeast.common.algos.factory import make_algorithm
from zerobeast.common.algos.protocol import Algorithm, Batch
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.nets.agent import AgentNet, StepInput
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

T, B = 6, 4
MULTI = ArraySpace("multi_discrete", shape=(2,), sizes=(3, 4))
GRID = ArraySpace("multi_discrete", shape=(2, 2), sizes=(2, 3, 1, 5))
BOX = ArraySpace.box((2,), low=(-2.0, 0.0), high=(2.0, 10.0))
ENDLESS = ArraySpace.box((), low=(-float("inf"),), high=(float("inf"),))
SPACES = {"discrete": ArraySpace.discrete(3), "multi": MULTI, "grid": GRID, "box": BOX, "endless box": ENDLESS}

VECTORS = EnvSpec("Vectors-v0", ArraySpace.box((5,)), ArraySpace.discrete(3))
MINATAR = EnvSpec("MinAtar/Breakout", ArraySpace.box((10, 10, 4), "|b1"), ArraySpace.discrete(6))
REACH = EnvSpec("Reach-v0", ArraySpace.box((5,)), BOX)
PANEL = EnvSpec("Panel-v0", ArraySpace.box((5,)), MULTI)


def algorithm_of(
    name: str, env: EnvSpec = VECTORS, *, net: dict[str, Any] | None = None, total_steps: int = 1000, **settings: Any
) -> Any:
    """An algorithm under its defaults but for `settings`; batches of B rows; the LSTM, if any, has 8 units.

    In float32, whatever this machine is fastest with: what it computes is compared with what is written out by hand.
    """
    run = {"algo": name, "net": {"lstm_size": 8, **(net or {})}, name: settings, "total_steps": total_steps}
    return make_algorithm(RunConfig.model_validate({**run, "learner": {"precision": "float32", "batch_size": B}}), env)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def actions(space: ArraySpace, *lead: int, seed: int = 1) -> Tensor:
    """Random legal actions [*lead, *shape]."""
    g = generator(seed)
    if space.kind == "box":
        return torch.randn(*lead, *space.shape, generator=g)
    sizes = torch.tensor(space.sizes).view(space.shape)
    return (torch.rand(*lead, *space.shape, generator=g) * sizes).long()


def make_batch(algorithm: Algorithm, *, resets: float = 0.0, seed: int = 1, steps: int = T, rows: int = B) -> Batch:
    """Random steps; each beginning is the seam behind a step that terminated or was truncated."""
    env, policy, g = algorithm.env, algorithm.policy, generator(seed)
    obs = torch.randn(steps + 1, rows, *env.obs.shape, generator=g)
    first = torch.rand(steps + 1, rows, generator=g) < resets
    first[1:] &= ~first[:-1]
    ends = torch.zeros_like(first)
    ends[:-1] = first[1:]
    terminated = ends & (torch.rand(steps + 1, rows, generator=g) < 0.5)
    return Batch(
        obs=obs > 0 if env.obs.dtype == "|b1" else obs,
        first=first,
        reward=torch.randn(steps + 1, rows, generator=g).masked_fill(first, 0.0),
        terminated=terminated,
        truncated=ends & ~terminated,
        last_action=actions(env.action, steps + 1, rows, seed=seed),
        extras={name: torch.randn(steps, rows, *shape, generator=g) for name, _, shape in policy.extras},
        policy_version=torch.zeros(steps, rows, dtype=torch.int64),
        core_state=torch.randn(rows, policy.core_size, generator=g),
        mask=~first[1:],
        task=torch.zeros(rows, dtype=torch.int64),
        origin=torch.arange(5 * rows).view(rows, 5),
    )


def unrolled(net: AgentNet, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and values of all T + 1 steps."""
    inputs = StepInput(batch.obs, batch.last_action, batch.reward, batch.first)
    with torch.no_grad():
        (logits, values), _ = net(inputs, batch.core_state)
    return logits, values


def with_logits(batch: Batch, logits: Tensor) -> Batch:
    """The same batch, as if a policy with these logits had acted in it."""
    return batch._replace(extras=batch.extras | {"logits": logits})


def on_policy(net: AgentNet, batch: Batch) -> Batch:
    """The same batch, as if `net` had acted in it."""
    return with_logits(batch, unrolled(net, batch)[0][:-1])


def bandit(algorithm: Any, net: AgentNet, batch: Batch, right: Tensor, g: torch.Generator) -> Batch:
    """The same observations, each an episode of one pull by `net`, which pays 1 for the right action."""
    alone = torch.ones_like(batch.first)  # so that the network sees no last action and no reward
    batch = batch._replace(first=alone, mask=alone[1:])
    logits = unrolled(net, batch)[0][:-1]
    pulls = algorithm.family.of(logits).sample(g)
    nothing = torch.zeros_like(pulls[:1])
    rewards = torch.cat([nothing, pulls == right]).float()
    return with_logits(batch, logits)._replace(last_action=torch.cat([nothing, pulls]), reward=rewards)


def ended(algorithm: Algorithm, *, terminated: bool, truncated: bool, at: int) -> Batch:
    """An unroll whose rows all end at transition `at`; obs[at + 1] is their final observation."""
    batch = make_batch(algorithm)
    flags = {name: torch.zeros(T + 1, B, dtype=torch.bool) for name in ("first", "terminated", "truncated")}
    flags["terminated"][at + 1] = terminated
    flags["truncated"][at + 1] = truncated
    if at + 2 <= T:
        flags["first"][at + 2] = True
        batch.reward[at + 2] = 0.0
    return batch._replace(**flags, mask=~flags["first"][1:])


def two_ends(algorithm: Algorithm, *, terminated: bool, truncated: bool, at: int) -> tuple[Batch, Batch]:
    """What `ended` makes, and the same with another final observation."""
    batch = ended(algorithm, terminated=terminated, truncated=truncated, at=at)
    other = batch._replace(obs=batch.obs.clone())
    other.obs[at + 1] += 1.0
    return batch, other


def same_where_valid(algorithm: Algorithm) -> tuple[Batch, Batch]:
    """Two batches that differ, but only in transitions that are void or beyond the budget."""
    batch = make_batch(algorithm)
    batch.mask[:, 1:] = False
    batch.mask[4:, 0] = False
    other = batch.copy()
    other.reward[5:] += 9.0
    other.extras["logits"][4:] = 7.0
    other.extras["logits"][:, 1:] *= 2.0
    return batch, other


def weights(net: nn.Module) -> list[Tensor]:
    """A copy of all that a network learns: weights and statistics."""
    return [value.clone() for value in net.state_dict().values() if value.is_floating_point()]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
