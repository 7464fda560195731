"""What a worker leaves for a post-mortem, on request, from outside its training thread.

The side thread writes the flight recorder's dump and the stacks of all threads into the vault. Call
sites are left out of the dump: the first time that torch 2.15.0 makes them readable takes up to ten
seconds. The interpreter lock is held meanwhile, so the cost grows with the recorder's buffer.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path

from torch._C._distributed_c10d import _dump_fr_trace

from keepstep.runtime import vault

_RECORDERS = {"gloo": "gloo", "nccl": "nccl2"}


def testify(folder: Path, wid: int, generation: int, backend: str) -> None:
    """Write dump and stacks of this process into the vault ``folder``; each file whole or not."""
    dump = _dump_fr_trace(
        includeCollectives=True,
        includeStackTraces=False,
        onlyActive=False,
        backend=_RECORDERS[backend],
    )
    path = vault.dump_path(folder, wid, generation)
    _temporary(path).write_bytes(dump)
    os.replace(_temporary(path), path)
    path = vault.stacks_path(folder, wid, generation)
    with open(_temporary(path), "w") as file:
        file.write(f"main thread 0x{threading.main_thread().ident:016x}\n")
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
    os.replace(_temporary(path), path)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")
