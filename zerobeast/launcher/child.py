"""One child process of the launcher: how it starts, how it ends, and its log's last lines on the end."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files.regular_files import open_regular, read_last_lines
from zerobeast.common.health import status
from zerobeast.common.health.pages import fetch_announced_page
from zerobeast.common.health.status import ExitRecord
from zerobeast.common.process.endings import how_it_ended, oom_kills
from zerobeast.plan.processes import ProcessSpec

LOG_PERIOD_S = 1.0  #: between two looks at the size of a log
TURN_S = 0.05  #: how late a death or a signal is noticed
TAIL_LINES, TAIL_WIDTH = 8, 200
PAGE_LIMIT_S = 5.0
KILL_LIMIT_S = 1.0  #: SIGKILL cannot be ignored, but a process that waits for a disk dies late


class Child:
    """A process in a session of its own, so that a terminal's Ctrl-C reaches the launcher alone."""

    remote = True  #: where its page is, it has said itself; see `common.health.pages`

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.was_killed = False  #: by `kill`, because it did not stop when asked
        self.end: ExitRecord | None = None  #: how it has ended, once `poll` has seen that
        self._process: subprocess.Popen[bytes] | None = None
        self._starts, self._log_start, self._rotated = 0, 0, False
        self._oom_before: dict[str, int] = {}

    @property
    def pid(self) -> int:
        """Process id, 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def code(self) -> int | None:
        """The exit code as `poll` last found it, for threads other than the one that polls."""
        return self._process.returncode if self._process else None

    def start(self) -> None:
        """Start the process.

        Raises:
          BeastError: the system does not allow it.
        """
        self.was_killed, self.end, self._rotated, self._oom_before = False, None, False, oom_kills()
        try:
            for file in self.spec.statuses.values():
                file.unlink(missing_ok=True)
            with open_regular(self.spec.log, "ab") as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    self.spec.argv(self._starts),
                    env=dict(self.spec.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=self.spec.keep_open,
                )
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""  # empty if there is no process to be had
            raise BeastError(f"cannot start {self.spec.name}: {where}{error.strerror}") from error
        self._starts += 1
        if self.spec.log_bytes:
            threading.Thread(target=self._limit_log, args=(self._process,), daemon=True).start()

    def poll(self) -> int | None:
        """The exit code (negative: number of the signal), or None while it runs or was never started."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is not None and self.end is None:
            self._signal_group(signal.SIGKILL)  # helpers that it may have left behind
            self.end = self._its_end(code)
        return code

    def _its_end(self, code: int) -> ExitRecord:
        """How it has ended as it says, or else as seen from here, which its files then say as well."""
        files = self.spec.statuses
        if (own := status.end_of(files, self.pid)) and own.code == code:
            return own
        how = "killed by the launcher" if self.was_killed else how_it_ended(code, self._oom_before)
        end = ExitRecord("killed" if code < 0 else "crashed" if code else "stopped", how, code)
        status.record_end(files, self.pid, end)
        return end

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self.poll() is None

    @property
    def works(self) -> bool:
        """Whether it computes or waits for a disk at this moment."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.pid).status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        return False

    def page(self, role: str = "", timeout_s: float = PAGE_LIMIT_S) -> dict[str, Any]:
        """The health page of its service with a role, or of its first service; empty while it does not answer."""
        file = next((file for each, file in self.spec.statuses.items() if role in ("", each)), None)
        found = fetch_announced_page(file, timeout_s, remote=self.remote) if file else None
        return found if found and found["pid"] == self.pid else {}

    def terminate(self) -> None:
        if self._process is not None and self.running:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once, with every process that it has started."""
        if self.running:
            self.was_killed = True
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _limit_log(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread: empty the log when it is full. The process goes on writing to that file, since it appends."""
        limit = self.spec.log_bytes
        while process.returncode is None:
            time.sleep(LOG_PERIOD_S)
            with contextlib.suppress(OSError):  # somebody has removed it
                if (size := self.spec.log.stat().st_size) >= limit:
                    with open_regular(self.spec.log, "r+b") as log:
                        with contextlib.suppress(OSError), open_regular(self._older_log, "wb") as older:  # a full disk
                            log.seek(size - limit)
                            shutil.copyfileobj(log, older)
                            older.truncate(limit)  # it may have grown meanwhile
                        log.truncate(0)  # what was written since is lost
                    self._log_start, self._rotated = 0, True

    @property
    def _older_log(self) -> Path:
        return self.spec.log.with_name(f"{self.spec.log.name}.1")

    def explain(self) -> str:
        """Why it ended, in words: its own sentence, or else how, with the end of its log."""
        code, end = self.poll(), self.end
        assert code is not None and end, "it still runs"  # noqa: PT018
        if not self.spec.log.parent.exists():
            return f"the folder of the run was removed during training: {self.spec.log.parents[1]}"
        if end.state == "failed":
            return end.sentence + f" ({self.spec.name} ended with exit code {code})" * (code != ConfigError.exit_code)
        lines = (read_last_lines(self._older_log) if self._rotated else []) + read_last_lines(
            self.spec.log, self._log_start
        )
        from_outside = code == -signal.SIGKILL  # then what it logged before is no reason
        tail = "".join(f"\n  {line[:TAIL_WIDTH]}" for line in lines[-TAIL_LINES:] if not from_outside)
        how = f"was {end.sentence}" if end.state == "killed" else f"ended with exit code {code}"
        return f"{self.spec.name} {how}; its log: {self.spec.log}{tail}"


def await_end(children: Sequence[Child], limit_s: float) -> bool:
    """Wait for children to end; returns whether all have within the limit."""
    deadline = time.monotonic() + limit_s
    while any(child.running for child in children):
        if time.monotonic() > deadline:
            return False
        time.sleep(TURN_S)
    return True


def stop(children: Sequence[Child], limit_s: float) -> None:
    """Ask children to stop, and kill those that still run after the limit."""
    for child in children:
        child.terminate()
    await_end(children, limit_s)
    for child in children:
        child.kill()
    await_end(children, KILL_LIMIT_S)
