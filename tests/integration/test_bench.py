"""A benchmark of one plane runs and reports figures; tests/nightly has the others."""

import json
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from zerobeast.common.errors import BeastError
from zerobeast.tools import bench
from zerobeast.tools.bench.processes import Processes


def exit_3(_pipe: Connection) -> None:
    raise SystemExit(3)


def test_a_plane_has_figures(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert bench.main(["steps", "--seconds", "0.1", "--json", str(path)]) == 0
    assert [entry["value"] > 0 for entry in json.loads(path.read_text())["figures"]] == [True]


def test_a_process_that_ends_early_is_noticed() -> None:
    with Processes() as peers, pytest.raises(BeastError):
        peers.start(exit_3).hear()
