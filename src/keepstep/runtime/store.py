"""The job's key-value store, a TCPStore in a process of its own: no rank takes it along."""

from __future__ import annotations

import sys
import threading

from keepstep.parent import die_with_parent


def main() -> None:
    """Serve until killed: host, port and the number of a socket that listens there are given."""
    die_with_parent()
    import torch.distributed as dist

    host, port, door = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _keep(dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=door))


def _keep(served: object) -> None:
    """Wait for ever; a store serves as long as somebody refers to it."""
    threading.Event().wait()
    del served


if __name__ == "__main__":
    main()
