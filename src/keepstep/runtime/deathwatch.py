"""Learn of a worker's death before the kernel has taken its memory apart.

A process descriptor (and a peer's socket) tells of a death when the memory of the process has been
freed: a tenth of a second and more for a process that has imported PyTorch. A robust mutex is
released before that. The worker's training thread holds one in shared memory for as long as it
lives; a thread of the agent waits for it and then asks the kernel whether every thread of the
process is exiting (PF_EXITING): from there no thread comes back to run another instruction of the
program. Memory on a GPU is no part of that: kernels may run until the device context is gone.

Sources: pthread_mutexattr_setrobust(3), proc_pid_stat(5) (fields 9 and 52), Linux kernel/exit.c.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable

_SIZE = 64  # bytes; a pthread_mutex_t has 40 on x86-64 and 48 on arm64
_PSHARED, _ROBUST = 1, 1  # PTHREAD_PROCESS_SHARED, PTHREAD_MUTEX_ROBUST
_PF_EXITING = 0x4
_FLAGS, _EXIT_CODE = 6, 49  # fields 9 and 52, counted from the state (field 3)
_EXITING_WITHIN = 0.05  # seconds for all threads to follow the one that held the mutex
_LOOK_AGAIN = 0.0005

_libc = ctypes.CDLL(None)


class LifeMutex:
    """A robust mutex in shared memory, held by a thread for as long as it lives."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        """Use the ``64`` bytes at ``offset`` of ``memory``, which must outlive this object."""
        self._bytes = (ctypes.c_char * _SIZE).from_buffer(memory, offset)
        self._address = ctypes.c_void_p(ctypes.addressof(self._bytes))

    def make(self) -> None:
        """Initialise it; once, by the agent, before the worker starts.

        Raises:
            OSError: the C library refused.
        """
        attributes = ctypes.create_string_buffer(_SIZE)
        _check(_libc.pthread_mutexattr_init(attributes))
        _check(_libc.pthread_mutexattr_setpshared(attributes, _PSHARED))
        _check(_libc.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _check(_libc.pthread_mutex_init(self._address, attributes))

    def hold(self) -> None:
        """Take it for the calling thread, which never gives it back."""
        _check(_libc.pthread_mutex_lock(self._address))

    def wait_for_death(self) -> bool:
        """Wait until the thread that holds it is gone; False if it was not held."""
        return bool(_libc.pthread_mutex_lock(self._address) == errno.EOWNERDEAD)


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))


def watch(mutex: LifeMutex, pid: int, on_death: Callable[[int], None]) -> None:
    """Call ``on_death(code)`` from a thread as soon as process ``pid`` can compute no more.

    ``code`` is that of ``subprocess``: negative for a signal. Nothing is called when the death
    cannot be proven; the process descriptor tells of it later.
    """

    def wait() -> None:
        if mutex.wait_for_death():
            code = _wait_until_exiting(pid)
            if code is not None:
                on_death(code)

    threading.Thread(target=wait, name=f"keepstep-death-{pid}", daemon=True).start()


def _wait_until_exiting(pid: int) -> int | None:
    until = time.monotonic() + _EXITING_WITHIN
    while time.monotonic() < until:
        code = exit_code_if_exiting(pid)
        if code is not None:
            return code
        time.sleep(_LOOK_AGAIN)
    return None


def exit_code_if_exiting(pid: int) -> int | None:
    """Return the exit code of a process all of whose threads are exiting, else None."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            flags = _stat(f"/proc/{pid}/task/{thread}/stat")
            if flags is not None and not int(flags[_FLAGS]) & _PF_EXITING:
                return None
        main = _stat(f"/proc/{pid}/task/{pid}/stat")
    except OSError:
        return None
    if not threads or main is None:
        return None
    return os.waitstatus_to_exitcode(int(main[_EXIT_CODE]))


def _stat(path: str) -> list[str] | None:
    """Return the fields from the state on; None if the thread is gone."""
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
