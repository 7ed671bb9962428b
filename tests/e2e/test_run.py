"""`beast train` and `beast evaluate` as a user types them, with the real services."""

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.build.commands import SMALL, alive, beast, pids, rows_of
from tests.build.nets import GRU
from tests.build.planes import run_env_server
from tests.helpers import ROOT, killed_at_last, python, wait_for_end, wait_until
from zerobeast.common.process.roles import ROLES

RECURRENT = (*SMALL, "--net.core", GRU, "--net.core_width", "8")
QUICK = ("--learner.log_every_s", "0.2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained a recurrent policy to the end."""
    root = tmp_path_factory.mktemp("runs")
    code, out, error = wait_for_end(beast("train", "--root", root, "--name", "x", "--total_steps", "2000", *RECURRENT))
    assert (code, error) == (0, ""), error
    assert "x: trained 2,000 agent steps" in out
    assert f"evaluate:   beast evaluate x --root {root}" in out
    found = {path.name for path in (root / "x").iterdir()}
    assert {"config.yaml", "checkpoint.pt", "metrics.csv", "logs", "services", "tensorboard"} <= found
    assert {name.rpartition("-")[0] for name in pids(root / "x")} >= set(ROLES)
    assert not alive(root / "x")
    return root / "x"


def test_a_finished_run_goes_on_where_it_ended_when_it_gets_more_steps(trained: Path) -> None:
    code, out, error = wait_for_end(beast("train", "--root", trained.parent, "--name", "x", "--total_steps", "3000"))
    assert (code, error) == (0, ""), error
    assert out.startswith("continuing x (CartPole-v1, impala)")
    assert {"2000", "3000"} <= {row["agent_steps"] for row in rows_of(trained)}


def test_the_example_script_plays_a_saved_policy_on_an_env_server(trained: Path, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/envs"
    with run_env_server(endpoint):
        script = ROOT / "docs" / "examples" / "play.py"
        code, out, error = wait_for_end(python(script, trained, endpoint, "CartPole-v1"))
        assert code == 0, error
        assert len(json.loads(out)) > 4, "episodes in 4 x 1,000 steps of CartPole"
        code, _, error = wait_for_end(python(script, tmp_path, endpoint, "CartPole-v1"))
        assert (code, error.count("\n")) == (1, 1)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_leaves_a_checkpoint_and_no_process(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    run, flags = tmp_path / "x", ("--root", tmp_path, "--name", "x", *QUICK, *SMALL)
    process = beast("train", *flags, TMPDIR=str(tmp_path))  # a launcher that is killed cannot remove its sockets
    with killed_at_last(process):
        wait_until(lambda: rows_of(run), 200)
        services = set(pids(run).values())
        process.send_signal(number)
        code, _, error = wait_for_end(process)
    assert (code, error) == (expected, ""), error
    assert len(services) >= 2
    if number is signal.SIGKILL:
        wait_until(lambda: not any(map(psutil.pid_exists, services)))
    assert not any(map(psutil.pid_exists, services))
    assert (run / "checkpoint.pt").exists()
