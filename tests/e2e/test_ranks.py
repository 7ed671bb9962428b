"""Several learners that learn as one, in whole runs."""

import json
import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.e2e.test_learning import best, rows_of
from tests.helpers import finished, free_port, killed_at_last, python, wait_until

CARTPOLE = ("--env", "CartPole-v1", "--learner.ranks", "2")
QUICK = ("--learner.log_every_s", "0.5", "--learner.checkpoint_every_s", "1", "--local.restarts", "1")


def started(*argv: str | Path) -> "subprocess.Popen[str]":
    return python("-m", "zerobeast", "train", "--plain", *map(str, argv))


def done(*argv: str | Path) -> str:
    code, out, error = finished(started(*argv))
    assert code == 0, (out + error)[-3000:]
    return out


def steps(folder: Path) -> int:
    return int(rows[-1]["agent_steps"]) if (rows := rows_of(folder.parent, folder.name)) else 0


@pytest.mark.parametrize("victim", ["learner-0", "learner-1"])
def test_training_goes_on_from_the_checkpoint_when_a_rank_is_killed(tmp_path: Path, victim: str) -> None:
    run = tmp_path / "x"
    flags = ("--algo", "ppo", "--total_steps", "16300", *QUICK)
    process = started("--root", tmp_path, "--name", "x", *CARTPOLE, *flags)
    with killed_at_last(process):
        wait_until(lambda: (run / "checkpoint.pt").exists() and steps(run) > 4000, 200)
        os.kill(json.loads((run / "services" / f"{victim}.json").read_text())["pid"], signal.SIGKILL)
        code, out, error = finished(process)
    assert code == 0, (out + error)[-3000:]
    assert "started again, 1 of 1 times" in error
    assert steps(run) == 16_300, "no step more, although a batch has 1,024"
    assert best(rows_of(tmp_path, "x")) > 40, "a policy that does not learn has 20"
    assert "different weights" not in (run / "logs" / "learner-0.log").read_text()
    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    assert len(saved["ranks"]) == 1
    assert len({sender for sender, *_ in saved["rollouts"]["streams"]}) == 2, "the actors of both ranks"


def test_each_rank_has_a_replay_and_their_number_may_change(tmp_path: Path) -> None:
    flags = ("--root", tmp_path, "--name", "x")
    done(*flags, *CARTPOLE, "--algo", "dqn", "--dqn.replay_min_size", "300", "--total_steps", "3000")
    rank = tmp_path / "x" / "store" / "rank-1"
    assert any(rank.rglob("*"))
    before = torch.load(tmp_path / "x" / "checkpoint.pt", weights_only=True)["rollouts"]["ledger"]
    assert before["used"] * 16 >= 3000, "rollouts of both ranks"
    assert before["undone"] == before["skipped"] == 0
    done(*flags, "--total_steps", "4000")
    done(*flags, "--total_steps", "5000", "--learner.ranks", "1")
    done(*flags, "--total_steps", "6000", "--learner.ranks", "2")
    assert steps(tmp_path / "x") == 6000
    after = torch.load(tmp_path / "x" / "checkpoint.pt", weights_only=True)
    assert after["rollouts"]["ledger"]["used"] > before["used"]
    assert after["counters"]["agent_steps"] == 6000


def test_a_batch_that_ranks_cannot_divide_is_refused(tmp_path: Path) -> None:
    code, _, error = finished(
        started("--root", tmp_path, "--env", "CartPole-v1", "--algo", "ppo", "--learner.ranks", "3")
    )
    assert code == 2
    assert "learner.batch_size 16 with learner.ranks 3: expected a multiple" in error


def rank(folder: Path, number: int, port: int, *flags: str) -> "subprocess.Popen[str]":
    meeting = ("--learner.meeting", f"tcp://127.0.0.1:{port}", "--learner.rank_timeout_s", "8")
    places = ("--learner.endpoint", f"ipc://{folder}/l{number}")
    command = ("-m", "zerobeast.services.learner", "--root", str(folder), "--name", "x", "--index", str(number))
    return python(*command, *CARTPOLE, *meeting, *places, *flags)


@pytest.mark.parametrize(
    ("numbers", "other", "code", "sentence"),
    [
        ((0, 1), ("--algo", "dqn"), 2, r"algo: rank . has \w+, rank . has \w+: expected the same"),
        ((0, 1, 1), (), 75, "rank 1 of 2: another process at|rank 0 does not answer at"),
        ((0,), (), 75, "rank 1 of 2 did not come to"),
        ((1,), (), 75, "rank 0 does not answer at"),
        ((0, 5), (), 2, "index 5: expected 0 to 1, as learner.ranks is 2"),
    ],
    ids=["other settings", "twice", "no rank 1", "no rank 0", "no such rank"],
)
def test_ranks_that_do_not_fit_end_in_a_sentence(
    tmp_path: Path, numbers: tuple[int, ...], other: tuple[str, ...], code: int, sentence: str
) -> None:
    port = free_port()
    with ExitStack() as stack:
        ranks = [rank(tmp_path, number, port, *(other if place else ())) for place, number in enumerate(numbers)]
        for each in ranks:
            stack.enter_context(killed_at_last(each))
        first = wait_until(lambda: next((each for each in ranks if each.poll() is not None), None))
        found, _, error = finished(first)
    assert found == code
    assert re.search(sentence, error), error


def test_actors_have_to_find_every_rank(tmp_path: Path) -> None:
    code, _, error = finished(python("-m", "zerobeast.services.actor", *CARTPOLE))
    assert code == 2
    assert "learner.rank_endpoints '': expected 1, one for each rank after the first" in error


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, error = finished(rank(tmp_path, 0, taken.getsockname()[1]))
    assert code == 2
    assert "rank 0 cannot listen there" in error


def test_held_batches_begin_anew_with_other_ranks(tmp_path: Path) -> None:
    """IMPACT holds batches of its own; ranks that held different ones would take different steps."""
    flags = ("--root", tmp_path, "--name", "x", "--env", "CartPole-v1", "--total_steps")
    done(*flags, "4000", "--algo", "impact")
    done(*flags, "8000", "--learner.ranks", "2", "--learner.rank_timeout_s", "20")
    assert steps(tmp_path / "x") == 8000


def test_every_rank_needs_an_env_group(tmp_path: Path) -> None:
    groups = ("--local.workers", "1", "--actor.env_groups", "1")
    code, _, error = finished(started("--root", tmp_path, *CARTPOLE, *groups))
    assert code == 2
    assert "actor.env_groups 1: 1 env groups in all, expected at least 2: one for each of learner.ranks" in error
