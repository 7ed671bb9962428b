"""More load than a run can take, in small, and names of servers that resolve to other addresses, or to none.

`beast chaos network` does it with more actors and for longer. Time-outs are short here.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.chaos.short_timeouts_service import shorten_timeouts
from zerobeast.common.process.roles import SERVERS
from zerobeast_tools.chaos import network_names
from zerobeast_tools.chaos.network_faults import NetworkTrial
from zerobeast_tools.chaos.network_load import ignore_replies, mix_speeds, overload_learner
from zerobeast_tools.chaos.network_names import NamedRun, forget_names, move_name


@pytest.mark.parametrize(
    "trial",
    [
        partial(overload_learner, actors=4, seconds=3.0),
        partial(ignore_replies, seconds=2.0),
        partial(mix_speeds, seconds=3.0),
    ],
    ids=["more actors than the learner keeps up with", "clients that never read", "slow environments"],
)
def test_load_neither_starves_anyone_nor_lets_anything_grow(trial: Callable[[Path], NetworkTrial]) -> None:
    with tempfile.TemporaryDirectory(prefix="beast-") as folder:  # whose path is short enough for sockets
        assert not trial(Path(folder)).trouble


@pytest.fixture(scope="module")
def run() -> Iterator[NamedRun]:
    shorter = patch.multiple(network_names, LOOKUPS_PER_S=5.0, STAY_S=6.0, SLOW_S=1.2)
    with tempfile.TemporaryDirectory() as folder, shorter, shorten_timeouts(2.5), NamedRun(Path(folder)) as run:
        yield run


def test_names_that_do_not_resolve_for_a_while_disturb_no_service(run: NamedRun) -> None:
    assert not forget_names(run).trouble


@pytest.mark.parametrize("role", SERVERS)
def test_a_server_is_found_at_its_new_address_once_the_old_one_is_gone(run: NamedRun, role: str) -> None:
    assert not move_name(run, role).trouble
