"""The machine's own limit: each part of training alone, on one thread, in the precision it would run in.

One agent step costs one environment step, one row of inference and one row of training. With every core always busy
and nothing else to do, that gives cores / (1/env + 1/inference + 1/training) agent steps a second.

That sum takes for granted that a core is as fast beside a busy one as beside an idle one. Cores share memory, caches
and power, so the parts are measured a second time with all cores at the same work: the limit of the machine at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.algos.protocol import Algorithm, Batch, Learning
from common.algos.registry import make_algorithm
from common.config.tree import RunConfig
from common.memory import keep_freed_memory
from common.nets.agent import AgentNet, StepInput
from common.nets.precision import autocast
from common.specs import ActionSpec, EnvSpec
from common.transport import Poller
from common.usage import cores
from deploy.bench.options import emit, parse
from services.envserver.actions import ActionCheck
from services.envserver.catalogue import make_vector_env
from services.envserver.vector import VectorEnv

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROWS = (16, 32)  #: of inference
ROLLOUTS = (8, 32)  #: of training


def main(argv: list[str]) -> int:
    """`beast bench limit`."""
    options, config, _ = parse("limit", argv, seconds=3.0)
    result = measure(config, options.seconds)
    emit(result, describe(result), options.json)
    return 0


def measure(config: RunConfig, seconds: float) -> dict[str, Any]:
    """Measure every part for `seconds` per figure; rates are agent steps a second on one thread.

    Returns:
      Of one process that has the machine to itself: `env`, and by precision `inference`, `training` and `limit`;
      `at_work`: the same of one process per core at once; `best`: the highest limit.
    """
    alone, *_ = _at_once(config, seconds, 1)
    together = _at_once(config, seconds, max(1, int(cores())))
    at_work = _with_limit({name: _mean([rates[name] for rates in together]) for name in alone})
    alone = _with_limit(alone)
    return {
        "env_id": config.env.id,
        "cores": cores(),
        **alone,
        "at_work": at_work,
        "best": max(alone["limit"].values()),
    }


def cost_s(result: dict[str, Any], precision: str) -> float:
    """CPU seconds of environment, inference and training for one agent step."""
    return float(1 / result["env"] + 1 / result["inference"][precision] + 1 / result["training"][precision])


def describe(result: dict[str, Any]) -> str:
    """The result as a small table."""
    at_work = result["at_work"]
    lines = [
        f"{result['env_id']} on {result['cores']:g} cores, agent steps a second on one thread",
        f"  {'':<22} {'alone':>10} {'all cores at work':>20}",
        f"  {'environment':<22} {result['env']:10.0f} {at_work['env']:20.0f}",
    ]
    lines += [
        f"  {part + ', ' + name:<22} {result[part][name]:10.0f} {at_work[part][name]:20.0f}"
        for part in ("inference", "training", "limit")
        for name in DTYPES
    ]
    return "\n".join([*lines, "  limit: cores / (1/environment + 1/inference + 1/training)"])


def _at_once(config: RunConfig, seconds: float, processes: int) -> list[dict[str, Any]]:
    """The rates of so many processes that measure at the same time."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_parts, [config] * processes, [seconds] * processes))


def _parts(config: RunConfig, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    keep_freed_memory()
    spec, env_rate = _environment(config, seconds)
    algorithm = make_algorithm(config, spec)
    net = algorithm.network()
    inference = {name: max(_inference(algorithm, net, dtype, seconds)) for name, dtype in DTYPES.items()}
    training = {name: max(_training(spec, config, name, seconds)) for name in DTYPES}
    return {"env": env_rate, "inference": inference, "training": training}


def _mean(values: list[Any]) -> Any:
    """Of numbers, or of dictionaries of them, entry by entry."""
    if isinstance(values[0], dict):
        return {name: _mean([value[name] for value in values]) for name in values[0]}
    return fmean(values)


def _with_limit(rates: dict[str, Any]) -> dict[str, Any]:
    return {**rates, "limit": {name: cores() / cost_s(rates, name) for name in DTYPES}}


def _rate(work: Callable[[], int], seconds: float) -> float:
    """Agent steps a second of `work`, which returns how many it did; the first call warms up."""
    work()
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        count += work()
    return count / spent


def _environment(config: RunConfig, seconds: float) -> tuple[EnvSpec, float]:
    num_envs = config.actor.envs_per_group
    server = config.envserver.model_copy(update={"threads": 1, "workers": 1})
    vector = make_vector_env(config.env, num_envs, config.seed, server)
    rng = np.random.default_rng(config.seed)
    try:
        _collect(vector)
        vector.reset()
        _collect(vector)
        action = vector.spec.action

        def work() -> int:
            vector.step(_random_actions(rng, action, num_envs))
            _collect(vector)
            return num_envs

        return vector.spec, _rate(work, seconds)
    finally:
        vector.close()


def _random_actions(rng: np.random.Generator, action: ActionSpec, num_envs: int) -> NDArray[Any]:
    """Legal ones, [N, *shape]."""
    shape = (num_envs, *action.shape)
    if action.kind == "box":
        return ActionCheck(action).legal(rng.normal(size=shape).astype(action.dtype))
    return rng.integers(np.reshape(action.sizes, action.shape), size=shape)


def _collect(vector: VectorEnv) -> None:
    """Wait for what was begun."""
    while not vector.collect():
        Poller(files=vector.files).wait(1.0)


def _inference(algorithm: Algorithm, net: AgentNet, dtype: torch.dtype, seconds: float) -> Iterable[float]:
    generator = torch.Generator().manual_seed(0)
    for rows in ROWS:
        inputs = _inputs(algorithm.env, 1, rows)
        core = net.initial_state(rows)

        def work(inputs: StepInput = inputs, core: torch.Tensor = core, rows: int = rows) -> int:
            with torch.inference_mode(), autocast(torch.device("cpu"), dtype):
                algorithm.act(net, inputs, core, generator=generator, greedy=False)
            return rows

        yield _rate(work, seconds)


def _training(env: EnvSpec, config: RunConfig, dtype: str, seconds: float) -> Iterable[float]:
    learner = config.learner.model_copy(update={"precision": dtype})
    algorithm = make_algorithm(config.model_copy(update={"learner": learner}), env)
    steps = learner.unroll_length
    for rollouts in ROLLOUTS:
        net = algorithm.network()
        learning = algorithm.learning(net)
        batch = _batch(algorithm, net, steps, rollouts)

        def work(learning: Learning = learning, batch: Batch = batch, rollouts: int = rollouts) -> int:
            learning.update(batch, 0)
            return steps * rollouts

        yield _rate(work, seconds)


def _inputs(env: EnvSpec, steps: int, rows: int) -> StepInput:
    stack = (env.frame_stack,) if env.frame_stack > 1 else ()
    shape = (steps, rows, *stack, *env.obs_shape)
    obs = torch.from_numpy(np.random.default_rng(0).integers(0, 2, shape).astype(np.dtype(env.obs_dtype)))
    action = torch.from_numpy(np.zeros((steps, rows, *env.action.shape), env.action.dtype))
    return StepInput(obs, action, torch.zeros(steps, rows), torch.zeros(steps, rows, dtype=torch.bool))


def _batch(algorithm: Algorithm, net: AgentNet, steps: int, rollouts: int) -> Batch:
    inputs = _inputs(algorithm.env, steps + 1, rollouts)
    no = torch.zeros(steps + 1, rollouts, dtype=torch.bool)
    return Batch(
        obs=inputs.obs,
        first=no,
        reward=inputs.reward,
        terminated=no,
        truncated=no,
        last_action=inputs.last_action,
        behaviour_logits=torch.zeros(steps, rollouts, algorithm.policy.n_logits),
        value=torch.zeros(steps, rollouts),
        policy_version=torch.zeros(steps, rollouts, dtype=torch.int64),
        core_state=net.initial_state(rollouts),
        mask=torch.ones(steps, rollouts, dtype=torch.bool),
    )
