"""Several learners that learn as one, in whole runs."""

import os
import signal
from pathlib import Path

import pytest
import torch

from tests.build.commands import beast, best, done, pid_of, rows_of, steps
from tests.helpers import killed_at_last, python, wait_for_end, wait_until

CARTPOLE = ("--plain", "--env", "CartPole-v1", "--learner.ranks", "2")
QUICK = ("--learner.log_every_s", "0.5", "--learner.checkpoint_every_s", "1", "--local.restarts", "2")


def test_training_goes_on_from_the_checkpoint_whichever_rank_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "x"
    flags = ("--algo", "ppo", "--total_steps", "16300", *QUICK)
    process = beast("train", "--root", tmp_path, "--name", "x", *CARTPOLE, *flags)
    with killed_at_last(process):
        for victim, least in (("learner-0", 3000), ("learner-1", 6000)):
            wait_until(lambda least=least: (run / "checkpoint.pt").exists() and steps(run) > least, 200)
            os.kill(pid_of(run, victim), signal.SIGKILL)
        code, out, error = wait_for_end(process)
    assert code == 0, (out + error)[-3000:]
    assert "started again, 2 of 2 times" in error
    assert steps(run) == 16_300, "no step more, although a batch has 1,024"
    assert best(rows_of(run)) > 40, "a policy that does not learn has 20"
    assert "different weights" not in (run / "logs" / "learner-0.log").read_text()
    saved = torch.load(run / "checkpoint.pt", weights_only=True)
    assert len(saved["ranks"]) == 1
    assert len({sender for sender, *_ in saved["rollouts"]["streams"]}) == 2, "the actors of both ranks"


@pytest.mark.nightly
def test_each_rank_has_a_replay_and_their_number_may_change(tmp_path: Path) -> None:
    flags, run = ("train", "--root", tmp_path, "--name", "x"), tmp_path / "x"
    done(*flags, *CARTPOLE, "--algo", "dqn", "--dqn.replay_min_size", "300", "--total_steps", "3000")
    assert any((run / "store" / "rank-1").rglob("*"))
    before = torch.load(run / "checkpoint.pt", weights_only=True)["rollouts"]["ledger"]
    assert before["used"] * 16 >= 3000, "rollouts of both ranks"
    assert before["undone"] == before["skipped"] == 0
    for total, ranks in (("4000", "1"), ("5000", "2")):
        done(*flags, "--plain", "--total_steps", total, "--learner.ranks", ranks)
    after = torch.load(run / "checkpoint.pt", weights_only=True)
    assert after["rollouts"]["ledger"]["used"] > before["used"]
    assert after["counters"]["agent_steps"] == steps(run) == 5000


@pytest.mark.nightly
def test_held_batches_begin_anew_with_other_ranks(tmp_path: Path) -> None:
    """IMPACT holds batches of its own; ranks that held different ones would take different steps."""
    flags = ("train", "--plain", "--root", tmp_path, "--name", "x", "--env", "CartPole-v1", "--total_steps")
    done(*flags, "3000", "--algo", "impact")
    done(*flags, "6000", "--learner.ranks", "2", "--learner.rank_timeout_s", "20")
    assert steps(tmp_path / "x") == 6000


def test_ranks_that_a_run_cannot_have_are_refused(tmp_path: Path) -> None:
    train = ("-m", "zerobeast", "train", "--root", tmp_path, *CARTPOLE)
    for command, path in (
        ((*train, "--algo", "ppo", "--learner.ranks", "3"), "learner.batch_size 16"),
        (("-m", "zerobeast.services.actor", *CARTPOLE[1:]), "learner.rank_endpoints"),
    ):
        code, _, error = wait_for_end(python(*command))
        assert code == 2
        assert path in error
