"""Nothing is measured by the wall clock, which people and time servers set forward and back."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}
#: times that people read and nothing is computed from: of a point in TensorBoard, in the name of a run, in a journal;
#: the order of requests that several machines make; and the notes of a fake service, which a test compares within one
SHOWN = {
    "common/files/event_file.py",
    "common/files/requests.py",
    "zerobeast/cli/slurm.py",
    "zerobeast/api/train.py",
    "zerobeast/cli/runs.py",
    "zerobeast/cli/train.py",
    "zerobeast/launcher/start.py",
    "zerobeast/sweeping/journal.py",
    "zerobeast/sweeping/runner.py",
    "tools/chaos/network_service.py",
}


def readings(path: Path) -> Iterator[str]:
    """Readings of the wall clock in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (alias.name for alias in node.names if alias.name in WALL)
        if isinstance(node, ast.Attribute) and node.attr in WALL and isinstance(node.value, ast.Name):
            if node.value.id in ("time", "datetime", "date"):
                yield f"{node.value.id}.{node.attr}"


def test_only_what_people_read_comes_from_the_wall_clock() -> None:
    folders = ("common", "rl", "services", "tools", "zerobeast")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): sorted(set(readings(path))) for path in files}
    assert {name for name, calls in found.items() if calls} == SHOWN
