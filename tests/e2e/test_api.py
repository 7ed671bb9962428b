"""Training from scripts: what is passed, what is refused, and how a run ends when its caller does."""

import signal
from pathlib import Path

import psutil
import pytest
import torch

from tests.build.commands import pids
from tests.helpers import killed_at_last, python, wait_for_end, wait_until

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
