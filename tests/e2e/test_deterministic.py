"""`--deterministic true`: the same run again, and in other processes, ends with the same weights bit for bit."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import finished, killed_at_last, python
from zerobeast.tools.throwaway_run import ThrowawayRun

pytestmark = pytest.mark.timeout(300)

PLACEMENTS = {  #: each with two env groups
    "apart": ("--local.placement", "apart", "--local.actors", "2", "--actor.env_groups", "1"),
    "fused": ("--local.placement", "fused", "--local.workers", "2", "--actor.env_groups", "1"),
    "mixed": ("--local.placement", "mixed", "--local.actors", "1", "--local.workers", "1", "--actor.env_groups", "1"),
    "serial": ("--local.placement", "serial", "--actor.env_groups", "2"),
}
APART = PLACEMENTS["apart"]
CARTPOLE = "--env CartPole-v1 --net.hidden_size 16 --actor.envs_per_group 8 --total_steps 3000"
RUNS = {
    "memory": f"{CARTPOLE} --impala.replay_share 0.5 --impala.replay_rollouts 64"
    " --net.use_lstm true --net.lstm_size 8 --net.memory momentum",
    "continuous": "--env Pendulum-v1 --algo ppo --net.hidden_size 16 --net.normalize_obs true --total_steps 3000",
    "pong": "--env PongNoFrameskip-v4 --actor.envs_per_group 8 --total_steps 1300",
}
OF_ITS_PROCESSES = ("config", "rollouts")  #: entries of a checkpoint that depend on which actors there were


def train(root: Path, name: str, *flags: str) -> "subprocess.Popen[str]":
    argv = ("train", "--plain", "--root", root, "--name", name, "--deterministic", "true", *flags)
    return python("-m", "zerobeast", *argv)


def learned(root: Path, name: str) -> dict[str, Any]:
    """The final state of a run: weights, optimiser, random numbers, replay, returns of episodes."""
    saved = {
        key: value
        for key, value in torch.load(root / name / "checkpoint.pt", weights_only=True).items()
        if key not in OF_ITS_PROCESSES
    }
    del saved["counters"]["elapsed_s"]
    return saved


def same(one: Any, other: Any) -> bool:
    """Whether both are equal bit for bit, except for the ids of the actors that rows came from."""
    if isinstance(one, torch.Tensor):
        bits, others = (each.reshape(-1).view(torch.uint8) for each in (one, other))
        return one.dtype == other.dtype and torch.equal(bits, others)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one if key != "origin")
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def disturb(run: "subprocess.Popen[str]", folder: Path) -> int:
    """Stop its services now and then, one at a time, until it ends; returns how often."""
    rng, times = random.Random(1), 0
    while run.poll() is None:
        with suppress(OSError, ValueError, IndexError):
            pid = json.loads(rng.choice(list((folder / "services").glob("*.json"))).read_text())["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(rng.uniform(0.0, 0.2))
            finally:
                os.kill(pid, signal.SIGCONT)
                times += 1
        time.sleep(0.05)
    return times


@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
def test_services_learn_the_same_wherever_they_are(flags: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        runs = [train(tmp_path, name, *flags.split(), *how) for name, how in PLACEMENTS.items()]
        for run in runs:
            stack.enter_context(killed_at_last(run))
        for run in runs:
            out, error = run.communicate()
            assert run.returncode == 0, out[-3000:] + error
    apart = learned(tmp_path, "apart")
    assert [name for name in PLACEMENTS if not same(apart, learned(tmp_path, name))] == []


def test_a_run_that_is_disturbed_learns_the_same_and_another_seed_something_else(tmp_path: Path) -> None:
    flags = (*APART, *CARTPOLE.split())
    for name, seed in (("calm", "1"), ("other", "2")):
        code, out, error = finished(train(tmp_path, name, *flags, "--seed", seed))
        assert code == 0, out[-3000:] + error
    run = train(tmp_path, "disturbed", *flags)
    with killed_at_last(run):
        assert disturb(run, tmp_path / "disturbed") > 3
        assert run.returncode == 0
    calm, other = learned(tmp_path, "calm"), learned(tmp_path, "other")
    assert same(calm, learned(tmp_path, "disturbed"))
    assert calm["counters"] == other["counters"]
    assert not any(
        same(calm["model"][name], value) for name, value in other["model"].items() if name.endswith("weight")
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawayRun]:
    """A run that trains."""
    flags = (*APART, *CARTPOLE.split(), "--deterministic", "true", "--learner.checkpoint_every_s", "0.5")
    with ThrowawayRun(flags, tmp_path_factory.mktemp("k")) as run:
        run.start_all()
        run.until_it_trains()
        yield run


@pytest.mark.parametrize("name", ["actor 0", "broker 0", "learner 0", "envserver 0"])
def test_training_goes_on_after_a_service_was_killed_and_started_again(run: ThrowawayRun, name: str) -> None:
    """It goes on, though not as it would have without the kill."""
    run.end([name], signal.SIGKILL)
    time.sleep(0.5)
    run.restart(name)
    for _ in range(2):  # the first steps may come from rollouts from before the kill
        steps = run.agent_steps()
        run.wait_for(lambda least=steps + 1000: run.agent_steps() > least, "it hangs", 60.0)  # type: ignore[misc]
