"""Replays whose process is killed while it inserts."""

import json
from pathlib import Path

import pytest

from tests.chaos.conftest import Note
from tests.helpers import finished, python

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("kills", "how"), [(120, []), (60, ["--zstd"])], ids=["raw", "zstd"])
def test_every_row_that_was_inserted_outlives_a_kill_at_any_moment(
    tmp_path: Path, note: Note, kills: int, how: list[str]
) -> None:
    code, out, error = finished(python("-m", "tests.chaos.replay_killer", tmp_path, "--kills", str(kills), *how))
    assert code == 0, error
    seen = json.loads(out)
    assert seen["messages"] > 0
    assert seen["in the middle of a row"] > 0
    assert seen["in the middle of a message"] > 0
    note("the learner is killed while it inserts into a replay", times=kills)
