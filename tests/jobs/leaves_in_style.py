"""A script that leaves work for the end of its process: a thread, an exit handler, a text."""

from __future__ import annotations

import atexit
import sys
import threading
import time

import torch.distributed as dist


def wait_in_native_code() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    while True:
        store.check(["never"])  # releases the interpreter lock and takes it again, all the time


def say_late() -> None:
    time.sleep(0.2)
    print("a thread finished", flush=True)


atexit.register(lambda: print("an exit handler ran"))  # not flushed here
for _ in range(4):
    threading.Thread(target=wait_in_native_code, daemon=True).start()
threading.Thread(target=say_late).start()
sys.exit(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
