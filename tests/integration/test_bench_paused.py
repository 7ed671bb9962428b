"""Freezing and thawing a throw-away run, one of whose services has ended."""

from pathlib import Path

import pytest

from tests.helpers import wait_until
from zerobeast.common.errors import ConfigError
from zerobeast.launcher.child import Child, ChildSpec
from zerobeast.tools.throwaway_run import ThrowawayRun


@pytest.mark.parametrize("early", [True, False])
def test_a_service_that_ended_does_not_keep_the_others_frozen(tmp_path: Path, early: bool) -> None:
    with ThrowawayRun(["--env", "CartPole-v1"], tmp_path) as run:
        for index in range(3):
            log, status = tmp_path / "log", tmp_path / "status"
            run.children.append(Child(ChildSpec("actor", index, ["sleep", "60"], {}, log, status)))
            run.children[-1].start()
        first, ended, last = run.children
        if early:
            _end(ended)
        run.freeze_all()
        wait_until(lambda: [_state(child.pid) for child in (first, last)] == ["T", "T"])
        _end(ended)
        run.thaw_all()
        wait_until(lambda: [_state(child.pid) for child in (first, last)] == ["S", "S"])


def test_a_throwaway_run_refuses_to_be_serial(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="serial, expected"):
        ThrowawayRun(["--local.placement", "serial"], tmp_path)


def _end(child: Child) -> None:
    child.kill()
    wait_until(lambda: not child.running)


def _state(pid: int) -> str:
    """The state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
