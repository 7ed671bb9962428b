"""Kills a writer of checkpoints before every system call of a write, by ptrace and without strace, and checks the rest.

    python -m tests.chaos.checkpoint_killer FOLDER

Prints how many calls there were as JSON; a failed assertion ends it with a traceback. It is a process of its own,
because it forks and pytest has threads.
"""

import ctypes
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zerobeast.common.files import run_files
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT, Checkpoints
from zerobeast.services.learner.folder import claim

TRACEME, SYSCALL, SETOPTIONS = 0, 24, 0x4200
SYSGOOD, EXITKILL = 1, 1 << 20
SYSCALL_STOP = signal.SIGTRAP | 0x80


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long

FLOATS = 100_000
ENTRY_NAMES = ("learning", "counters", "config", "env", "policy", "rng", "statistics", "rollouts")
ENTRIES: dict[str, Any] = {key: {} for key in ENTRY_NAMES}


def state(number: int) -> dict[str, Any]:
    """A checkpoint that can be told from every other."""
    return {"format": CHECKPOINT_FORMAT, "model": {"w": torch.full((FLOATS,), float(number))}, "n": number, **ENTRIES}


def newest(folder: Path) -> int:
    """The number of the newest whole checkpoint, 0 if there is none."""
    loaded = Checkpoints(folder).load()
    if loaded is None:
        return 0
    assert torch.equal(loaded["model"]["w"], torch.full((FLOATS,), float(loaded["n"])))
    return int(loaded["n"])


def write_checkpoints(folder: Path, *numbers: int) -> Checkpoints:
    """Make a folder and write these checkpoints to it, one after the other."""
    folder.mkdir()
    checkpoints = Checkpoints(folder)
    for number in numbers:
        checkpoints.save(state(number))
    return checkpoints


def at_every_call(root: Path, before: tuple[int, ...], *, spoilt: bool) -> int:
    """Write a checkpoint on top of others, killed before each system call in turn; returns how many there are."""
    for number in itertools.count():
        folder = root / f"{len(before)}{spoilt}{number}"
        write_checkpoints(folder, *before)
        (folder / run_files.CONFIG).touch()
        if spoilt:
            os.truncate(folder / run_files.CHECKPOINT, 1000)
        old = newest(folder)
        new = max(before, default=0) + 1

        def write(folder: Path = folder, new: int = new) -> None:
            with claim(folder):
                checkpoints = Checkpoints(folder)
                checkpoints.load()
                checkpoints.save(state(new))

        killed = killed_before_call(write, number)
        assert newest(folder) in ((old, new) if killed else (new,)), f"call {number}: {newest(folder)}"
        write(new=new + 1)
        assert newest(folder) == new + 1
        left = {path.name for path in folder.iterdir() if not path.name.startswith(".learner")}
        assert left <= {run_files.CONFIG, run_files.CHECKPOINT, run_files.PREVIOUS_CHECKPOINT}, left
        assert run_files.PREVIOUS_CHECKPOINT in left or new == 1, "there is a predecessor"
        if not killed:
            return number
    raise AssertionError


def killed_before_call(act: Callable[[], None], number: int) -> bool:
    """Run `act` in a fork of this process and kill the fork before its system call `number`, counted from 0.

    Returns:
      False if `act` finished before that call.
    """
    pid = os.fork()
    if pid == 0:
        _ptrace(TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        act()
        os._exit(0)
    os.waitpid(pid, 0)
    _ptrace(SETOPTIONS, pid, SYSGOOD | EXITKILL)
    stops, passed_on = 0, 0
    while True:
        _ptrace(SYSCALL, pid, passed_on)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            assert os.waitstatus_to_exitcode(status) == 0, f"ended with {os.waitstatus_to_exitcode(status)}"
            return False
        passed_on = 0 if os.WSTOPSIG(status) == SYSCALL_STOP else os.WSTOPSIG(status)
        if passed_on:
            continue
        stops += 1
        if stops == 2 * number + 1:  # each call stops twice, the first time before anything has happened
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)  # a fork lacks the other threads, and would wait for them
    calls = {
        "first": at_every_call(folder, (), spoilt=False),
        "later": at_every_call(folder, (1, 2), spoilt=False),
        "after damage": at_every_call(folder, (1, 2), spoilt=True),
    }
    sys.stdout.write(json.dumps(calls) + "\n")


if __name__ == "__main__":
    main()
