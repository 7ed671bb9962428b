"""Environments with every kind of action, and random batches for them, for tests of networks and algorithms."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zerobeast.common.settings import RunConfig, find_usable
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part, Space, iterate_arrays, nest_values
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.actions import OneHots
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Algorithm
from zerobeast.rl.replay.items import Transitions

ALGORITHMS = {spec.name: spec.settings for spec in find_usable()}

T, B, N = 6, 4, 7
ONES = torch.ones(N)
MULTI = ArraySpace("multi_discrete", shape=(2,), sizes=(3, 4))
GRID = ArraySpace("multi_discrete", shape=(2, 2), sizes=(2, 3, 1, 5))
BOX = ArraySpace.box((2,), low=(-2.0, 0.0), high=(2.0, 10.0))
ENDLESS = ArraySpace.box((), low=(-float("inf"),), high=(float("inf"),))
SPACES = {"discrete": ArraySpace.discrete(3), "multi": MULTI, "grid": GRID, "box": BOX, "endless box": ENDLESS}

VECTORS = EnvSpec("Vectors-v0", ArraySpace.box((5,)), ArraySpace.discrete(3))
MINATAR = EnvSpec("MinAtar/Breakout", ArraySpace.box((10, 10, 4), "|b1"), ArraySpace.discrete(6))
REACH = EnvSpec("Reach-v0", ArraySpace.box((5,)), BOX)
PANEL = EnvSpec("Panel-v0", ArraySpace.box((5,)), MULTI)
HYBRID = CompositeSpace("dict", (Part("aim", BOX), Part("go", CompositeSpace("tuple", (Part("0", MULTI),)))))
NESTED = EnvSpec(
    "Nested-v0",
    CompositeSpace("dict", (Part("camera", ArraySpace.box((6, 8), "<f4")), Part("word", ArraySpace.discrete(4)))),
    HYBRID,
    action_mask=True,
)


#: settings, as far as an algorithm has them, with which few small batches are enough
SMALL = {"epochs": 2, "minibatches": 4, "batch_size": 8, "replay_size": 200, "replay_min_size": 10, "random_steps": 0}


def algorithm_of(
    name: str,
    env: EnvSpec = VECTORS,
    *,
    net: dict[str, Any] | None = None,
    sync: str = "always",
    total_steps: int = 1000,
    root: Path | None = None,
    **settings: Any,
) -> Any:
    """An algorithm with its defaults, but for SMALL and `settings`; batches have B rows, and an LSTM 8 units.

    It computes in float32, whatever is fastest here, because results are compared with ones written out by hand. Only
    one that learns from a replay needs a folder.
    """
    small = {field: value for field, value in SMALL.items() if field in ALGORITHMS[name].model_fields}
    tree = {
        "algo": name,
        "root": str(root or "runs"),
        "name": "run",
        "total_steps": total_steps,
        "net": {"core_width": 8, **(net or {})},
        "learner": {"precision": "float32", "batch_size": B, "device": "cpu"},
        "sync": {"rule": sync},
        name: {**small, **settings},
    }
    return make_algorithm(RunConfig.model_validate(tree), env)


def learner(algorithm: Any) -> tuple[Any, Any]:
    """A new network of an algorithm, and what trains it."""
    net = algorithm.network()
    return net, algorithm.learning(net)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def values_of(space: Space, *lead: int, g: torch.Generator | None = None) -> Any:
    """Random actions or observations [*lead, *shape], or a tree of them."""
    g = g or generator()

    def drawn(array: ArraySpace) -> Tensor:
        if array.kind == "box":
            numbers = torch.randn(*lead, *array.shape, generator=g)
            return numbers > 0 if array.dtype == "|b1" else numbers
        sizes = torch.tensor(array.choices).view(array.shape)
        return (torch.rand(*lead, *array.shape, generator=g) * sizes).long()

    return nest_values(space, map(drawn, space.arrays))


def masks_for(env: EnvSpec, taken: Any, seed: int = 3) -> Tensor | None:
    """Random masks [*lead, choices] that allow the actions taken; None if the environment has no masks."""
    if not env.action_mask:
        return None
    parts = [OneHots(array.choices)(chosen) for array, chosen in iterate_arrays(env.action, taken) if array.choices]
    masks = torch.cat(parts, -1)
    return (masks > 0) | (torch.rand(masks.shape, generator=generator(seed)) < 0.5)


def make_batch(algorithm: Algorithm, *, resets: float = 0.0, seed: int = 1, steps: int = T, rows: int = B) -> Batch:
    """Random steps; each first step within the unroll follows one that terminated or was truncated."""
    env, policy, g = algorithm.env, algorithm.policy, generator(seed)
    obs = values_of(env.obs, steps + 1, rows, g=g)
    first = torch.rand(steps + 1, rows, generator=g) < resets
    first[1:] &= ~first[:-1]
    ends = torch.zeros_like(first)
    ends[:-1] = first[1:]
    terminated = ends & (torch.rand(steps + 1, rows, generator=g) < 0.5)
    taken = values_of(env.action, steps + 1, rows, g=generator(seed))
    return Batch(
        obs=obs,
        first=first,
        reward=torch.randn(steps + 1, rows, generator=g).masked_fill(first, 0.0),
        terminated=terminated,
        truncated=ends & ~terminated,
        last_action=taken,
        extras={name: torch.randn(steps, rows, *shape, generator=g) for name, _, shape in policy.extras},
        policy_version=torch.zeros(steps, rows, dtype=torch.int64),
        core_state=torch.randn(rows, policy.core_size, generator=g),
        mask=~first[1:],
        task=torch.zeros(rows, dtype=torch.int64),
        origin=torch.arange(5 * rows).view(rows, 5),
        action_mask=masks_for(env, tree_map(lambda entry: entry.roll(-1, 0), taken)),
    )


def transitions(seed: int = 1, env: EnvSpec = VECTORS, n: int = N) -> Transitions:
    """Random transitions, in which the actions taken are legal; every third terminated."""
    g = generator(seed)

    def seen() -> StepInput:
        taken, nothing = values_of(env.action, 1, n, g=g), torch.zeros(1, n)
        return StepInput(values_of(env.obs, 1, n, g=g), taken, nothing, nothing.bool(), masks_for(env, taken, seed))

    before, after, reward = seen(), seen(), 2 * torch.randn(n, generator=g)
    discount = torch.where(torch.arange(n) % 3 == 0, 0.0, 0.9)
    action = tree_map(lambda taken: taken[0], before.last_action)
    return Transitions(before, action, reward, discount, after, {}, {})


def unroll_net(net: PolicyAndValue, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and values of all T + 1 steps."""
    with torch.no_grad():
        (logits, values), _ = net(batch.inputs, batch.core_state)
    return logits, values


def with_logits(batch: Batch, logits: Tensor) -> Batch:
    """The same batch, as if a policy with these logits had acted in it."""
    return batch._replace(extras=batch.extras | {"logits": logits})


def on_policy(net: PolicyAndValue, batch: Batch) -> Batch:
    """The same batch, as if `net` had acted in it."""
    return with_logits(batch, unroll_net(net, batch)[0][:-1])


def weights(net: nn.Module) -> list[Tensor]:
    """A copy of all that a network learns: weights and statistics."""
    return [value.clone() for value in net.state_dict().values() if value.is_floating_point()]
