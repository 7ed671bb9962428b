"""More load than a run can take, in small: `beast chaos network` does it with more actors and for longer."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerobeast.tools.chaos.network_load import crowd, deaf, mixed


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="beast-") as name:
        yield Path(name)


def test_more_actors_than_the_learner_keeps_up_with_are_all_served_and_nothing_grows(folder: Path) -> None:
    assert not crowd(folder, actors=4, seconds=3.0).trouble


def test_clients_that_never_read_are_dropped_and_disturb_no_other(folder: Path) -> None:
    assert not deaf(folder, seconds=2.0).trouble


def test_slow_environments_neither_starve_nor_delay_others(folder: Path) -> None:
    assert not mixed(folder, seconds=3.0).trouble
