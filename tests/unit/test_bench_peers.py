"""`beast bench peers`: choosing peers, reading a runner's line, the clock, the table and ending a child."""

import json
import re
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers import wait_until
from zerobeast.cli import main as cli
from zerobeast.common.errors import ConfigError
from zerobeast.tools.bench import peers
from zerobeast.tools.bench.peers import Row, figures, installation, parse_line, process
from zerobeast.tools.bench.peers.catalogue import OURS, WORKS, Peer, choose
from zerobeast.tools.bench.peers.process import PeerFailed
from zerobeast.tools.bench.peers.runners.meter import Meter

PONG = WORKS["pong"]
SB3 = PONG.peer("sb3")
PEERS = [peer for work in WORKS.values() for peer in work.peers]
OUR_ROW = Row(peer=OURS, version="0", settings="all services", rate=1000.0)
FAST = Row(peer="sb3", version="2", settings="A2C", rate=500.0)
SLOW = Row(peer="rllib", version="3", settings="IMPALA", rate=400.0)
BROKEN = Row(peer="sample-factory", version="1", settings="APPO", failure="cannot be installed: no compiler")


def test_without_only_every_peer_runs_and_ours_last() -> None:
    assert choose(None, PONG) == ["sb3", "sample-factory", "rllib", OURS]
    assert choose(None, WORKS["sac"]) == ["sb3", OURS]


def test_only_chooses_in_the_order_of_the_table() -> None:
    assert choose("zerobeast, sb3", PONG) == ["sb3", "zerobeast"]


@pytest.mark.parametrize(("only", "what"), [("sb3,sb4", "unknown peer 'sb4'"), (",", "names no peer")])
def test_an_invalid_choice_is_refused_with_the_valid_names(only: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"--only: {what}; expected some of sb3, sample-factory, rllib, zerobeast"):
        choose(only, PONG)


@pytest.mark.parametrize(("flag", "value"), [("--only", "sb4"), ("--actor.envs_per_gruop", "32")])
@pytest.mark.parametrize("work", WORKS)
def test_the_command_refuses_unknown_names_in_one_line(
    capsys: pytest.CaptureFixture[str], work: str, flag: str, value: str
) -> None:
    assert cli.main(["bench", "peers", "--work", work, flag, value]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert flag in err


def test_every_peer_has_its_script_and_exact_versions() -> None:
    for peer in PEERS:
        assert (peers.RUNNERS / peer.runner.split()[0]).is_file()
        assert all(package.count("==") == 1 for package in peer.packages)


def test_a_peer_has_one_virtual_environment_for_all_works() -> None:
    def made_of(peer: Peer) -> object:
        return peer.packages, peer.rom

    assert all(made_of(one) == made_of(other) for one in PEERS for other in PEERS if one.name == other.name)


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_a_replay_agent_learns_as_often_as_its_peer(name: str) -> None:
    """Samples per agent step, from the flags and from the runner's text: the peer itself is not installed here."""
    flags = dict(zip(WORKS[name].flags[::2], WORKS[name].flags[1::2], strict=True))
    constants, *functions = (peers.RUNNERS / "sb3.py").read_text().split("\n\n\n")
    [text] = [each for each in functions if each.startswith(f"def {name}()")]
    found = re.findall(r"(\w+) ?= ?([\d_]+)\b", constants + text)
    numbers = {key: int(value.replace("_", "")) for key, value in found}
    assert numbers["batch_size"] == int(flags[f"--{name}.batch_size"])
    assert numbers["buffer_size"] == int(flags[f"--{name}.replay_size"])
    assert numbers["LEARNING_STARTS"] == int(flags[f"--{name}.replay_min_size"])
    updates = numbers.get("gradient_steps", numbers["NUM_ENVS"])
    samples = updates * numbers["batch_size"] / (numbers["train_freq"] * numbers["NUM_ENVS"])
    assert samples == float(flags[f"--{name}.samples_per_insert"])


def test_the_measurement_is_found_among_other_output() -> None:
    line = '{"agent_steps": 1200, "seconds": 10.0, "version": "2.9"}'
    measured = parse_line(f'a warning\n{{"fps": 3}}\n{line}\n[1, 2]\n7\nbye\n')
    assert measured == (120.0, "2.9")


@pytest.mark.parametrize(
    "output",
    ["", "Fps is 0.0\n", '{"agent_steps": 0, "seconds": 10.0, "version": "1"}', '{"agent_steps": null, "seconds": 1}'],
)
def test_output_without_a_measurement_is_a_failure(output: str) -> None:
    with pytest.raises(PeerFailed, match="without a measurement"):
        parse_line(output)


def test_the_meter_measures_after_a_warm_up_that_starts_with_the_first_update(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0
    meter = Meter(warmup_s=10, seconds=60, clock=lambda: now)
    for now, steps in [(0, 0), (100, 50), (109, 100), (110, 150), (169, 800), (170, 1350)]:
        over = meter.saw(steps)
        assert over == (now == 170)
    now = 180
    assert meter.saw(9999), "what comes later does not count"
    meter.report("1.2")
    assert json.loads(capsys.readouterr().out) == {"agent_steps": 1200, "seconds": 60, "version": "1.2"}


def test_ours_is_compared_with_each_peer_that_ran_and_judged() -> None:
    sb3, rllib, ours = figures([FAST, SLOW, BROKEN, OUR_ROW], PONG)
    assert (sb3.value, sb3.yardstick, sb3.ratio, sb3.met) == (1000.0, 500.0, 2.0, False)
    assert (rllib.ratio, rllib.goal, rllib.met) == (2.5, ">= 4 x", False)
    assert (ours.what, ours.value, ours.ratio) == ("zerobeast 0: all services", 1000.0, None)


def test_the_goal_is_that_of_the_work() -> None:
    sb3, _ = figures([FAST, OUR_ROW], WORKS["dqn"])
    assert (sb3.goal, sb3.met) == (">= 1.5 x", True)


def test_without_our_rate_nothing_is_compared() -> None:
    failed = Row(peer=OURS, version="0", settings="all services", failure="training did not start")
    for rows in ([FAST], [FAST, failed]):
        (sb3,) = figures(rows, PONG)
        assert (sb3.what, sb3.value, sb3.ratio, sb3.goal) == ("sb3 2: A2C", 500.0, None, "")


def test_the_other_peers_still_run_if_one_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_venv(*_: object) -> None:
        raise PeerFailed("no network")

    monkeypatch.setattr(installation, "run", no_venv)
    monkeypatch.setattr(peers, "measure_ours", lambda *_: OUR_ROW)
    out = tmp_path / "result.json"
    assert peers.main(["--only", "sb3,zerobeast", "--venvs", str(tmp_path / "venvs"), "--json", str(out)]) == 1
    assert "\nsb3: cannot be installed: no network\n" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    assert [(row["rate"], row["failure"]) for row in rows] == [
        (None, "cannot be installed: no network"),
        (1000.0, None),
    ]


def test_an_existing_virtual_environment_is_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []

    def record(command: list[str], *_: object) -> str:
        commands.append(command)
        (tmp_path / "sb3").mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(installation, "run", record)
    for _ in range(2):
        python = installation.prepare(SB3, tmp_path)
    assert python == tmp_path / "sb3" / "bin" / "python"
    assert len(commands) == 3, "venv, torch, the rest; nothing the second time"


def test_a_runner_that_dies_is_named_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("zerobeast.tools.bench.peers.prepare", lambda *_: Path(sys.executable))
    monkeypatch.setattr("zerobeast.tools.bench.peers.RUNNERS", tmp_path)
    (tmp_path / SB3.runner.split()[0]).write_text("raise RuntimeError('no such game')")
    row = peers.measure_peer(SB3, tmp_path, 1.0, 1.0)
    assert row.failure == f"exit code 1: RuntimeError: no such game; its log: {tmp_path / 'sb3.log'}"


@pytest.mark.parametrize("escape", ["os.setpgid(0, 0)", "os.setsid()"])
def test_no_descendant_of_a_child_is_left_running(escape: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "TIDY_LIMIT_S", 0.0)
    grandchild = f"import os, time; {escape}; print(os.getpid(), flush=True); time.sleep(100)"
    start = f"subprocess.Popen([sys.executable, '-c', {grandchild!r}], stdout=subprocess.PIPE)"
    child = f"import subprocess, sys; print({start}.stdout.readline().decode())"
    pid = int(process.run([sys.executable, "-c", child], tmp_path / "log", 60.0))
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="not done after 0 s"):
        process.run([sys.executable, "-c", "import time; time.sleep(100)"], tmp_path / "log", 0.1)


def test_a_child_gets_no_variable_of_our_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    show = "import os; print(os.environ.get('PYTHONPATH'), os.environ['OMP_NUM_THREADS'], os.getcwd())"
    output = process.run([sys.executable, "-c", show], tmp_path / "log", 60.0, {"OMP_NUM_THREADS": "1"}, tmp_path)
    assert output.split() == ["None", "1", str(tmp_path)]
