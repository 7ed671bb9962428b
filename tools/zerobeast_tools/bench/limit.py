"""The limit of this machine: each part of training alone, on one core, in each native precision of the core.

One agent step costs one environment step, one row of inference and one row of training, or as many training rows as an
algorithm with a replay samples per step. If all cores are always busy with that work alone, the machine reaches
cores / (1/env + 1/inference + 1/training) agent steps per second. Each part is pinned to its core, because emulators
have their own threads and would also use the other cores.

The formula assumes that a core is as fast next to busy cores as next to idle ones. But cores share memory, caches and
power, so the parts are measured again with all cores doing the same work: the limit of the loaded machine.
"""

import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from statistics import fmean
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from zerobeast.common.process.usage import cores
from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.tree import ALGORITHM
from zerobeast.common.wire import Space, action_record, iterate_arrays, rollout_record
from zerobeast.rl.data import Rollouts
from zerobeast.rl.factory import begin_learning, make_algorithm
from zerobeast.rl.nets import autocast
from zerobeast.rl.nets.precision import native_bfloat16
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Sampling
from zerobeast.rl.replay_settings import ReplaySettings
from zerobeast.services.envserver.spaces import make_legal
from zerobeast_tools.bench.figures import align_cells, per_second
from zerobeast_tools.bench.in_process import CPU, finish, folder_on_disk, make_envs
from zerobeast_tools.bench.options import emit, parse_options
from zerobeast_tools.bench.processes import START_LIMIT_S, Process, Processes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Rates = dict[str, Any]  #: part -> agent steps a second, or a dictionary of them by precision

ROWS = (16, 32)  #: batch sizes of inference
ROLLOUTS = (8, 32)  #: batch sizes of training
MOST_STEPS = 2048  #: in one, unless the smallest has more: long unrolls take seconds to learn from
SMALL_REPLAY = 20_000  #: agent steps in a small replay
FIGURES = 1 + len(DTYPES) * (len(ROWS) + len(ROLLOUTS))  #: of one measurement, at most


def main(argv: list[str]) -> int:
    """`beast bench limit`."""
    options, config, _ = parse_options("limit", __doc__, argv, seconds=3.0)
    with Yardstick(config) as yardstick:
        result = combine_rates(*yardstick.measure(options.seconds))
    emit(result, format_rates(result), options.json)
    return 0


class Yardstick(Processes):
    """Measures the limit, as often as it is asked to. Between measurements it uses no CPU.

    Usage: `with Yardstick(config) as yardstick: yardstick.measure(seconds)`.

    Args:
      config: of the run whose limit is measured.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self._config = config
        for core in sorted(os.sched_getaffinity(0))[: max(1, int(cores()))]:
            self.start(measure_parts, config, core)

    def measure(self, seconds: float, precisions: Sequence[str] | None = None) -> tuple[Rates, Rates]:
        """Measure every part: agent steps a second on one core.

        Args:
          seconds: for each figure.
          precisions: to measure in; None: float32, and bfloat16 unless it is emulated.

        Returns:
          Two sets of rates, each with `env` and, by precision, `inference` and `training`: of one process alone on the
          machine, and the mean over one process per core, all at once.
        """

        if precisions is None:
            precisions = tuple(DTYPES) if native_bfloat16(CPU) else ("float32",)

        def rates(processes: Sequence[Process]) -> list[Rates]:
            for process in processes:
                process.pipe.send((seconds, precisions))
            return [process.hear(START_LIMIT_S + FIGURES * seconds) for process in processes]

        (alone,) = rates(self.processes[:1])
        return {"env_id": self._config.env.id, **alone}, mean(rates(self.processes))


def combine_rates(alone: Rates, at_work: Rates) -> Rates:
    """Rates from `Yardstick.measure`, with the `limit` by precision that they imply, and the `best` one of `alone`."""
    alone, at_work = (
        {**rates, "limit": {name: cores() / cost_s(rates, name) for name in rates["training"]}}
        for rates in (alone, at_work)
    )
    return {**alone, "cores": cores(), "at_work": at_work, "best": max(alone["limit"].values())}


def cost_s(result: Rates, precision: str) -> float:
    """CPU seconds of environment, inference and training for one agent step."""
    return float(1 / result["env"] + 1 / result["inference"][precision] + 1 / result["training"][precision])


def format_rates(result: Rates) -> str:
    """The result as a small table."""
    at_work = result["at_work"]
    rows = [("", "alone", "all cores at work"), ("environment", f"{result['env']:.0f}", f"{at_work['env']:.0f}")]
    rows += [
        (f"{part}, {name}", f"{result[part][name]:.0f}", f"{at_work[part][name]:.0f}")
        for part in ("inference", "training", "limit")
        for name in result["limit"]
    ]
    title = f"{result['env_id']} on {result['cores']:g} cores, agent steps a second on one core"
    formula = "limit: cores / (1/environment + 1/inference + 1/training)"
    return "\n".join([title, *align_cells(rows, numbers=(1, 2)), formula])


def mean(values: Sequence[Any]) -> Any:
    """Mean of floats, or of dictionaries of them, entry by entry; of anything else, the first value."""
    first = values[0]
    if isinstance(first, dict):
        return {name: mean([value[name] for value in values]) for name in first}
    return fmean(values) if isinstance(first, float) else first


def measure_parts(pipe: Connection, config: RunConfig, core: int) -> NoReturn:
    """Serve `Parts.rates` on this core for ever: receive its arguments, send what it returns."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    parts = Parts(config)
    while True:
        pipe.send(parts.rates(*pipe.recv()))


class Parts:
    """Environment, inference and training of a run, each measured alone.

    Args:
      config: of the run.
    """

    def __init__(self, config: RunConfig) -> None:
        self._num_envs = config.actor.envs_per_group
        self._vector = make_envs(config, self._num_envs, config.seed)
        self._rng = np.random.default_rng(config.seed)
        self._algorithm = make_algorithm(config, self._vector.spec)
        self._config = config

    def rates(self, seconds: float, precisions: Sequence[str]) -> Rates:
        """Agent steps a second of each part; for inference and training, the best over the batch sizes."""
        steps = self._config.learner.unroll_length
        sizes = [rollouts for rollouts in ROLLOUTS if rollouts * steps <= MOST_STEPS] or ROLLOUTS[:1]
        return {
            "env": per_second(self._step, seconds),
            "inference": {p: max(self._inference(DTYPES[p], rows, seconds) for rows in ROWS) for p in precisions},
            "training": {p: max(self._training(p, rollouts, seconds) for rollouts in sizes) for p in precisions},
        }

    def _step(self) -> int:
        self._vector.step(_random_actions(self._rng, self._vector.spec.action, self._num_envs))
        finish(self._vector)
        return self._num_envs

    def _inference(self, dtype: torch.dtype, rows: int, seconds: float) -> float:
        net, generator = self._algorithm.network(), torch.Generator().manual_seed(0)
        batch, core = self._rollouts(rows).batch, net.initial_state(rows)
        inputs = tree_map(lambda field: field[:1].contiguous(), batch.inputs)
        sampling = Sampling(torch.arange(rows), generator, greedy=False)

        def work() -> int:
            with torch.inference_mode(), autocast(CPU, dtype):
                self._algorithm.act(net, inputs, core, sampling)
            return rows

        return per_second(work, seconds)

    def _training(self, precision: str, rollouts: int, seconds: float) -> float:
        learner = self._config.learner.model_copy(update={"precision": precision})
        batch = self._rollouts(rollouts)
        with folder_on_disk(self._config.root) as root:
            config = _with_a_small_replay(self._config.model_copy(update={"learner": learner, "root": root}))
            algorithm = make_algorithm(config, self._algorithm.env)
            learning = begin_learning(algorithm, config, algorithm.network())
            while not learning.due:
                learning.add(batch, 0)

            def work() -> int:
                while learning.due:
                    learning.step(0)
                learning.add(batch, 0)
                return learner.unroll_length * rollouts

            if getattr(config.algorithm, "uses", 1) > 1:  # again when later ones arrive: the first batches cost less
                for _ in range(getattr(config.algorithm, "batches", 0)):
                    work()
            return per_second(work, seconds)

    def _rollouts(self, rollouts: int) -> Rollouts:
        """Rollouts of noise, assembled once and not again for each step."""
        env, steps = self._algorithm.env, self._config.learner.unroll_length
        record = rollout_record(env, self._algorithm.policy, steps)
        rows = np.zeros(rollouts, record.dtype)
        random = np.random.default_rng(0)
        for space, column in iterate_arrays(env.obs, rows["obs"]):
            column[...] = random.integers(0, 256 if space.bits else 2, column.shape)
        return Rollouts(rows, record, env, CPU)


def _with_a_small_replay(config: RunConfig) -> RunConfig:
    """The same config with a small replay, if it has one: the cost of a sample hardly depends on the replay's size."""
    section = config.algorithm
    if not isinstance(section, ReplaySettings):
        return config
    size, filled = min(section.replay_size, SMALL_REPLAY), min(section.replay_min_size, SMALL_REPLAY // 4)
    sizes = {"replay_size": size, "replay_min_size": filled}
    return config.model_copy(update={"name": "limit", ALGORITHM: section.model_copy(update=sizes)})


def _random_actions(rng: np.random.Generator, action: Space, num_envs: int) -> NDArray[Any]:
    """Random legal actions, [N, *shape]."""
    actions = np.zeros(num_envs, action_record(action).dtype)["action"]
    for array, chosen in iterate_arrays(action, actions):
        if array.kind == "box":
            chosen[...] = rng.normal(size=chosen.shape)
        else:
            chosen[...] = rng.integers(np.reshape(array.choices, array.shape), size=chosen.shape)
    return make_legal(actions, action)
