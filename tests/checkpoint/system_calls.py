"""Kills a process at one of its system calls: before it is made, or when it has been made."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200  # linux/ptrace.h
_SYSGOOD = 1  # a stop at a system call is told apart from a signal by bit 7

_libc = ctypes.CDLL(None, use_errno=True)


def killed_at(stop: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a forked process and kill it at its stop number ``stop``, from 1 on.

    Each system call has two stops, one before and one after it. Returns False when the process
    ended before it came to that stop.
    """
    child = os.fork()
    if child == 0:
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSTOPPED(status), "a traced process stops where it asks to"
    _ptrace(_SETOPTIONS, child, _SYSGOOD)
    for _ in range(stop):
        _ptrace(_SYSCALL, child)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
        assert os.WIFSTOPPED(status)
        assert os.WSTOPSIG(status) == signal.SIGTRAP | 0x80, "nobody sends it signals"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _ptrace(request: int, process: int, data: int = 0) -> None:
    if _libc.ptrace(request, process, None, ctypes.c_void_p(data)) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")
