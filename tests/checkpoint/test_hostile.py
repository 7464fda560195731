"""Files made to do harm: each is reported; none is run, takes much memory or much time."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.contents import read_contents
from keepstep.checkpoint.downgrade import convert
from keepstep.checkpoint.errors import CheckpointError, UnsafeMetadataError
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.store import LocalStore
from tests.processor_time import used

MARKER = "harm-was-done"
HEAD = b"\x80\x04"


def text(content: str) -> bytes:
    encoded = content.encode()
    return b"\x8c" + bytes([len(encoded)]) + encoded + b"\x94"


def call(module: str, name: str, *arguments: str) -> bytes:
    """Return a pickle that calls a function with texts."""
    values = b"".join(map(text, arguments))
    return HEAD + text(module) + text(name) + b"\x93(" + values + b"tR."


META = "torch.distributed.checkpoint.metadata"
GOOD = metadata(2, 2)
DEEP = b"(" * 200_000 + b"t" * 200_000


def nested_key() -> bytes:
    """A dict key whose hash takes 2 to the 40 steps: a tuple of itself twice, forty times."""
    key = b"K\x01\x85\x94" + b"".join(
        b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(40)
    )
    return HEAD + b"}" + key + b"K\x01s."


def renamed(old: str, new: str) -> bytes:
    return GOOD.replace(text(old), text(new), 1)


HOSTILE: dict[str, bytes] = {
    "os.system": call("os", "system", f"touch {MARKER}"),
    "posix.system": call("posix", "system", f"touch {MARKER}"),
    "subprocess": call("subprocess", "getoutput", f"touch {MARKER}"),
    "eval": call("builtins", "eval", f"open('{MARKER}', 'w')"),
    "exec": call("builtins", "exec", f"open('{MARKER}', 'w')"),
    "getattr": call("builtins", "getattr", "a", "b"),
    "open": call("builtins", "open", MARKER, "w"),
    "import": call("importlib", "import_module", "antigravity"),
    "torch.load": call("torch", "load", "x"),
    "torch.hub": call("torch.hub", "load", "x", "y"),
    "dotted name": call(META, "Metadata.__init__.__globals__", "x"),
    "dunder of a good module": call(META, "os", "x"),
    "reduce of a class in the middle": GOOD.replace(text("Size"), text("load"), 1),
    "another module": renamed("torch.serialization", "os"),
    "GLOBAL opcode": HEAD + b"cos\nsystem\n" + text("x") + b"\x85R.",
    "INST opcode": HEAD + b"(" + text("x") + b"ios\nsystem\n.",
    "OBJ opcode": HEAD + b"(" + text("os") + text("system") + b"\x93" + text("x") + b"o.",
    "EXT1": HEAD + b"\x82\x01.",
    "PERSID": HEAD + b"Px\n.",
    "BINPERSID": HEAD + text("x") + b"Q.",
    "protocol 0": pickle.dumps({"a": 1}, protocol=0),
    "protocol 2": pickle.dumps({"a": 1}, protocol=2),
    "long text that is not there": HEAD + b"\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "text of 4 GB that is not there": HEAD + b"X" + struct.pack("<L", 0xFFFFFFFF) + b"x.",
    "bytearray of 2 GB": HEAD + b"\x96" + struct.pack("<Q", 1 << 31) + b"x.",
    "memo of 64 million": HEAD + b"Nr" + struct.pack("<L", 1 << 26) + b".",
    "hash bomb": nested_key(),
    "nested tuples": HEAD + DEEP + b".",
    "five million lists": HEAD + b"]" * 5_000_000 + b".",
    "lists in lists": HEAD + b"](" * 1_000_000 + b"e" * 1_000_000 + b".",
    "BUILD on a class": HEAD + text(META) + text("Metadata") + b"\x93}" + text("a") + b"K\x01sb.",
    "wrong types": GOOD.replace(b"K\x02K\x04\x86", b"NN\x86", 1),
    "negative shape": GOOD.replace(b"K\x02K\x04\x86", b"J\xff\xff\xff\xffK\x04\x86", 1),
    "trailing bytes": GOOD + b"cos\nsystem\n(R.",
    "memo out of range": HEAD + b"h\xff.",
    "empty stack": HEAD + b"b.",
    "no mark": HEAD + b"t.",
    "zeros": bytes(4096),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", HOSTILE)
def test_it_is_reported_and_harmless(kind: str, folder: Path) -> None:
    path = folder / ".metadata"
    path.write_bytes(HOSTILE[kind])
    begin = used()
    with path.open("rb") as file, pytest.raises(UnsafeMetadataError) as caught:
        read_contents(file)
    assert used() - begin < 5
    assert str(caught.value)
    assert not (folder / MARKER).exists()


# In a process of its own: what a child inherits of a large parent counts as the child's peak.
UNCHECKED = """
import json, os, sys
from keepstep.checkpoint.contents import answer_of, start
from keepstep.checkpoint.errors import UnsafeMetadataError
with open(sys.argv[1], "rb") as file:
    process = start(file, "summary", "digest", "unchecked")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    try:
        refused = "summary" not in answer_of(process)
    except UnsafeMetadataError:
        refused = True
seconds = usage.ru_utime + usage.ru_stime
print(json.dumps({"refused": refused, "bytes": usage.ru_maxrss * 1024, "seconds": seconds}))
"""


@pytest.mark.parametrize("kind", HOSTILE)
def test_without_the_check_of_opcodes_the_process_bounds_it(kind: str, folder: Path) -> None:
    """The limits alone hold too: memory of the process that reads, as the kernel counted it."""
    path = folder / ".metadata"
    path.write_bytes(HOSTILE[kind])
    finished = subprocess.run(
        [sys.executable, "-c", UNCHECKED, str(path)], stdout=subprocess.PIPE, check=True
    )
    found = json.loads(finished.stdout)
    assert found["refused"] is (kind != "trailing bytes"), "nobody reads past the end"
    assert found["seconds"] < 5
    assert found["bytes"] < 256e6
    assert not (folder / MARKER).exists()


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("command", [find_readers, lambda store: convert(store, "2.14")])
def test_readers_and_downgrade_do_not_run_it_either(
    kind: str, command: Callable[[LocalStore], object], folder: Path
) -> None:
    (folder / ".metadata").write_bytes(HOSTILE[kind])
    begin = used()
    try:
        command(LocalStore(folder))
    except CheckpointError:
        pass
    else:
        # The first tensor is sound: enough for readers, which looks no further.
        assert command is find_readers
        later = ("wrong types", "negative shape", "trailing bytes")
        assert kind in (*later, "reduce of a class in the middle")
    assert used() - begin < 10
    assert not (folder / MARKER).exists()


def test_there_are_thirty_of_them_and_the_good_one_is_read(folder: Path) -> None:
    assert len(HOSTILE) >= 30
    assert len(set(HOSTILE.values()) - {GOOD}) == len(HOSTILE)
    (folder / ".metadata").write_bytes(GOOD)
    with (folder / ".metadata").open("rb") as file:
        assert len(read_contents(file).tensors) == 2


def test_metadata_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".metadata")
    store = LocalStore(tmp_path)
    with pytest.raises(OSError, match="no regular file but a pipe"):
        store.read(".metadata", 0, 10)
    with pytest.raises(OSError, match="no regular file but a pipe"), store.opened(".metadata"):
        pass
