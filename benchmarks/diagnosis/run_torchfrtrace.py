"""Run torchfrtrace on a folder whose files are listed in a given order: ORDER FOLDER.

It takes files in the order in which the file system lists them, which differs between file systems
and which no option sets. A script, not a module of the benchmark: torch is all that it imports.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from torch.distributed.flight_recorder.fr_trace import main

ORDER, FOLDER = sys.argv[1:]
real_walk = os.walk


def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
    for folder, folders, names in real_walk(top):
        names.sort(key=lambda name: int(re.findall(r"\d+", name)[-1]))
        if ORDER == "descending":
            names.reverse()
        elif ORDER == "rotated":
            names = names[len(names) // 2 :] + names[: len(names) // 2]
        yield folder, folders, names


os.walk = walk  # type: ignore[assignment]
# Without it a folder in which a dump is missing is refused; with all there it changes nothing.
main(["--allow-incomplete-ranks", FOLDER])
