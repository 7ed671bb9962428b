"""Training from scripts: what is passed, what is refused, and how a run ends when its caller does."""

import os
import signal
from pathlib import Path

import psutil
import pytest
import torch

import zerobeast as zb
from tests.build.commands import pids
from tests.helpers import killed_at_last, python, wait_for_end, wait_until
from zerobeast.common import plugins
from zerobeast.common.settings.algorithm import AlgorithmSpec

SCRIPT = Path(__file__).with_name("api_script.py")
HEAD = "import gymnasium, zerobeast as zb\nclass Mine(gymnasium.Wrapper): pass\n"


def run_in(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    return wait_for_end(python(*arguments, cwd=folder))


def test_a_script_trains_its_own_environment_continues_and_evaluates(tmp_path: Path) -> None:
    code, out, error = run_in(tmp_path, SCRIPT, "whole")
    assert code == 0, error
    assert "done: 6,000/6,000 agent steps" in out
    assert "the learning rate, 0 before, continues at" in error, "what a command shows of a run that continues"


def test_what_a_callback_raises_ends_the_run_in_order_and_is_raised(tmp_path: Path) -> None:
    code, out, error = run_in(tmp_path, SCRIPT, "failing")
    assert (code, out.splitlines()[-1], error) == (0, "enough, 1.5", "")
    assert torch.load(tmp_path / "runs/failing/checkpoint.pt", weights_only=True)["counters"]["agent_steps"] > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_caller_leaves_a_checkpoint_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    process = python(SCRIPT, "killed", cwd=tmp_path, variables={"TMPDIR": str(tmp_path)})
    with killed_at_last(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        folder = tmp_path / "runs" / "killed"
        services = set(pids(folder).values())
        assert len(services) > 1
        process.send_signal(number)
        _, error = process.communicate()
    assert ("KeyboardInterrupt" in error) == (number is signal.SIGINT)
    wait_until(lambda: not any(map(psutil.pid_exists, services)))
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["counters"]["agent_steps"] > 0


def test_what_cannot_be_started_is_refused_and_starts_none(tmp_path: Path) -> None:
    """In a process of its own, whose main module is a command line, or a script that starts a run when imported."""
    (tmp_path / "script.py").write_text(f"{HEAD}zb.train(Mine)")
    for arguments, named in (
        (("-c", f"{HEAD}zb.start(Mine)"), "env Mine"),
        (("-c", f"{HEAD}zb.start(env={{'id': 'X', 'kwargs': {{'size': int}}}})"), "env.kwargs.size"),
        (("script.py",), "__main__"),
    ):
        _, _, error = run_in(tmp_path, *arguments)
        assert named in error.splitlines()[-1]
        assert not (tmp_path / "runs").exists()


def test_references_are_to_what_other_processes_can_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerobeast.rl.algos.ppo.config import SPEC, PPOConfig

    assert plugins.reference_to(PPOConfig, "env") == "zerobeast.rl.algos.ppo.config:PPOConfig"
    assert plugins.reference_to(SPEC, "algo").endswith(":SPEC")
    assert plugins.find_part("zerobeast.algorithms", plugins.reference_to(SPEC, "algo"), "algo") is SPEC
    (tmp_path / "beside.py").write_text("class Env: pass\nmade = lambda: Env()")
    monkeypatch.syspath_prepend(tmp_path)
    import beside  # type: ignore[import-not-found]

    assert plugins.reference_to(beside.Env, "env") == f"{tmp_path}/beside.py:Env"
    assert plugins.reference_to(beside.made, "env") == f"{tmp_path}/beside.py:made"
    for stray in (AlgorithmSpec("mine", PPOConfig, "nowhere:Made"), signal.SIGTERM.value):  # modules have that number
        with pytest.raises(zb.ConfigError):
            plugins.reference_to(stray, "algo")
    assert os.getcwd() != str(tmp_path)
