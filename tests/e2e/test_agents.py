"""Several agents in an environment, and several environments of one policy, through the real services."""

import csv
import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.build.commands import beast, done, evaluate_run, pid_of, rows_of
from tests.helpers import killed_at_last, wait_for_end, wait_until


def test_a_game_of_two_players_trains_while_its_process_is_killed_and_is_evaluated(tmp_path: Path) -> None:
    flags = "--plain --name four --total_steps 6000 --local.workers 1 --actor.envs_per_group 7"
    run, folder = ("--root", tmp_path, "--env", "pettingzoo/classic/connect_four_v3"), tmp_path / "four"
    process = beast("train", *run, *flags.split(), "--learner.log_every_s", "0.2")
    with killed_at_last(process):
        wait_until(lambda: rows_of(folder), 100)
        children = psutil.Process(pid_of(folder, "envserver-0")).children()
        os.kill(next(child.pid for child in children if "spawn_main" in str(child.cmdline())), signal.SIGKILL)
        code, out, error = wait_for_end(process)
    assert code == 0, out[-3000:] + error[-3000:]
    assert "2 agents per environment, 8 per env group" in out
    logs = [log.read_text() for log in (folder / "logs").iterdir()]
    assert any("a process of 4 environments" in log for log in logs), "it was killed, and replaced"
    [result] = evaluate_run("four", "--root", tmp_path, "--episodes", "3")
    assert len(result["returns"]) == 3


@pytest.mark.nightly
def test_a_game_is_learned_against_past_versions_and_each_other_run(tmp_path: Path) -> None:
    place = ("--root", tmp_path, "--plain", "--local.placement", "apart")
    run = (*place, "--env", "pettingzoo/classic/tictactoe_v3")
    flags = "--name self --total_steps 8000 --env.opponent past --learner.checkpoint_every_steps 1000"
    done("train", *run, *flags.split())
    last = rows_of(tmp_path / "self")[-1]
    against = [name for name in last if name.startswith("info/win.")]
    assert against, "the win rate against versions of each age"
    assert all(0 <= float(last[name]) <= 1 for name in ("info/win", *against) if last[name])
    with (tmp_path / "self" / "episodes.csv").open() as file:
        infos = [json.loads(row["infos"] or "{}") for row in csv.DictReader(file)]
    assert any(each.get("opponent", 0) >= 1000 for each in infos), "it is known of each episode"
    done("train", *run, "--name", "fixed", "--total_steps", "500", "--env.opponent", "self:best")
    [result] = evaluate_run("fixed", "--root", tmp_path, "--episodes", "4", "--opponent", "self")
    assert 0 <= result["info/win"] <= 1
    other = ("--env", "pettingzoo/classic/rps_v2", "--env.opponent", "self")
    code, _, error = wait_for_end(beast("train", *place, *other))
    assert (code, error.count("\n")) == (2, 1), error
    assert "env.opponent" in error


GAMES = ["MinAtar/Breakout-v1", "MinAtar/Seaquest-v1"]
SHORT = ("--plain", "--total_steps", "1000", "--learner.batch_size", "16")


@pytest.mark.nightly
def test_games_of_unequal_sizes_train_one_policy_that_is_evaluated_in_each(tmp_path: Path) -> None:
    """An env-server ends the session of an action that its game does not have, and with it the run."""
    out = done("train", "--root", tmp_path, "--env", ",".join(GAMES), "--name", "games", *SHORT)
    assert "env.pad_obs 10,10,10, env.pad_actions 6" in out
    found = evaluate_run("games", "--root", tmp_path, "--episodes", "1", "--max_steps", "200")
    assert [each["env"] for each in found] == GAMES


def test_a_mix_of_games_is_one_environment_that_trains_and_is_evaluated_by_its_levels(tmp_path: Path) -> None:
    done("train", "--root", tmp_path, "--env", f"zipf({','.join(GAMES)};2)", *SHORT)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert re.fullmatch(r"zipf-MinAtar-Breakout-v1-impala-\d{8}-\d{6}", folder.name)
    levels = ("--levels", f"rare,{GAMES[0]}", "--sample", "--episodes", "1")
    assert [each["info/level"] for each in evaluate_run(folder.name, "--root", tmp_path, *levels)] == [1.0, 0.0]
