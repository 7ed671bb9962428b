"""A game of several agents is learned through the real services, whatever becomes of its processes."""

import csv
import json
import os
import signal
from pathlib import Path

import psutil

from tests.helpers import finished, killed_at_last, python, wait_until


def test_a_game_of_two_players_trains_while_its_process_is_killed_and_is_evaluated(tmp_path: Path) -> None:
    run = ("--root", str(tmp_path), "--env", "pettingzoo/classic/connect_four_v3")
    flags = (
        "--plain --name four --total_steps 8000 --local.workers 1 --actor.envs_per_group 7 --learner.log_every_s 0.2"
    )
    process = python("-m", "zerobeast", "train", *run, *flags.split())
    metrics = tmp_path / "four" / "metrics.csv"
    with killed_at_last(process):
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, 100)
        page = json.loads((tmp_path / "four" / "services" / "envserver-0.json").read_text())
        games = [child.pid for child in psutil.Process(page["pid"]).children() if "spawn_main" in str(child.cmdline())]
        os.kill(games[0], signal.SIGKILL)
        code, out, error = finished(process)
    assert code == 0, out[-3000:] + error[-3000:]
    assert "2 agents in each environment, in all 8 in a group" in out
    logs = [log.read_text() for log in (tmp_path / "four" / "logs").iterdir()]
    assert any("a process of 4 environments" in log for log in logs), "it was killed, and replaced"
    run = ("--root", str(tmp_path), "--episodes", "3", "--json")
    code, out, error = finished(python("-m", "zerobeast", "evaluate", "four", *run))
    assert code == 0, error[-3000:]
    assert len(json.loads(out)["returns"]) == 3


def test_a_game_is_learned_against_past_versions_and_each_other_run(tmp_path: Path) -> None:
    run = ("--root", str(tmp_path), "--env", "pettingzoo/classic/tictactoe_v3", "--plain", "--local.placement", "apart")
    flags = "--name self --total_steps 12000 --env.opponent past --learner.checkpoint_every_steps 1000"
    code, out, error = finished(python("-m", "zerobeast", "train", *run, *flags.split()))
    assert code == 0, out[-3000:] + error[-3000:]
    with (tmp_path / "self" / "metrics.csv").open() as file:
        *_, last = csv.DictReader(file)
    against = [name for name in last if name.startswith("info/win.")]
    assert against, "the win rate against versions of each age"
    assert all(0 <= float(last[name]) <= 1 for name in ("info/win", *against) if last[name])
    with (tmp_path / "self" / "episodes.csv").open() as file:
        infos = [json.loads(row["infos"] or "{}") for row in csv.DictReader(file)]
    assert any(each.get("opponent", 0) >= 1000 for each in infos), "it is known of each episode"
    flags = "--name fixed --total_steps 500 --env.opponent self:best"
    code, out, error = finished(python("-m", "zerobeast", "train", *run, *flags.split()))
    assert code == 0, out[-3000:] + error[-3000:]
    other = ("--root", str(tmp_path), "--episodes", "4", "--json", "--opponent", "self")
    code, out, error = finished(python("-m", "zerobeast", "evaluate", "fixed", *other))
    assert code == 0, error[-3000:]
    assert 0 <= json.loads(out)["info/win"] <= 1
    run = ("--root", str(tmp_path), "--env", "pettingzoo/classic/rps_v2", "--plain", "--env.opponent", "self")
    code, _, error = finished(python("-m", "zerobeast", "train", *run))
    assert (code, error.count("\n")) == (2, 1), error
    assert "env.opponent self: its env_id is pettingzoo/classic/tictactoe_v3, expected" in error
