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
    """Write dump and stacks of this process into the vault ``folder``; each file whole or not.

    Where that fails, nothing is left: an answer to an earlier suspicion is not one to this.
    """
    dump_path = vault.dump_path(folder, wid, generation)
    stacks_path = vault.stacks_path(folder, wid, generation)
    try:
        dump = _dump_fr_trace(
            includeCollectives=True,
            includeStackTraces=False,
            onlyActive=False,
            backend=_RECORDERS[backend],
        )
        _temporary(dump_path).write_bytes(dump)
        os.replace(_temporary(dump_path), dump_path)
        with open(_temporary(stacks_path), "w") as file:
            file.write(f"main thread 0x{threading.main_thread().ident:016x}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        os.replace(_temporary(stacks_path), stacks_path)
    except BaseException:
        for path in (dump_path, stacks_path):
            path.unlink(missing_ok=True)
            _temporary(path).unlink(missing_ok=True)
        raise


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")
