"""Memory of the device that the job uses, or of the process where it uses none."""

from __future__ import annotations

import sys
from typing import Any


def device_used() -> int | None:
    """Return the bytes in use on the current device, by everybody; None without one.

    It asks the driver and not torch's allocator, which knows nothing of communicators. A device
    that the job has not touched stays untouched.
    """
    cuda = _cuda()
    if cuda is None:
        return None
    free, total = cuda.mem_get_info()
    return int(total - free)


def current_device() -> str | None:
    """Return the name of the device that is set; None where the job has touched none."""
    cuda = _cuda()
    return None if cuda is None else f"cuda:{cuda.current_device()}"


def used() -> int:
    """Return the bytes in use on the device; the resident set of the process without one."""
    device = device_used()
    return device if device is not None else _status("VmRSS")


def peak(seen: int | None) -> int:
    """Return the most bytes in use so far.

    Args:
        seen: The most that was seen at earlier looks at the device.
    """
    cuda = _cuda()
    if cuda is None:
        return _status("VmHWM")
    # torch's allocator keeps what it once took, so a look now shows its peak, unless the job has
    # emptied it; its own count of reserved bytes covers that.
    return max(seen or 0, device_used() or 0, int(cuda.max_memory_reserved()))


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _status(name: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
