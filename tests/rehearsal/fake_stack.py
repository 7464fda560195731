"""Stacks whose interpreter trains nothing: it writes the record that a probe would have written.

What a rehearsal does with what it sees can be tested in seconds so; that the probe sees what
happens is tested with real PyTorch elsewhere.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from keepstep.stack.named import STACK, Stack, stack_folder, to_json
from tests.canary.records import rank

_PROGRAM = """#!{python} -IS
import json, os, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
given, me = sys.argv[1:], int(os.environ["RANK"])
where = given.index("--record")
folder, rest = given[where + 1], given[where + 2 :]
factor = 1.0
if rest[0] in ("--slow", "--faster"):
    factor = float(rest[1]) if rest[0] == "--slow" else 1 / float(rest[1])
    rest = rest[2:]
last = me == int(os.environ["WORLD_SIZE"]) - 1  # when it runs, nothing is left to be started
if last and os.path.exists(os.path.join(here, "interrupt")):
    os.unlink(os.path.join(here, "interrupt"))
    while True:  # as somebody does who presses Ctrl-C, and again where nothing happens
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(10)
if os.path.exists(os.path.join(here, "crash")):
    sys.exit("the job is broken")
record = json.load(open(os.path.join(here, "record.json")))
noise = 1 + (int.from_bytes(os.urandom(2), "big") / 65536 - 0.5) * 0.004
for step in record["steps"]:
    step["seconds"] *= factor * noise
record.update(rank=me, local_rank=me, pid=os.getpid(), arguments=rest[1:])
with open(os.path.join(folder, "rank-%d.json" % me), "w") as file:
    json.dump(record, file)
"""


def make(name: str, folder: Path) -> Path:
    """Make a stack; returns its folder, in which a file ``crash`` or ``interrupt`` has effects."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "python"
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    (folder / "record.json").write_text(rank().model_dump_json())
    stack = Stack(name=name, python=str(program), torch=name, origin="python")
    place = stack_folder(name)
    place.mkdir(parents=True, exist_ok=True)
    (place / STACK).write_text(json.dumps(to_json(stack)))
    return folder
