"""Runs one child process at a time, with its output in a file, and leaves none of its descendants behind.

Packages start daemons in sessions of their own, so a run's processes are identified by a variable that they inherit.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from zerobeast.common.errors import BeastError
from zerobeast.common.process.endings import signal_name

STOP_LIMIT_S = 15.0  #: between SIGTERM and SIGKILL
TIDY_LIMIT_S = 3.0  #: for daemons that clear away shared memory once the others are gone
SENTENCE_WIDTH = 160
MARK = "BEAST_BENCH_CHILD"  #: environment variable whose value only the processes of one run share


class PeerFailed(BeastError):
    """A peer could not be installed or run; its text goes into the table."""


def run_child(
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
      environ: environment variables that it gets besides ours.
      folder: its working directory; ours by default.

    Raises:
      PeerFailed: it could not be started, took too long or ended with an error.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    # without the variables that would lead another virtual environment to our packages
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**ours, **(environ or {}), MARK: mark},
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
        _end(process, mark)
    text = log.read_text(errors="replace")
    if code != 0:
        how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        raise PeerFailed(f"{how}: {_last_line(text)}; its log: {log}")
    return text


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Stop the process if it still runs, then everything that carries its mark."""
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT_S)
    finally:  # a second Ctrl-C may come while it waits
        process.kill()
        process.wait()
        deadline = time.monotonic() + TIDY_LIMIT_S
        while (left := _find_marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()


def _find_marked(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark."""
    return [each for each in psutil.process_iter(["environ"]) if (each.info["environ"] or {}).get(MARK) == mark]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:SENTENCE_WIDTH] if lines else "it printed nothing"
