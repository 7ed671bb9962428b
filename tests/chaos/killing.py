"""Kills a process before any of its system calls, by ptrace and without strace."""

import ctypes
import os
import signal
from collections.abc import Callable

TRACEME, SYSCALL, SETOPTIONS = 0, 24, 0x4200
SYSGOOD, EXITKILL = 1, 1 << 20
SYSCALL_STOP = signal.SIGTRAP | 0x80


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


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
