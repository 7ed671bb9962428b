"""Two private networks, joined by a cable that can be cut. The machine's own network does not change."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.helpers import killed_at_last, python, wait_until

TOOLS = ("unshare", "nsenter", "ip")


def explain_missing() -> str:
    """Why there can be no such networks here; empty if there can."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return tried.stderr.strip()


class Networks:
    """Networks 1 and 2, whose ends of the cable have the addresses 10.9.0.1 and 10.9.0.2."""

    def __init__(self, pids: tuple[int, int]) -> None:
        self._pids = pids
        self._ip(1, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(pids[1]))
        for number in (1, 2):
            self._ip(number, "link", "set", "lo", "up")
            self._ip(number, "addr", "add", f"10.9.0.{number}/24", "dev", "cable")
            self._ip(number, "link", "set", "cable", "up")

    def python(self, number: int, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
        """Start Python in one of them."""
        command = ("-c", "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])", *self._inside(number), sys.executable)
        return python(*command, *arguments, **options)

    def cut(self) -> None:
        self._ip(2, "link", "set", "cable", "down")

    def mend(self) -> None:
        self._ip(2, "link", "set", "cable", "up")

    def _inside(self, number: int) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._pids[number - 1]), "--net")

    def _ip(self, number: int, *arguments: str) -> None:
        subprocess.run([*self._inside(number), "ip", *arguments], check=True)


@contextmanager
def networks() -> Iterator[Networks]:
    """Two networks, which end with the processes that hold them."""
    with ExitStack() as stack:
        holders = [subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 3600"], stdout=-1) for _ in "12"]
        for holder in holders:
            stack.enter_context(killed_at_last(holder))
            assert holder.stdout is not None
            wait_until(holder.stdout.readline)  # by then its network exists
        yield Networks((holders[0].pid, holders[1].pid))
