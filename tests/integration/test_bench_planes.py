"""The benchmarks of the planes run and report figures. Speed is not checked: a test run is no measurement."""

import json
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from zerobeast.common.errors import BeastError
from zerobeast.tools import bench
from zerobeast.tools.bench.figures import Figure
from zerobeast.tools.bench.processes import Processes

FIGURES = {
    "broker": {"agent steps/s": 2, "us/agent step": 2},  # with a stack of frames and without
    "steps": {"us": 1},
    "rollouts": {"MB/s": 2},  # with either window
    "weights": {"ms": 1},
}


def exit_3(_pipe: Connection) -> None:
    raise SystemExit(3)


def wait_for_the_end(pipe: Connection) -> None:
    pipe.poll(None)


@pytest.mark.parametrize("command", FIGURES)
def test_every_plane_has_figures_as_text_and_json(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.tools.bench.weights.SUBSCRIBERS", 2)
    path = tmp_path / "figures.json"
    assert bench.main([command, "--seconds", "0.2", "--json", str(path)]) == 0
    assert "goal" in capsys.readouterr().out
    entries = json.loads(path.read_text())["figures"]
    units = [entry["unit"] for entry in entries]
    assert {unit: units.count(unit) for unit in units} == FIGURES[command]
    for entry in entries:
        assert tuple(entry) == Figure._fields
        assert entry["value"] > 0
        assert entry["yardstick"] is None or entry["yardstick"] > 0


def test_a_process_that_ends_early_is_named() -> None:
    with Processes() as peers:
        peer = peers.start(exit_3)
        with pytest.raises(BeastError, match=r"test_bench_planes\.exit_3 ended with code 3"):
            peer.hear()


def test_waiting_for_one_process_ends_with_another_that_it_needs() -> None:
    with Processes() as peers:
        peers.start(exit_3)
        waiting = peers.start(wait_for_the_end)
        with pytest.raises(BeastError, match=r"exit_3 ended with code 3"):
            peers.until_heard([waiting], meanwhile=lambda: time.sleep(0.01))
