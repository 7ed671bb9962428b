"""Nothing is measured by the wall clock, which people and time servers set forward and back."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL = re.compile(
    r"\btime\.(time|time_ns|localtime|gmtime)\(|\b(datetime|date)\.(now|utcnow|today)\(|from time import.*\btime\b"
)
#: times that people read and nothing is computed from: of a point in TensorBoard, in the name of a run, in a journal;
#: the order of requests that several machines make; and the notes of a fake service, which a test compares within one
SHOWN = {
    *("common/files/event_file.py", "common/files/requests.py", "tools/chaos/network_service.py"),
    *("zerobeast/cli/slurm.py", "zerobeast/cli/runs.py", "zerobeast/cli/train.py", "zerobeast/api/train.py"),
    *("zerobeast/launcher/start.py", "zerobeast/sweeping/journal.py", "zerobeast/sweeping/runner.py"),
}


def test_only_what_people_read_comes_from_the_wall_clock() -> None:
    folders = ("common", "rl", "services", "tools", "zerobeast")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {str(path.relative_to(ROOT)) for path in files if WALL.search(path.read_text())} == SHOWN
