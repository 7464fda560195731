"""Time and memory of the checkpoint commands on synthetic metadata, next to torch's own loading.

    python -m benchmarks.checkpoint [TENSORSxSHARDS ...] [--without-verify]

Each line is one process of its own: wall and processor time of the operation, measured inside, and
the largest resident memory of that process and of its largest child, as the kernel counted it.
``verify`` has data files too: small real zips, one a shard. On a machine with other load, compare
processor times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

from benchmarks.checkpoint.synthetic import metadata

_OPERATIONS = {
    "torch pickle.load": (
        "import pickle, torch.distributed.checkpoint",
        "with open(folder + '/.metadata', 'rb') as f: kept = pickle.load(f)",
    ),
    "readers": (
        "from keepstep.checkpoint.readers import find_readers\n"
        "from keepstep.checkpoint.store import LocalStore",
        "find_readers(LocalStore(Path(folder)))",
    ),
    "inspect": (
        "from keepstep.checkpoint.inspection import inspect_store\n"
        "from keepstep.checkpoint.store import LocalStore",
        "inspect_store(LocalStore(Path(folder)))",
    ),
    "downgrade, checked": (
        "from keepstep.checkpoint.downgrade import convert, put_in_place, undo\n"
        "from keepstep.checkpoint.store import LocalStore",
        "store = LocalStore(Path(folder))\nfor each in convert(store, '2.14'):\n"
        "    put_in_place(store, each)",
    ),
    "verify, with CRCs": (
        "from keepstep.checkpoint.verify import verify\n"
        "from keepstep.checkpoint.store import LocalStore",
        "found = verify(LocalStore(Path(folder)))\nassert found.findings == (), found.findings[0]",
    ),
}

_PROGRAM = """
import json, resource, sys, time
from pathlib import Path
folder = sys.argv[1]
{imports}
begin, started = time.perf_counter(), time.process_time()
{operation}
taken = time.perf_counter() - begin
ended = time.process_time()
children = resource.getrusage(resource.RUSAGE_CHILDREN)
# Not ru_maxrss: that of a new program begins with its parent's.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
used = ended - started + children.ru_utime + children.ru_stime
print(json.dumps([taken, used, int(status["VmHWM"].split()[0]) / 1024, children.ru_maxrss / 1024]))
"""


def slice_of_a_tensor() -> bytes:
    """Return a zip with the parts of a saved tensor of 16 bytes."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02." * 50)
        for name, size in (("byteorder", 6), ("data/0", 16), ("version", 2)):
            archive.writestr(f"archive/{name}", b"x" * size)
    return buffer.getvalue()


def make(folder: Path, tensors: int, shards: int) -> None:
    """Write a checkpoint whose files all belong together."""
    one = slice_of_a_tensor()
    files = 64
    for number in range(files):
        count = (tensors * shards + files - 1 - number) // files
        with (folder / f"__{number}_0.distcp").open("wb") as file:
            for _ in range(count // 1000):
                file.write(one * 1000)
            file.write(one * (count % 1000))
    content = metadata(tensors, shards, slice_bytes=len(one), files=files)
    (folder / ".metadata").write_bytes(content)


def measure(name: str, folder: Path) -> list[float]:
    """Return wall and processor seconds, and MB of the process and of its largest child."""
    imports, operation = _OPERATIONS[name]
    program = _PROGRAM.format(imports=imports, operation=operation)
    finished = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True
    )
    found: list[float] = json.loads(finished.stdout)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sizes", nargs="*", default=["100000x1", "10000x100"])
    parser.add_argument("--without-verify", action="store_true")
    arguments = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| metadata | operation | wall s | processor s | MB | MB of a child |")
    print("|---|---|---|---|---|---|")
    for size in arguments.sizes:
        tensors, shards = map(int, size.split("x"))
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            # In a process of its own: the memory of a parent shows in the figures of its children.
            maker = multiprocessing.get_context("fork").Process(
                target=make, args=(folder, tensors, shards)
            )
            maker.start()
            maker.join()
            label = f"{tensors:,} x {shards}, {(folder / '.metadata').stat().st_size / 1e6:.0f} MB"
            for name in _OPERATIONS:
                if arguments.without_verify and name.startswith("verify"):
                    continue
                taken, used, own, child = measure(name, folder)
                figures = f"{taken:.4f} | {used:.4f} | {own:.0f} | {child:.0f}"
                print(f"| {label} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
