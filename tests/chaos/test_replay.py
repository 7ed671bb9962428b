"""Replays whose process is killed while it inserts, and replays on a full disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.conftest import Note
from tests.chaos.learner_on_a_small_disk import OWN_DISK
from tests.helpers import ROOT, finished, python

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("kills", "how"), [(200, []), (100, ["--zstd"])], ids=["raw", "zstd"])
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


@pytest.mark.parametrize("how", ["", "--zstd"], ids=["raw", "zstd"])
def test_a_full_disk_is_reported_in_a_sentence_and_harms_no_inserted_rows(tmp_path: Path, how: str) -> None:
    killer = f"{sys.executable} -m tests.chaos.replay_killer {tmp_path} --full {how}"
    command = f"mount -t tmpfs -o size=2m none {tmp_path} && exec {killer}"
    if subprocess.run([*OWN_DISK, f"mount -t tmpfs none {tmp_path}"], check=False).returncode:
        pytest.skip("this system allows no mounts")
    done = subprocess.run([*OWN_DISK, command], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert "is in memory (tmpfs)" in said["in memory"]
    assert "lower replay_size" in said["too large"]
    assert said["full"].endswith("No space left on device")
    assert said["ballast"] == "No space left on device"
    assert int(said["size"]) > 0
    if how:
        assert said["inserted"].endswith("cannot hold more frames: No space left on device")
        assert said["found"] == "3", "once there is room again"
