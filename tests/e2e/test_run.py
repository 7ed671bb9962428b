"""`beast train` and `beast evaluate` as a user types them, with the real services."""

import csv
import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from tests.build.envservers import running
from tests.helpers import ROOT, finished, killed_at_last, python, wait_until
from zerobeast.common.process.roles import ROLES

SMALL = ("--env", "CartPole-v1", "--net.hidden_size", "16", "--local.workers", "1")
RECURRENT = (*SMALL, "--net.use_lstm", "--net.lstm_size", "8")


def beast(*argv: str | Path, **variables: str) -> subprocess.Popen[str]:
    return python("-m", "zerobeast", *argv, variables=variables)


def children_of(run: Path) -> list[int]:
    pids = {}
    for path in (run / "services").glob("*.json"):
        with suppress(FileNotFoundError):  # the file of a service that is started again is gone for a moment
            pids[path.stem] = json.loads(path.read_text())["pid"]
    there = {name.rpartition("-")[0] for name in pids}  # a short run ends before its second worker has begun
    return sorted(set(pids.values())) if set(ROLES) <= there else []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained a recurrent policy to the end."""
    root = tmp_path_factory.mktemp("runs")
    code, out, error = finished(beast("train", "--root", root, "--name", "x", "--total_steps", "2000", *RECURRENT))
    assert (code, error) == (0, ""), error
    assert "x: trained 2,000 agent steps" in out
    assert f"evaluate:   beast evaluate x --root {root}" in out
    return root / "x"


def test_the_end_of_training_leaves_a_whole_run_and_no_process(trained: Path) -> None:
    assert {"config.yaml", "checkpoint.pt", "metrics.csv", "logs", "services", "tensorboard"} <= {
        path.name for path in trained.iterdir()
    }
    assert children_of(trained)
    assert not any(psutil.pid_exists(pid) for pid in children_of(trained))


def test_a_worker_that_is_killed_is_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    fused = ("--local.placement", "fused", "--learner.log_every_s", "0.2")
    process, run = beast("train", "--root", tmp_path, "--name", "x", *SMALL, *fused), tmp_path / "x"
    metrics = run / "metrics.csv"
    with killed_at_last(process):
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, 200)
        pids = children_of(run)
        os.kill(json.loads((run / "services" / "envserver-0.json").read_text())["pid"], signal.SIGKILL)
        wait_until(lambda: len({*pids, *children_of(run)}) == 3, 200)
        rows = metrics.read_text().count("\n")
        wait_until(lambda: metrics.read_text().count("\n") > rows + 1, 200)
        process.send_signal(signal.SIGINT)
        code, _, error = finished(process)
    assert code == 130
    assert "worker 0 was killed by SIGKILL (signal 9)" in error
    assert "started again, 1 of 3 times" in error


def test_a_finished_run_goes_on_where_it_ended_when_it_gets_more_steps(trained: Path) -> None:
    code, out, error = finished(beast("train", "--root", trained.parent, "--name", "x", "--total_steps", "3000"))
    assert (code, error) == (0, ""), error
    assert out.startswith("continuing x (CartPole-v1, impala)")
    steps = [line.split(",")[1] for line in (trained / "metrics.csv").read_text().splitlines()]
    assert steps[0] == "agent_steps"
    assert {"2000", "3000"} <= set(steps)


def test_a_saved_policy_plays_exactly_as_many_episodes_as_asked(trained: Path) -> None:
    code, out, error = finished(beast("evaluate", trained, "--episodes", "5", "--json"))
    assert (code, error) == (0, ""), error
    result = json.loads(out)
    assert (len(result["returns"]), result["actions"]) == (5, "greedy")
    assert result["returns"] == [float(length) for length in result["lengths"]], "CartPole pays 1 a step"


def test_a_greedy_evaluation_repeats_itself(trained: Path) -> None:
    play = ("evaluate", trained, "--episodes", "3", "--greedy", "--json")
    first, second = (json.loads(finished(beast(*play))[1]) for _ in range(2))
    assert first == second
    assert first["actions"] == "greedy"


def test_the_example_script_plays_a_saved_policy_on_an_env_server(trained: Path, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/envs"
    with running(endpoint):
        script = ROOT / "docs" / "examples" / "play.py"
        code, out, error = finished(python(script, trained, endpoint, "CartPole-v1"))
        assert code == 0, error
        assert len(json.loads(out)) > 4, "episodes in 4 x 1,000 steps of CartPole"
        code, _, error = finished(python(script, tmp_path, endpoint, "CartPole-v1"))
        assert (code, error.count("\n")) == (1, 1)
        assert f"{tmp_path}/config.yaml" in error


def test_another_architecture_or_environment_is_refused_in_a_sentence(trained: Path) -> None:
    code, _, error = finished(beast("evaluate", trained, "--net.use_lstm", "false"))
    assert (code, error.count("\n")) == (2, 1)
    assert "of another architecture" in error
    code, _, error = finished(beast("train", "--root", trained.parent, "--name", "x", "--env", "Acrobot-v1"))
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("beast train: env.id: run 'x' was trained with 'CartPole-v1'")


def test_an_unknown_environment_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    code, out, error = finished(beast("train", "--root", tmp_path, "--name", "x", "--env", "CartPoel-v1"))
    assert (code, error.count("\n")) == (2, 1)
    assert "CartPoel-v1" in error
    assert "did you mean CartPole-v1?" in error
    assert "evaluate" not in out
    assert not any(psutil.pid_exists(pid) for pid in children_of(tmp_path / "x"))


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_leaves_a_checkpoint_and_no_process(tmp_path: Path, number: signal.Signals, expected: int) -> None:
    flags = ("--root", tmp_path, "--name", "x", "--learner.log_every_s", "0.2", *SMALL)
    process = beast("train", *flags, TMPDIR=str(tmp_path))  # a launcher that is killed cannot remove its sockets
    metrics = tmp_path / "x" / "metrics.csv"
    with killed_at_last(process):
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, 200)
        pids = children_of(tmp_path / "x")
        process.send_signal(number)
        code, _, error = finished(process)
    assert (code, error) == (expected, ""), error
    assert len(pids) >= 2
    if number is signal.SIGKILL:
        wait_until(lambda: not any(map(psutil.pid_exists, pids)))
    assert not any(map(psutil.pid_exists, pids))
    assert (tmp_path / "x" / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(signal.SIGTERM, "the learner was stopped from outside"), (signal.SIGKILL, "learner 0 was killed by SIGKILL")],
)
def test_a_learner_that_dies_ends_the_run_in_a_sentence_and_its_checkpoint_continues(
    tmp_path: Path, number: signal.Signals, sentence: str
) -> None:
    flags = ("--root", tmp_path, "--name", "x", *SMALL, "--total_steps", "1000000000")
    flags = (*flags, "--learner.checkpoint_every_s", "0.5")
    process = beast("train", *flags, "--learner.log_every_s", "0.2")
    run = tmp_path / "x"
    with killed_at_last(process):
        wait_until(lambda: (run / "checkpoint.pt").exists(), timeout_s=200)
        learner = json.loads((run / "services" / "learner-0.json").read_text())["pid"]
        pids = children_of(run)
        os.kill(learner, number)
        code, _, error = finished(process)
    assert code == 1
    assert sentence in error
    assert not any(psutil.pid_exists(pid) for pid in pids)

    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    per_update = 32 * 16  # rollouts in a batch of the preset, and the steps of each
    before = saved["counters"]["agent_steps"]
    until = before + 10 * per_update
    code, out, error = finished(beast("train", "--root", tmp_path, "--name", "x", "--total_steps", str(until)))
    assert (code, error) == (0, ""), error
    assert "continuing x" in out
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["agent_steps"]) for row in rows]
    assert steps == sorted(steps)
    assert steps[-1] == until
    resumed = next(row for row in rows if int(row["agent_steps"]) > before)
    assert int(resumed["updates"]) > saved["counters"]["updates"]
    at_end = torch.load(run / "checkpoint.pt", weights_only=True)
    assert at_end["counters"]["updates"] - saved["counters"]["updates"] == 10
    (adam,) = {int(state["step"]) for state in at_end["learning"]["optimizer"]["state"]["state"].values()}
    assert adam == at_end["counters"]["optimizer_steps"], "the optimiser's own count went on too"
