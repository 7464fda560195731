"""Damages dumps at random and reads them: nothing may be executed and nothing may be raised.

    python -m tests.fuzz_recorder --inputs 1000000

Inputs that reach a line of the recorder that none reached before are kept and damaged further. All
is done in this process, which gives up most of its memory first; a file that ends a process is what
tests/recorder/test_hostile.py is about.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import keepstep.recorder
from keepstep.recorder import shape
from keepstep.recorder.build import Builder
from keepstep.recorder.plain import RefusedError
from tests.recorder.writing import VERSIONS, as_json, as_pickle, as_version, dump, row

PACKAGE = str(Path(keepstep.recorder.__file__).parent)
DATA = Path(__file__).parent / "data" / "recorder"
MEMORY = 1 << 30  # bytes that this process may use beyond what it has
TRACED = 20  # every so manieth input is watched for new lines: watching is slow

# Pieces that mean something to a reader of pickles or JSON.
PIECES = (
    *(b"cos\nsystem\n", b"cbuiltins\neval\n", b"R", b"b", b"o", b"ios\nsystem\n", b"\x93", b"\x81"),
    *(b"}", b"]", b"(", b")", b"t", b"u", b"e", b"a", b"s", b"0", b"1", b"2", b".", b"N", b"\x88"),
    *(b"K\xff", b"M\xff\xff", b"J\xff\xff\xff\xff", b"q\x00", b"h\x00", b"r\xff\xff\x01\x00"),
    *(
        b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"G\x7f\xf8\0\0\0\0\0\0",
        b"X\x01\0\0\0\xff",
    ),
    *(b"\x85", b"\x86", b"\x87", b"\x8f", b"\x90", b"\x91", b"\x94", b"\x96\x10\0\0\0\0\0\0\0"),
    *(b"null", b"NaN", b"1e999", b"-1", b'"\\ud800"', b"[]", b"{}", b'"entries":', b"9" * 30),
)


def seeds() -> list[bytes]:
    """Return real dumps and small synthetic ones of every format."""
    rows = [
        row(0),
        row(1, profiling_name="nccl2:send 0->1", is_p2p=True, state="scheduled", duration_ms=1.5),
        row(2, time_discovered_started_ns=None, input_sizes=[[1, 2], []]),
    ]
    found = [as_pickle(as_version(dump(rows), version)) for version in VERSIONS]
    found += [as_json(dump(rows)), pickle.dumps(dump(rows), 4)]
    real = sorted(path for path in DATA.glob("*/*") if path.is_file())
    return found + [path.read_bytes() for path in real[:: max(1, len(real) // 12)]]


def damaged(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with one to four faults."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        match rng.randrange(8):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + rng.randrange(1, 64)]
            case 4:
                changed[at:at] = rng.choice(PIECES)
            case 5:
                piece = rng.choice(PIECES)
                changed[at : at + len(piece)] = piece
            case 6:
                start = rng.randrange(len(other)) if other else 0
                changed[at:at] = other[start : start + rng.randrange(1, 256)]
            case _:
                end = at + rng.randrange(1, 256)
                changed[at:at] = changed[at:end]
    return bytes(changed)


def try_one(data: bytes) -> str:
    """Return what became of the input; whatever is raised besides a refusal is a fault."""
    try:
        found = Builder().dump(shape.table(data))
    except RefusedError as refusal:
        if not refusal.text.isprintable():
            raise AssertionError(f"a text that cannot be printed: {refusal.text!r}") from refusal
        return refusal.code
    hash(found.entries)
    repr(found)
    return "read"


Lines = set[tuple[str, int]]


@contextmanager
def watched(lines: Lines) -> Iterator[None]:
    """Collect the lines of the recorder that run."""

    def in_function(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return in_function

    sys.settrace(in_function)
    try:
        yield
    finally:
        sys.settrace(None)


def fuzz(inputs: int, seed: int, progress: Callable[[str], None] = lambda _: None) -> Counter[str]:
    """Try damaged dumps; return how many met which end.

    Raises:
        AssertionError: an input was executed or made the reader raise; its bytes are in the text.
    """
    rng = random.Random(seed)
    corpus = seeds()
    reached: Lines = set()
    ends: Counter[str] = Counter()
    executed: list[str] = []
    for data in (*corpus, b"[[", b"{}", b"text"):  # what reading itself imports, it imports now
        try_one(data)
    _watch_for_execution(executed)
    began = time.monotonic()
    for number in range(inputs):
        data = damaged(rng.choice(corpus), rng.choice(corpus), rng)
        try:
            if number % TRACED:
                ends[try_one(data)] += 1
            else:
                lines: Lines = set()
                with watched(lines):
                    ends[try_one(data)] += 1
                if not lines <= reached and len(data) < 20_000:
                    corpus.append(data)
                reached |= lines
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}: {error!r}: {data!r}") from error
        if executed:
            raise AssertionError(f"input {number} of seed {seed} ran {executed}: {data!r}")
        if number and number % 10_000 == 0:
            rate = number / (time.monotonic() - began)
            progress(f"{number} inputs, {rate:.0f}/s, {len(reached)} lines, {dict(ends)}")
    return ends


_EVENTS = (
    *("os.", "subprocess.", "socket.", "shutil.", "exec", "compile", "open", "import"),
    "pickle.find_class",
)


def _watch_for_execution(executed: list[str]) -> None:
    """Note every event of Python's audit that reading does not cause."""

    def note(event: str, _: tuple[Any, ...]) -> None:
        if event.startswith(_EVENTS):
            executed.append(event)

    sys.addaudithook(note)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    limit_memory()
    print(f"seed {options.seed}", flush=True)
    ends = fuzz(options.inputs, options.seed, lambda text: print(text, flush=True))
    print(f"{options.inputs} inputs, no fault: {dict(ends)}")


def limit_memory() -> None:
    """Let a damaged pickle that asks for much memory fail at once."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY, hard))


if __name__ == "__main__":
    main()
