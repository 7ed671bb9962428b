"""When `make nightly` last passed, and on which commit: `python -m tests.nightly.record [--passed]`."""

import subprocess
import sys
from datetime import UTC, datetime

from tests.helpers import ROOT

FILE = ROOT / "build" / "nightly.txt"


def commit() -> str:
    """What is checked out; `+` if something has been changed."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout.strip() or "unknown"


if __name__ == "__main__":
    if "--passed" in sys.argv[1:]:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(f"on {datetime.now(UTC).isoformat(timespec='minutes')}, at commit {commit()}\n")
    last = FILE.read_text().strip() if FILE.exists() else "in no run in this folder"
    sys.stdout.write(f"nightly tests last passed {last}; this is {commit()}\n")
