"""One step of several environments, of which an algorithm is asked what to do: what the rules of acting check."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from zerobeast.common.settings import spec_of
from zerobeast.common.wire import ArraySpace, nest_values
from zerobeast.rl.data import Batch, Rollouts
from zerobeast.rl.nets import Network, StepInput
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.protocol import Act, Algorithm, Sampling
from zerobeast.services.actor.rollout import Rows
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import CPU, B, Subject, config_of, find_envs, mask_of, reference


class Scene:
    """Random inputs of B environments in the middle of their episodes, and the state that came with them."""

    def __init__(self, algorithm: Algorithm, net: Network, inputs: StepInput, core: Tensor) -> None:
        self.algorithm, self.env, self.net, self.inputs, self.core = algorithm, algorithm.env, net, inputs, core

    @classmethod
    def of(cls, algorithm: Algorithm) -> "Scene":
        """One for the environment of an algorithm, with a network whose weights were moved."""
        env, g = algorithm.env, torch.Generator().manual_seed(3)

        def draw_value(space: ArraySpace) -> Tensor:
            if space.choices:
                sizes = torch.tensor(space.choices).view(space.shape)
                return (torch.rand(1, B, *space.shape, generator=g) * sizes).long()
            return torch.randn(1, B, *space.shape, generator=g)

        obs, taken = (nest_values(space, map(draw_value, space.arrays)) for space in (env.obs, env.action))
        mask = torch.from_numpy(mask_of(env, torch.arange(B).numpy()))[None] if env.action_mask else None
        inputs = StepInput(obs, taken, torch.randn(1, B, generator=g), torch.zeros(1, B, dtype=torch.bool), mask)
        core = torch.randn(B, algorithm.policy.core_size, generator=g)
        return cls(algorithm, perturb(algorithm.network()), inputs, core)

    def act(self, seed: int = 1, *, greedy: bool = False) -> tuple[Act, Tensor]:
        """What the policy answers; it explores as at the start of a run."""
        sampling = Sampling(torch.arange(B)[-len(self.core) :], torch.Generator().manual_seed(seed), greedy)
        return self.algorithm.act(self.net, self.inputs, self.core, sampling)

    def only(self, row: int) -> "Scene":
        """One of the environments."""
        inputs = tree_map(lambda entry: entry[:, row : row + 1], self.inputs)
        return Scene(self.algorithm, self.net, inputs, self.core[row : row + 1])


def make_scenes(subject: Subject, settings: dict[str, Any]) -> Iterator[Scene]:
    """One for each environment that an algorithm takes, and with a core, if it may have one, for the plainest two."""
    envs = list(find_envs(subject).values())
    remembering = envs[:2] if spec_of(reference(subject)).settings.memory else []
    for env, core in (*((env, "none") for env in envs), *((env, "lstm") for env in remembering)):
        config = config_of(subject, settings, net={"core": core})
        yield Scene.of(config.spec.build(config, env))


def answer_tensors(act: Act, after: Tensor) -> list[Tensor]:
    """All tensors of an answer."""
    return [*leaves(act.action), *act.extras.values(), after]


def perturb(net: Any, by: float = 0.3) -> Any:
    """The network with its weights moved in place: one that is fresh may know of no difference."""
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in net.parameters():
            weights.add_(by * torch.randn(weights.shape, generator=g))
    return net


def batch_of(trainer: Trainer, rows: Rows) -> Batch:
    """Rollouts as an algorithm gets them."""
    return Rollouts(rows, trainer.record, trainer.env, CPU).batch


def is_close(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are equal up to rounding."""
    return torch.allclose(one.float(), two.float(), rtol=1e-4, atol=1e-4)
