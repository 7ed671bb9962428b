"""A run whose environments live in a program that knows nothing of this project but docs/protocol.md."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.build.commands import best, rows_of
from tests.helpers import ROOT, killed_at_last, python

pytestmark = pytest.mark.timeout(600)


def test_a_real_run_trains_on_a_foreign_env_server(tmp_path: Path) -> None:
    services = ("envserver", "broker", "learner")
    flags = [text for name in services for text in (f"--{name}.endpoint", f"ipc://{tmp_path}/{name}")]
    flags += ["--env.id", "CartPole-v1", "--preset", "classic", "--total_steps", "10000", "--name", "foreign"]
    flags += ["--root", str(tmp_path), "--learner.log_every_s", "0.5"]
    commands = [("-m", f"zerobeast.services.{role}", *flags) for role in ("broker", "actor", "learner")]
    commands.insert(0, ("-I", str(ROOT / "docs/examples/foreign_env_server.py"), f"ipc://{tmp_path}/envserver"))
    with (tmp_path / "log").open("w") as log, ExitStack() as stack:
        processes = [python(*command, stdout=log, stderr=log) for command in commands]
        for process in processes:
            stack.enter_context(killed_at_last(process))
        assert processes[-1].wait(timeout=500) == 0, (tmp_path / "log").read_text()
    rows = rows_of(tmp_path / "foreign")
    assert int(rows[-1]["agent_steps"]) == 10_000
    assert best(rows) > 5, "returns of whole episodes are those of CartPole, which pays 1 a step"
