"""One child process at a time, its output in a file, and nothing of it left when it is over.

Packages start daemons in sessions of their own, so every process of a run is known by a variable that it inherits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from zerobeast.common.errors import BeastError
from zerobeast.launcher.child import signal_name

STOP_LIMIT_S = 15.0  #: between the request to stop and the end by force
TIDY_LIMIT_S = 3.0  #: for daemons that clear away shared memory once the others are gone
SENTENCE_WIDTH = 160
MARK = "BEAST_BENCH_CHILD"  #: variable that only the processes of one run have in common


class PeerFailed(BeastError):
    """A peer could not be installed or run; its text goes into the table."""


def run(
    command: Sequence[str],
    log: Path,
    limit_s: float,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """Run `command` to its end and return what it wrote.

    Args:
      command: argv.
      log: file that stdout and stderr are written to.
      limit_s: how long it may take.
      environ: variables that it gets besides ours.
      folder: where it runs; here without one.

    Raises:
      PeerFailed: it could not be started, took too long or ended with an error.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**_own_environ(), **(environ or {}), MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise PeerFailed(f"cannot start {command[0]}: {error.strerror}") from error
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"not done after {limit_s:.0f} s; its log: {log}") from error
    finally:
        _end(process, f"{MARK}={mark}")
    text = log.read_text(errors="replace")
    if code != 0:
        how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        raise PeerFailed(f"{how}: {_last_line(text)}; its log: {log}")
    return text


def _own_environ() -> dict[str, str]:
    """Our variables without those that would lead another virtual environment to our packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Stop it where it still runs, then whatever carries its mark."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
    finally:  # a second Ctrl-C comes while it waits
        _kill([process.pid])
        process.wait()
        deadline = time.monotonic() + TIDY_LIMIT_S
        while (groups := _groups(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        _kill(groups)


def _kill(groups: Iterable[int]) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _groups(mark: str) -> set[int]:
    """The process groups of all that carry the mark. Only Linux tells; elsewhere the first group is all we end."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(os.getpgid(int(entry.name)))
    return found - {os.getpgrp()}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:SENTENCE_WIDTH] if lines else "it said nothing"
