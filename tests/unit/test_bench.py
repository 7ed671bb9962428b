"""`beast bench` without its long runs: its commands, how a figure is judged, and which policy acts in a lagging run."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.build.batches import VECTORS
from zerobeast.common.config.load import load
from zerobeast.common.errors import ConfigError
from zerobeast.rl.nets.weights import flatten
from zerobeast.tools import bench
from zerobeast.tools.bench import all as report
from zerobeast.tools.bench import peers
from zerobeast.tools.bench.episodic import Seen, judged
from zerobeast.tools.bench.figures import Goal, figure
from zerobeast.tools.bench.in_process import InProcess
from zerobeast.tools.bench.memory import growth
from zerobeast.tools.bench.peers import PeerFailed, Row, installation, parse_line
from zerobeast.tools.bench.peers.catalogue import OURS, WORKS
from zerobeast.tools.bench.peers.runners.meter import Meter
from zerobeast.tools.bench.replay import measure
from zerobeast.tools.bench.stale_report import SeedRun

LAG, UPDATES = 2, 5


def test_every_command_exists_and_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, meaning in bench.COMMANDS.items():
        assert meaning in text
        assert callable(import_module(f"zerobeast.tools.bench.{name}").main)
    assert bench.main(["setps"]) == 2


@pytest.mark.parametrize(
    ("goal", "value", "yardstick", "met"),
    [
        (Goal("<=", 60), 60.0, None, True),
        (Goal(">=", 100_000), 99_999.0, None, False),
        (Goal("<=", 6, of_ratio=True), 60.0, 10.0, True),
        (Goal(">=", 0.35, of_ratio=True), 3.0, 10.0, False),
        (Goal("<=", 6, of_ratio=True), 1.0, None, None),
    ],
)
def test_a_figure_is_judged_by_its_goal(goal: Goal, value: float, yardstick: float | None, met: bool | None) -> None:
    assert figure("it", value, "us", goal, yardstick).met is met


def test_growth_of_memory_is_the_slope_after_settling() -> None:
    settling = [(minute / 10, 50.0 + 3 * minute) for minute in range(100)]
    steady = [(10 + minute / 10, 350.0) for minute in range(200)]
    assert growth(settling + steady)["mib_per_hour"] == pytest.approx(0.0, abs=1e-6)
    leaking = [(minute / 10, 100.0 + minute / 10) for minute in range(300)]
    assert growth(leaking)["mib_per_hour"] == pytest.approx(60.0)


def test_a_report_of_all_names_the_commands_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.run", lambda argv, **_: SimpleNamespace(returncode=1))
    assert report.main(["--short"]) == 1
    assert "beast bench weights: failed" in capsys.readouterr().out


def test_a_replay_has_figures_and_leaves_no_files(tmp_path: Path) -> None:
    config = load(["--env", "CartPole-v1", "--root", str(tmp_path), "--actor.envs_per_group", "2"], {})
    found = measure(config, 0.01, stored=400, played=120)
    assert all(each.value > 0 and each.yardstick for each in found)
    assert list(tmp_path.iterdir()) == []


def test_the_policy_that_acts_is_that_of_lag_updates_ago_and_a_seed_decides_every_number() -> None:
    sizes = ["--learner.unroll_length", "10", "--learner.batch_size", "4", "--net.hidden_size", "8"]
    config = load(["--env", "CartPole-v1", "--algo", "impala", "--total_steps", str(UPDATES * 40), *sizes], {})

    def trained() -> tuple[list[bytes], bytes]:
        rollouts = []
        with InProcess(config, LAG) as run:
            while run.trainer.steps_left:
                rows = run.collect()
                assert (rows["policy_version"] == max(0, len(rollouts) - LAG)).all()
                rollouts.append(rows.tobytes())
                run.learn(rows)
            return rollouts, flatten(run.trainer.net).tobytes()

    first, again = trained(), trained()
    assert len(first[0]) == UPDATES
    assert first == again


def test_a_curve_is_judged_by_its_best_its_end_and_when_it_reached_the_goal() -> None:
    def judged(*values: float) -> SeedRun:
        curve = [(1000 * (n + 1), value) for n, value in enumerate(values)]
        return SeedRun.of("impala", 1, curve, goal=100.0, diverged=False, rate=5000.0)

    found = judged(20.0, 120.0, 200.0, 101.0)
    assert (found.best, found.last, found.reached, found.collapsed) == (200.0, 101.0, 2000, False)
    assert judged(20.0, 200.0, 99.0).collapsed
    assert judged(20.0, 90.0).reached is None


def test_peers_have_a_script_and_exact_versions() -> None:
    for peer in (peer for work in WORKS.values() for peer in work.peers):
        assert (peers.RUNNERS / peer.runner.split()[0]).is_file()
        assert all(package.count("==") == 1 for package in peer.packages)
    with pytest.raises(ConfigError):
        peers.main(["--only", "sb4"])


def test_a_meter_measures_between_its_warm_up_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0
    meter = Meter(warmup_s=10, seconds=60, clock=lambda: now)
    for now, steps in [(0, 0), (100, 50), (110, 150), (169, 800), (170, 1350)]:
        assert meter.saw(steps) == (now == 170)
    meter.report("1.2")
    assert parse_line(f"a warning\n{capsys.readouterr().out}bye\n") == (20.0, "1.2")
    with pytest.raises(PeerFailed):
        parse_line("Fps is 0.0\n")


def test_ours_is_compared_with_each_peer_though_one_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_venv(*_: object) -> None:
        raise PeerFailed("no network")

    ours = Row(peer=OURS, version="0", settings="all services", rate=1000.0)
    slow = Row(peer="sb3", version="2", settings="A2C", rate=500.0)
    assert [each.ratio for each in peers.figures([slow, ours], WORKS["pong"])] == [2.0, None]
    monkeypatch.setattr(installation, "run", no_venv)
    monkeypatch.setattr(peers, "measure_ours", lambda *_: ours)
    out = tmp_path / "result.json"
    assert peers.main(["--only", "sb3,zerobeast", "--venvs", str(tmp_path / "venvs"), "--json", str(out)]) == 1
    assert [row["rate"] for row in json.loads(out.read_text())["rows"]] == [None, 1000.0]


def test_a_signal_of_rarity_is_judged_by_the_order_of_labels_and_by_what_it_ranks_first() -> None:
    labels = np.repeat([0, 1, 2], [160, 36, 4])
    correlation, rare = judged("it", torch.from_numpy(labels / 2), Seen(VECTORS, torch.zeros(200, 1), labels))
    assert correlation.value == pytest.approx(-1)
    assert (rare.value, rare.yardstick) == (pytest.approx(20), pytest.approx(2)), "all 4 of 2 % are among the first 20"
