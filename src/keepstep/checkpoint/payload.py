"""Files of ``torch.save``: a zip with a pickle in it, alone or as one slice of a checkpoint.

A pickle inside cannot be mended by rewriting metadata, so what is in it decides for itself who can
load it. It is looked at with ``pickletools``, which executes nothing.
"""

from __future__ import annotations

import pickletools
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from keepstep.checkpoint.eras import MINORS
from keepstep.checkpoint.errors import NotACheckpointError, UnsafeMetadataError
from keepstep.checkpoint.names import DTYPES
from keepstep.checkpoint.readers import Readers, Verdicts

_LARGEST = 64 << 20  # bytes of one pickle that are looked at; tensors are not among them

# Names that every PyTorch 2 resolves.
_PLAIN = frozenset(
    {
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch._utils", "_rebuild_parameter"),
        *(("torch", dtype) for dtype in DTYPES if DTYPES[dtype]),
        *(
            ("torch", f"{kind}Storage")
            for kind in (
                *("Double", "Float", "Half", "BFloat16"),
                *("Long", "Int", "Short", "Char", "Byte", "Bool"),
            )
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Payload:
    """What a pickle inside a ``torch.save`` file names."""

    plain: bool  # names nothing but what every PyTorch 2 resolves
    properties: bool  # names TensorProperties, whose form changed in 2.15: a ShardedTensor, say


def read_payload(file: IO[bytes]) -> Payload:
    """Look at the pickle in a ``torch.save`` file.

    Raises:
        UnsafeMetadataError: No such file, or a damaged one.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entry = next(e for e in archive.infolist() if e.filename.endswith("/data.pkl"))
            if entry.file_size > _LARGEST:
                raise UnsafeMetadataError(f"a pickle of {entry.file_size} bytes: too large to read")
            return look_at(archive.read(entry))
    except (zipfile.BadZipFile, StopIteration, EOFError, OSError, NotImplementedError) as error:
        raise UnsafeMetadataError(f"not a file of torch.save: {error}") from None


def look_at(pickled: bytes) -> Payload:
    """Find the names in a pickle of any protocol.

    Raises:
        UnsafeMetadataError: The pickle is damaged.
    """
    names: set[tuple[str, str]] = set()
    properties = False
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name in ("GLOBAL", "INST"):
                module, _, name = str(argument).partition(" ")
                names.add((module, name))
                properties |= name == "TensorProperties"
            elif opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
                names.add(("", ""))  # which name it is depends on the stack: not plain
            elif opcode.name in ("SHORT_BINUNICODE", "BINUNICODE"):
                properties |= argument == "TensorProperties"
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise UnsafeMetadataError(f"a damaged pickle: {error}") from None
    return Payload(plain=names <= _PLAIN, properties=properties)


def find_file_readers(path: Path) -> Readers:
    """Say which versions can load a single file of ``torch.save``.

    Raises:
        NotACheckpointError: It is no such file.
    """
    readers: Verdicts = dict.fromkeys(MINORS)
    with path.open("rb") as file:
        if file.read(9)[8:9] == b"{":
            notes = ("a safetensors file: no pickle, and no version of PyTorch owns its form",)
            return Readers(kind="safetensors", era=None, readers=readers, notes=notes)
        file.seek(0)
        try:
            payload = read_payload(file)
        except UnsafeMetadataError as error:
            raise NotACheckpointError(f"{path}: {error}") from None
    if payload.properties:
        readers["2.15"] = True
        says = (
            "it holds TensorProperties (a ShardedTensor): if PyTorch 2.15 wrote it, no older "
            "version loads it, and no rewrite of metadata can mend that"
        )
    elif payload.plain:
        readers = dict.fromkeys(MINORS, True)
        says = "a file of torch.save with tensors and plain values only: its form did not change"
    else:
        says = "a file of torch.save that names classes: it needs the code that they come from"
    evidence = dict.fromkeys(MINORS, "derived from the names in its pickle")
    return Readers(kind="torch.save", era=None, readers=readers, evidence=evidence, notes=(says,))
