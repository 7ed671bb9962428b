"""Small runs of one algorithm in one thread, on environments of random numbers: what the rules of algorithms check.

with SmallRun("my_package.spec:SPEC", ENVS["one choice"], {"epochs": 2}) as run:
    for rows in run.rollouts(3):
        run.feed(rows)
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import AlgorithmSpec, RunConfig, spec_of
from zerobeast.common.wire import (
    ArraySpace,
    CompositeSpace,
    EnvSpec,
    Origin,
    act_record,
    iterate_arrays,
    step_record,
)
from zerobeast.common.wire.spaces import Part
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets import flatten
from zerobeast.rl.protocol import OF_ITS_RUN, Learned
from zerobeast.services.actor.rollout import RolloutBuilder, Rows
from zerobeast.services.learner.update import Trainer

CPU = torch.device("cpu")
T, B = 6, 4
MOST_STEPS = 100  #: that one batch may bring

OBS, PICKS = ArraySpace.box((3,)), ArraySpace.multi_discrete(3, 2)
BOX = ArraySpace.box((2,), low=(-2.0, 0.0), high=(2.0, 10.0))
OBS_TREE = CompositeSpace("dict", (Part("camera", ArraySpace.box((2, 2))), Part("word", ArraySpace.discrete(4))))
ACTION_TREE = CompositeSpace("dict", (Part("aim", BOX), Part("go", CompositeSpace("tuple", (Part("0", PICKS),)))))
#: by the kind of their actions
ENVS = {
    "one choice": EnvSpec("Choice-v0", OBS, ArraySpace.discrete(3)),
    "a masked choice": EnvSpec("Masked-v0", OBS, ArraySpace.discrete(3), action_mask=True),
    "several choices": EnvSpec("Choices-v0", OBS, PICKS),
    "real actions": EnvSpec("Box-v0", OBS, BOX),
    "nested actions with a mask": EnvSpec("Nested-v0", OBS_TREE, ACTION_TREE, action_mask=True),
}
#: settings, as far as an algorithm has them, with which few small batches are enough
SMALL_SETTINGS: dict[str, Any] = {
    "learning_rate": 0.01,
    "schedule": "constant",
    "optimizer": "adam",
    "epsilon": 1e-5,
    "epochs": 2,
    "minibatches": 2,
    "batches": 2,
    "uses": 2,
    "target_period": 2,
    "batch_size": 4,
    "replay_size": 4000,
    "replay_min_size": 20,
    "samples_per_insert": 0.5,
    "random_steps": 0,
    "exploration_steps": 2000,
    "burn_in": T,
    "sequence_length": T,
    "head_size": 8,
}

Subject = str | AlgorithmSpec
Pays = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]  #: (observations, actions) -> rewards, [B] each


def reference(subject: Subject) -> str:
    """What a run calls an algorithm: a name or reference as it is, and that of the variable that is a spec."""
    if isinstance(subject, str):
        return subject
    home = subject.__module__
    return next(f"{home}:{name}" for name, value in vars(sys.modules[home]).items() if value is subject)


def config_of(subject: Subject, settings: dict[str, Any], **run: Any) -> RunConfig:
    """Small settings of an algorithm, but for `settings`; `run` are further sections."""
    algo = reference(subject)
    spec = spec_of(algo)
    own = {name: value for name, value in SMALL_SETTINGS.items() if name in spec.settings.model_fields}
    learner = {"unroll_length": T, "batch_size": B, "device": "cpu", "precision": "float32", **run.pop("learner", {})}
    net = {"torso": "mlp", "hidden_size": 8, "core_width": 4, **run.pop("net", {})}
    tree = {"algo": algo, "name": "run", "total_steps": 100_000, "learner": learner, "net": net, **run}
    return RunConfig.model_validate({**tree, spec.name: {**own, **settings}})


def find_envs(subject: Subject) -> dict[str, EnvSpec]:
    """The environments whose actions an algorithm takes."""
    takes = spec_of(reference(subject)).settings.takes
    return {name: env for name, env in ENVS.items() if takes(env.action)}


def is_replaying(subject: Subject) -> bool:
    """Whether an algorithm stores rollouts, and so may learn from rows that came with the last of its budget."""
    return spec_of(reference(subject)).settings.replays


def is_refused(subject: Subject, env: EnvSpec, settings: dict[str, Any], **run: Any) -> bool:
    """Whether an algorithm refuses such a run, and names a setting for each mistake."""
    try:
        make_algorithm(config_of(subject, settings, **run), env)
    except ConfigError as error:
        return all(each.path for each in error.mistakes)
    return False


def first_env(subject: Subject) -> EnvSpec:
    """The plainest environment that an algorithm takes."""
    return next(iter(find_envs(subject).values()))


class Stage:
    """Environments of random numbers, in which a policy acts as in brokers and actors.

    Args:
      trainer: whose policy acts.
      ends: how likely each step is the last of its episode, for good or cut off.
      pays: rewards; None: random ones.
    """

    def __init__(self, trainer: Trainer, ends: float = 0.4, pays: Pays | None = None, seed: int = 1) -> None:
        algorithm, env, n = trainer.algorithm, trainer.env, trainer.config.learner.batch_size
        self._inference = Inference(algorithm, max_rows=n, device=CPU, dtype=torch.float32, seed=seed)
        self._inference.reserve(n)
        self._acts = act_record(env, algorithm.policy).dtype
        self._builder = RolloutBuilder(env, algorithm.policy, trainer.config.learner.unroll_length, n)
        self._env, self._ends, self._pays = env, ends, pays
        self._random = np.random.default_rng(seed)
        self._steps: Rows = np.zeros(n, step_record(env).dtype)
        self._see()
        self._steps["first"] = True
        self._builder.restart(self._steps)

    def rollout(self, net: Any) -> Rows:
        """A rollout of every environment, in which this policy acts."""
        self._inference.load(flatten(net))
        while not self._builder.complete:
            self._step()
        return self._builder.take()

    def _step(self) -> None:
        rows, batch = self._steps, self._inference.batch
        batch.rows[:] = rows.view(np.uint8).reshape(batch.rows.shape)
        batch.slots[:] = np.arange(len(rows))
        self._inference.submit(len(rows), with_cores=self._builder.at_start)
        answers = self._inference.acts.view(self._acts)[:, 0]
        actions = self._builder.act(answers, 0, self._inference.cores)
        paid = self._random.normal(size=len(rows)) if self._pays is None else self._pays(rows["obs"], actions)
        over = rows["terminated"] | rows["truncated"]  # the next observation begins an episode whatever was done
        ends = ~over & (self._random.random(len(rows)) < self._ends)
        for_good = self._random.random(len(rows)) < 0.5
        rows["first"], rows["reward"] = over, np.where(over, 0.0, paid)
        rows["terminated"], rows["truncated"] = ends & for_good, ends & ~for_good
        self._see()
        self._builder.observe(rows)

    def _see(self) -> None:
        for space, column in iterate_arrays(self._env.obs, self._steps["obs"]):
            whole = self._random.integers(0, max(space.choices, default=1), column.shape)
            column[...] = whole if space.choices else self._random.normal(size=column.shape)
        if self._env.action_mask:
            self._steps["action_mask"] = mask_of(self._env, self._random.integers(0, 99, len(self._steps)))


def mask_of(env: EnvSpec, numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """[n, choices] by numbers [n]: two neighbours of each component's choices are legal, or one if it has two."""
    sizes = [size for array in env.action.arrays for size in array.choices]
    parts = [(numbers[:, None] + np.arange(size)) % size < max(1, size - 1) for size in sizes]
    return np.concatenate(parts, -1)


class SmallRun(AbstractContextManager["SmallRun"]):
    """A run of one algorithm.

    Args:
      subject: the algorithm.
      env: what its rollouts hold.
      settings: of the algorithm, beside SMALL_SETTINGS.
      root: folder of the run; None: a new one, which is removed at the end.
      run: sections of settings, such as `net`.

    Raises:
      ConfigError: the algorithm cannot learn such an environment.
    """

    def __init__(
        self, subject: Subject, env: EnvSpec, settings: dict[str, Any], root: Path | None = None, **run: Any
    ) -> None:
        self._folder = None if root else TemporaryDirectory()
        self.root = Path(root or self._folder.name)  # type: ignore[union-attr]
        self.config = config_of(subject, settings, root=str(self.root), **run)
        self.trainer = Trainer(self.config, CPU, env)
        self.stage = partial(Stage, self.trainer)
        self.seq = 0  #: number of the next batch

    def __exit__(self, *_error: object) -> None:
        if self._folder:
            self._folder.cleanup()

    def rollouts(self, n: int, **stage: Any) -> list[Rows]:
        """n consecutive batches in which the present policy acts; what is learned does not depend on what it draws."""
        with torch.random.fork_rng(devices=[]):
            made = self.stage(**stage)
            return [made.rollout(self.trainer.net) for _ in range(n)]

    def origins(self) -> NDArray[np.int64]:
        """Of the next batch."""
        n = self.config.learner.batch_size
        return np.array([Origin(7, 0, self.seq, row, n) for row in range(n)], np.int64)

    def add(self, rows: Rows) -> None:
        """Hand a copy of these rows to the algorithm."""
        self.trainer.add(rows.copy(), None, self.origins())
        self.seq += 1

    def steps(self) -> Iterator[Learned]:
        """Learn until no step is due."""
        for _ in range(MOST_STEPS):
            if not self.trainer.learning.due:
                return
            yield self.trainer.step()
        raise AssertionError(f"a step is due after {MOST_STEPS} steps without a batch")

    def feed(self, rows: Rows) -> list[Learned]:
        """Add a batch and learn until no step is due."""
        self.add(rows)
        return list(self.steps())

    def learn_from(self, batches: Sequence[Rows]) -> list[Tensor]:
        """What is learned from these batches."""
        for rows in batches:
            self.feed(rows)
        return self.learned_numbers()

    def policy(self) -> list[Tensor]:
        """A copy of the weights and statistics that act."""
        return [entry.clone() for entry in self.trainer.net.state_dict().values() if entry.is_floating_point()]

    def learned_numbers(self) -> list[Tensor]:
        """A copy of the policy and of all further numbers that are learned."""
        state = self.trainer.learning.state()
        return self.policy() + copy_numbers({name: entry for name, entry in state.items() if name not in OF_ITS_RUN})

    def copy_folder(self, root: Path) -> None:
        """Copy the run's folder, if there is one, to that of a run below another root."""
        if self.config.folder.exists():
            shutil.copytree(self.config.folder, root / self.config.folder.name)


def copy_numbers(tree: Any) -> list[Tensor]:
    """A copy of the numbers in a training state, in order."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [entry for part in tree for entry in copy_numbers(part)]
    if isinstance(tree, int):  # a generator's has 128 bits
        return [torch.tensor([tree >> bits & 0xFFFF_FFFF for bits in range(0, 160, 32)])]
    return [torch.as_tensor(tree).clone()] if isinstance(tree, Tensor | float) else []


def are_same(one: Any, two: Any, *, but: str = "") -> bool:
    """Whether two states are equal, tensors bit for bit, except for entries of dicts with the name `but`."""
    if isinstance(one, Tensor):
        bits = [each.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for each in (one, two)]
        return one.shape == two.shape and one.dtype == two.dtype and torch.equal(*bits)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(are_same(one[key], two[key], but=but) for key in one.keys() - {but})
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(are_same(*pair, but=but) for pair in zip(one, two, strict=True))
    return bool(one == two)
