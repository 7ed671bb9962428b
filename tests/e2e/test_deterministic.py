"""`--deterministic true`: the same run again, and in other processes, ends with the same weights bit for bit."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.build.commands import beast, done, pids
from tests.build.placements import PLACEMENTS, deterministic, final_state, unlike
from tests.helpers import killed_at_last
from zerobeast.testing.small_run import are_same

pytestmark = pytest.mark.timeout(300)

CARTPOLE = "--env CartPole-v1 --net.hidden_size 16 --actor.envs_per_group 8 --total_steps 3000"
RUNS = {
    "memory": f"{CARTPOLE} --impala.replay_share 0.5 --impala.replay_rollouts 64"
    " --net.core lstm --net.core_width 8 --net.memory momentum",
    "pixels": "--env PongNoFrameskip-v4 --actor.envs_per_group 8 --total_steps 1300",
    "continuous": "--env Pendulum-v1 --algo ppo --net.hidden_size 16 --net.normalize_obs true --total_steps 3000",
}


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
def test_services_learn_the_same_wherever_they_are(flags: str, tmp_path: Path) -> None:
    assert unlike(tmp_path, flags) == []


def disturb(run: "subprocess.Popen[str]", folder: Path) -> int:
    """Stop its services now and then, one at a time, until it ends; returns how often."""
    rng, times = random.Random(1), 0
    while run.poll() is None:
        with suppress(OSError, ValueError, IndexError):
            pid = rng.choice(list(pids(folder).values()))
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(rng.uniform(0.0, 0.2))
            finally:
                os.kill(pid, signal.SIGCONT)
                times += 1
        time.sleep(0.05)
    return times


def test_a_run_that_is_disturbed_learns_the_same_and_another_seed_something_else(tmp_path: Path) -> None:
    flags = (*PLACEMENTS["apart"], *CARTPOLE.split())
    for name, seed in (("calm", "1"), ("other", "2")):
        done(*deterministic(tmp_path, name), *flags, "--seed", seed)
    run = beast(*deterministic(tmp_path, "disturbed"), *flags)
    with killed_at_last(run):
        assert disturb(run, tmp_path / "disturbed") > 3
        assert run.returncode == 0
    calm, other = final_state(tmp_path, "calm"), final_state(tmp_path, "other")
    assert are_same(calm, final_state(tmp_path, "disturbed"), but="origin")
    assert calm["counters"] == other["counters"]
    assert not any(
        are_same(calm["model"][name], value) for name, value in other["model"].items() if name.endswith("weight")
    )
