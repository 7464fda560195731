"""Give a million damaged and invented metadata files to the readers: each is refused or read.

    python -m benchmarks.checkpoint.fuzz [COUNT] [SEED]

Every input goes through the look at the beginning, the walk over all opcodes, the rewriting and,
where the opcodes are allowed, the unpickling into stand-ins, in this process. Anything but
``UnsafeMetadataError`` or ``CannotConvertError`` is a defect; the input is printed.
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint import limited
from keepstep.checkpoint.dropped import count_dropped
from keepstep.checkpoint.errors import CannotConvertError, UnsafeMetadataError
from keepstep.checkpoint.opcodes import check_opcodes
from keepstep.checkpoint.peek import peek
from keepstep.checkpoint.rewrite import rewrite, unframed

_SAMPLES = Path("tests/data/checkpoint")
_OPCODES = b"N\x88\x89()tb\x85\x86\x87\x94}]aesuR\x81\x930.KMJhj\x8c\x8aX\x95\x80c\x82QBC"


def mutate(sample: bytes, randomness: random.Random) -> bytes:
    """Return a damaged copy: bytes changed, cut out, doubled, or opcodes put in."""
    data = bytearray(sample)
    for _ in range(randomness.choice((1, 1, 1, 2, 4, 16))):
        at = randomness.randrange(len(data) or 1)
        kind = randomness.randrange(6)
        if kind == 0 and data:
            data[at] = randomness.randrange(256)
        elif kind == 1 and data:
            data[at] ^= 1 << randomness.randrange(8)
        elif kind == 2:
            del data[at : at + randomness.randrange(1, 40)]
        elif kind == 3:
            data[at:at] = data[at : at + randomness.randrange(1, 40)]
        elif kind == 4:
            data[at:at] = randomness.choices(_OPCODES, k=randomness.randrange(1, 6))
        else:
            del data[at:]
    return bytes(data)


def feed(data: bytes) -> str:
    """Give one input to every reader; returns how far it came."""
    reached = "refused at the first tensor"
    try:
        peek(data, data, whole=True)
        reached = "refused by the opcodes"
        check_opcodes(data)
        reached = "refused by the stand-ins"
        before = limited.load(io.BytesIO(data))
        limited.summarise(before)
        limited.place(before)
        reached = "refused by the rewriting"
        made = rewrite(data, "2.14")
        if made.only_strides:
            assert count_dropped(unframed(data), made.data) == made.strides
        after = limited.load(io.BytesIO(rewrite(data, "2.2").data))
        old, new = limited.digest(before), limited.digest(after)
        same = all(old[part] == new[part] for part in old if part != "storage_meta")
        return "read and rewritten" if same else "read; the rewriting is found to differ"
    except (UnsafeMetadataError, CannotConvertError):
        return reached
    except (TypeError, ValueError, AttributeError, KeyError, MemoryError, RecursionError):
        # What the limited process reports as damaged (limited.main); nowhere else is it in order.
        if reached in ("refused by the stand-ins", "refused by the rewriting"):
            return "refused by the limited process"
        raise


def main() -> int:
    """Run; returns 1 when a reader raised what it should not."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    randomness = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    samples = [path.read_bytes() for path in sorted(_SAMPLES.glob("*/*/.metadata"))]
    samples = [sample for sample in samples if len(sample) < 2000] + [metadata(2, 2)]
    seen: Counter[str] = Counter()
    slowest, begin = 0.0, time.perf_counter()
    for number in range(count):
        data = mutate(randomness.choice(samples), randomness)
        started = time.perf_counter()
        try:
            seen[feed(data)] += 1
        except Exception as error:
            print(f"input {number}: {type(error).__name__}: {error}\n{data!r}")
            return 1
        slowest = max(slowest, time.perf_counter() - started)
    print(f"{count:,} inputs in {time.perf_counter() - begin:.0f} s, slowest {slowest:.3f} s")
    for what, times in seen.most_common():
        print(f"  {times:>9,}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
