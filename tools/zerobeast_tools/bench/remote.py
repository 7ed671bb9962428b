"""Environments in an env-server, stepped by RemoteVectorEnv over ipc and tcp, compared with gymnasium's AsyncVectorEnv.

AsyncVectorEnv has one process per environment and passes observations through shared memory. An env-server steps
CartPole in three ways: by gymnasium's vectorised implementation in one process; one by one in one process per core, the
default for other environments; and in one process per environment. It steps Pong in one C++ thread per core.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from zerobeast.clients.remote.vector_env import RemoteVectorEnv
from zerobeast.launcher.private_folder import private_folder
from zerobeast_tools.bench.figures import STEPS_S, Figure, Goal, figure, per_second
from zerobeast_tools.bench.options import run_plane
from zerobeast_tools.bench.processes import START_LIMIT_S

PORT = 25_550
CORES = len(os.sched_getaffinity(0))
STEPS = 20  #: of all environments, between two readings of the clock
BETTER_GOAL = Goal(">=", 1, of_ratio=True)


class Setup(NamedTuple):
    """Environments to step, and how."""

    name: str
    workers: int  #: processes of the env-server, if it steps the environments in processes
    env_id: str  #: as an env-server takes it
    num_envs: int
    make: Callable[[], Any]  #: makes one of the environments, for gymnasium


class Pong(gymnasium.Env[Any, Any]):
    """One game in the emulator's vector environment, with the preprocessing of an env-server."""

    def __init__(self) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self._env = AtariVectorEnv("pong", 1, num_threads=1, reward_clipping=False, use_fire_reset=False)
        self.observation_space, self.action_space = self._env.single_observation_space, self._env.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del options
        return self._env.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._env.step(np.array([action]))
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


WORKS = (
    Setup("CartPole", 1, "CartPole-v1", 64, partial(gymnasium.make, "CartPole-v1")),
    Setup(f"CartPole in {CORES} processes", CORES, "gymnasium:CartPole-v1", 64, partial(gymnasium.make, "CartPole-v1")),
    Setup("CartPole in 64 processes", 64, "gymnasium:CartPole-v1", 64, partial(gymnasium.make, "CartPole-v1")),
    Setup("Pong", 1, "PongNoFrameskip-v4", 16, Pong),
)


def main(argv: list[str]) -> int:
    """`beast bench remote`."""
    return run_plane("remote", __doc__, argv, measure)


def measure(seconds: float) -> list[Figure]:
    """Agent steps a second of each setup over each transport and of gymnasium's own, `seconds` for each."""
    figures = []
    for work in WORKS:
        with closing(AsyncVectorEnv([work.make] * work.num_envs)) as envs:
            yardstick = _rate(envs, seconds)
        for transport in ("ipc", "tcp"):
            what = f"remote, {work.num_envs} x {work.name} over {transport}"
            figures.append(figure(what, _remote_rate(work, transport, seconds), STEPS_S, BETTER_GOAL, yardstick))
    return figures


def _remote_rate(work: Setup, transport: str, seconds: float) -> float:
    with private_folder() as folder:
        endpoint = f"ipc://{folder}/env" if transport == "ipc" else f"tcp://127.0.0.1:{PORT}"
        flags = ("endpoint", endpoint), ("workers", work.workers), ("threads", CORES)
        command = [sys.executable, "-P", "-m", "zerobeast.services.envserver"]
        command += [text for name, value in flags for text in (f"--envserver.{name}", str(value))]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:  # it may have child processes
            try:
                envs = RemoteVectorEnv(endpoint, work.env_id, work.num_envs, timeout_s=START_LIMIT_S)
                with closing(envs):
                    return _rate(envs, seconds)
            finally:
                server.terminate()


def _rate(envs: Any, seconds: float) -> float:
    envs.reset(seed=1)
    actions = np.asarray(envs.action_space.sample())

    def some_steps() -> int:
        for _ in range(STEPS):
            envs.step(actions)
        return STEPS * int(envs.num_envs)

    return per_second(some_steps, seconds)
