"""A pool in a worker process, which may die, and with it what its environments have started."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from zerobeast.services.envserver import workers
from zerobeast.testing.sessions import session


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
    with session("envpool/Basic-v1", {}, envs=1, apart=True) as envs:
        assert (envs.env.takes_options, envs.env.independent) == (False, False)
        still = np.zeros((1, *envs.env.spec.action.shape), np.float32)
        assert envs.reset()["first"].all()
        assert not envs.step(still)["first"].any()
        assert envs.env.infos.infos["HEALTH"] == 100
        [game] = games()
        os.kill(game.ppid(), signal.SIGKILL)
        assert envs.step(still)["first"].all()
        assert game not in games()
        assert (len(games()), envs.env.errors) == (1, 1)
    assert not games()


def test_every_further_seed_has_a_process_of_its_own_so_that_no_simulator_stays_in_memory() -> None:
    found = []
    with session("envpool/CartPole-v1", {}, envs=2, apart=True) as envs:
        for seed in (5, None, 5):
            obs = envs.reset(seed)["obs"].tolist()
            (worker,) = multiprocessing.active_children()
            found.append((worker.pid, obs))
        assert (envs.env.errors, envs.env.timeouts) == (0, 0)
    (first, seeded), (second, other), (third, again) = found
    assert first == second != third
    assert seeded == again != other
