"""Names of servers resolve to other addresses, or to none, under a run whose time-outs are short."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.chaos.hurried_service import hurried
from zerobeast.common.process.roles import SERVERS
from zerobeast_tools.chaos import network_names
from zerobeast_tools.chaos.network_names import NamedRun, forget, move


@pytest.fixture(scope="module")
def run() -> Iterator[NamedRun]:
    shorter = patch.multiple(network_names, LOOKUPS_PER_S=5.0, STAY_S=6.0, SLOW_S=1.2)
    with tempfile.TemporaryDirectory(prefix="beast-") as folder, shorter, hurried(2.5), NamedRun(Path(folder)) as run:
        yield run


def test_names_that_do_not_resolve_for_a_while_disturb_no_service(run: NamedRun) -> None:
    assert not forget(run).trouble


@pytest.mark.parametrize("role", SERVERS)
def test_a_server_is_found_at_its_new_address_once_the_old_one_is_gone(run: NamedRun, role: str) -> None:
    assert not move(run, role).trouble
