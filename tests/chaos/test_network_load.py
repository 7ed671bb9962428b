"""More load than a run can take, in small: `beast chaos network` does it with more actors and for longer."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from zerobeast_tools.chaos.network_faults import NetworkTrial
from zerobeast_tools.chaos.network_load import crowd, deaf, mixed


@pytest.mark.parametrize(
    "trial",
    [partial(crowd, actors=4, seconds=3.0), partial(deaf, seconds=2.0), partial(mixed, seconds=3.0)],
    ids=["more actors than the learner keeps up with", "clients that never read", "slow environments"],
)
def test_load_neither_starves_anyone_nor_lets_anything_grow(trial: Callable[[Path], NetworkTrial]) -> None:
    with tempfile.TemporaryDirectory(prefix="beast-") as folder:  # whose path is short enough for sockets
        assert not trial(Path(folder)).trouble
