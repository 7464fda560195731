"""Adds lines to the ledger of a run until it is killed or done; prints each when it is there.

A script for tests of several writers: ``python ledger_writer.py RUN NAME COUNT``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from keepstep.checkpoint.ledger import ledger_of
from keepstep.checkpoint.store import LocalStore

if __name__ == "__main__":
    root, name, count = sys.argv[1:]
    ledger = ledger_of(LocalStore(Path(root)))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(count)):
        with ledger.writing() as pen:
            pen.add("note", name=name, number=number, filling="x" * 5000)
        print(number, flush=True)
