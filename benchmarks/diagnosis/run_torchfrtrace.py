"""Run torchfrtrace on folders whose files are listed in a given order.

With ORDER FOLDER as arguments it runs once, as the command does. Without, it answers requests on
standard input, one list [order, folder] a line, each in a fork of its own: importing torch takes
longer than a small case.

torchfrtrace takes files in the order in which the file system lists them; that differs between file
systems, and no option sets it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator

from torch.distributed.flight_recorder.fr_trace import main

LIMIT = 900  # seconds a request
real_walk = os.walk


def run(order: str, path: str) -> None:
    def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        for folder, folders, names in real_walk(top):
            names.sort(key=lambda name: int(re.findall(r"\d+", name)[-1]))
            if order == "descending":
                names.reverse()
            elif order == "rotated":
                names = names[len(names) // 2 :] + names[: len(names) // 2]
            yield folder, folders, names

    # os.walk has types for every kind of path; torchfrtrace walks text alone.
    os.walk = walk  # type: ignore[assignment]
    # Without it a folder in which a dump is missing is refused; with all there it changes nothing.
    main(["--allow-incomplete-ranks", path])


def answer(order: str, path: str) -> dict[str, object]:
    """Run in a fork; return its exit status and what it printed."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            signal.alarm(LIMIT)
            status = 1
            try:
                run(order, path)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, raw = os.waitpid(child, 0)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return {"status": os.waitstatus_to_exitcode(raw), "stdout": texts[0], "stderr": texts[1]}


if len(sys.argv) > 1:
    run(*sys.argv[1:])
else:
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
