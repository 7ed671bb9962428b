"""A pool in a worker process, which may die, and with it what its environments have started."""

import multiprocessing
import os
import select
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.services.envserver import workers
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.infos import InfoTable
from zerobeast.services.envserver.vector import VectorEnv

LIMIT_S = 60.0


def collected(env: VectorEnv) -> VectorEnv:
    while not env.collect():
        select.select(env.files, (), (), 0.05)
        env.tend(time.monotonic(), LIMIT_S)
    return env


def games() -> set[psutil.Process]:
    """ViZDoom's processes of this test, which writes its settings into a folder of its own."""
    here = os.getcwd()
    return {
        each
        for each in psutil.process_iter(["name", "cwd"])
        if (each.info["name"], each.info["cwd"]) == ("vizdoom", here)
    }


def test_vizdoom_ends_with_its_worker_and_goes_on_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "start_folder", lambda: tmp_path)  # worker processes begin there
    env = make_vector_env(EnvConfig(id="envpool/Basic-v1"), 1, 0, EnvServerConfig())
    env.infos = InfoTable(1)
    collected(env)
    assert (env.takes_options, env.independent) == (False, False)
    env.reset()
    assert collected(env).rows["first"].all()
    env.step(np.zeros((1, *env.spec.action.shape), np.float32))
    assert not collected(env).rows["first"].any()
    assert env.infos.infos["HEALTH"] == 100
    [game] = games()
    os.kill(game.ppid(), signal.SIGKILL)
    env.step(np.zeros((1, *env.spec.action.shape), np.float32))
    assert collected(env).rows["first"].all()
    assert game not in games()
    assert (len(games()), env.errors) == (1, 1)
    env.close()
    while not env.closed(force=True):
        time.sleep(0.01)
    assert not games()


def test_every_further_seed_has_a_process_of_its_own_so_that_no_simulator_stays_in_memory() -> None:
    env = make_vector_env(EnvConfig(id="envpool/CartPole-v1"), 2, 0, EnvServerConfig(workers=1))
    collected(env)
    found = []
    for seed in (5, None, 5, 6):
        env.reset(seed)
        obs = collected(env).rows["obs"].copy()
        (worker,) = multiprocessing.active_children()
        found.append((worker.pid, obs.tolist()))
    (first, seeded), (second, other), (third, again), (fourth, another) = found
    assert first == second
    assert len({second, third, fourth}) == 3
    assert seeded == again
    assert seeded not in (other, another)
    assert (env.errors, env.timeouts) == (0, 0)
    env.close()
    while not env.closed(force=True):
        time.sleep(0.01)
