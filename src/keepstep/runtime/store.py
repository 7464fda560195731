"""The job's key-value store, a TCPStore in a process of its own: no rank takes it along."""

from __future__ import annotations

import sys
import threading

from keepstep.parent import die_with_parent


def main() -> None:
    """Serve on the address in argv[1] until killed; print the port."""
    die_with_parent()
    import torch.distributed as dist

    store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
