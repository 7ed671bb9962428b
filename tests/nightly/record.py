"""When `make nightly` last passed, and on which commit: `python -m tests.nightly.record [--passed]`."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.helpers import ROOT

FILE = ROOT / "build" / "nightly.json"


def commit() -> str:
    """What is checked out; `+` if something has been changed."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout.strip() or "unknown"


def passed(file: Path = FILE) -> None:
    """Note that all has passed now, with what is checked out."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"commit": commit(), "at": datetime.now(UTC).isoformat(timespec="minutes")}) + "\n")


def last(file: Path = FILE) -> str:
    """One line that says when that was."""
    if not file.exists():
        return "nightly tests have never passed in this folder"
    noted = json.loads(file.read_text())
    return f"nightly tests last passed on {noted['at']}, at commit {noted['commit']}; this is {commit()}"


if __name__ == "__main__":
    if "--passed" in sys.argv[1:]:
        passed()
    sys.stdout.write(f"{last()}\n")
