"""A checkpoint of ``Job.train`` read back, checked before anything of it is used.

Nothing that the files say is executed: the metadata goes through the reader of
``keepstep.checkpoint``, tensors through PyTorch's loader of plain weights, and every one must have
the SHA-256 that was noted when it was copied out of the training.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from keepstep.checkpoint.contents import Slice, read_slices
from keepstep.checkpoint.errors import UnsafeMetadataError
from keepstep.checkpoint.readers import GLOBAL
from keepstep.runtime.buffers import buffer_of
from keepstep.runtime.saving import FORMAT, rank_name
from keepstep.runtime.state import State, decode, digest_of, dump_manifest
from keepstep.runtime.step_folders import RECORD, step_folder, steps_in


class UnusableError(Exception):
    """This folder is no checkpoint that a job can go on from; the text says why."""


class CannotResumeError(RuntimeError):
    """There are checkpoints, and the job cannot go on from them: starting anew would hide it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What a checkpoint holds. ``records``: the state of each rank that there was."""

    step: int
    state_sha256: str
    value: dict[str, Any]
    records: list[bytes]


def resume(state: State, root: Path, rank: int, tell: Callable[[str], None]) -> int:
    """Load the newest usable checkpoint below ``root``; return its step, 0 if there is none.

    ``rank`` gets its own record as far as there is one: with more ranks than were saved, the others
    keep the generators and loaders that they have.

    Raises:
        CannotResumeError: none of the checkpoints is usable, or it does not fit ``state``.
    """
    steps = steps_in(root)
    newest = ""  # what is wrong with it; only rank 0 tells, and it may not be the first to end
    for step in reversed(steps):
        try:
            saved = read(step_folder(root, step))
        except UnusableError as error:
            tell(f"{step_folder(root, step)} cannot be used: {error}")
            newest = newest or str(error)
            continue
        _load(saved, state, rank, step_folder(root, step), tell)
        return step
    if steps:
        raise CannotResumeError(
            f"{root}: none of {len(steps)} checkpoints can be used; the newest: {newest}. To start "
            "at step 0 move them away, or give Checkpoint another folder; to look into one: "
            f"keepstep checkpoint verify {step_folder(root, steps[-1])}"
        )
    return 0


def _load(saved: Saved, state: State, rank: int, folder: Path, tell: Callable[[str], None]) -> None:
    if saved.value.keys() != state.replicated.keys():
        raise CannotResumeError(
            f"{folder}: holds {', '.join(sorted(saved.value))}; the script's State names "
            f"{', '.join(sorted(state.replicated))}. Make them the same, or give Checkpoint "
            "another folder"
        )
    try:
        state.load_replicated(saved.value)
        if rank < len(saved.records):
            state.restore_rank(saved.records[rank])
    except Exception as error:
        raise CannotResumeError(
            f"{folder}: does not fit the script's State: {type(error).__name__}: {error}. Was it "
            "saved by another model? Give Checkpoint another folder"
        ) from error
    loaded = digest_of(state.encode_replicated().manifest())
    if loaded != saved.state_sha256:
        tell(
            f"{folder} is loaded, but the state is not what was saved (SHA-256 {loaded[:12]}, was "
            f"{saved.state_sha256[:12]}): load_state_dict of an object in State leaves something "
            "out or converts it"
        )


def read(folder: Path) -> Saved:
    """Read a checkpoint into memory and check every byte of it.

    Raises:
        UnusableError: something is missing, damaged, or not saved by ``Job.train``.
    """
    try:
        return _read(folder)
    except UnusableError:
        raise
    except (OSError, UnsafeMetadataError) as error:
        raise UnusableError(str(error)) from None


def _read(folder: Path) -> Saved:
    if not (folder / GLOBAL).is_file():
        raise UnusableError(f"no {GLOBAL}: a save that did not end")
    note = _read_note(folder / RECORD)
    with (folder / GLOBAL).open("rb") as file:
        _, slices, problems = read_slices(file)
    if problems:
        raise UnusableError(f"{GLOBAL}: {problems[0]}")
    stored = {each.name: each for each in slices}
    tensors = [
        _tensor(folder, stored.get(name), name, entry)
        for name, entry in zip(note["names"], note["state"]["tensors"], strict=True)
    ]
    records = [
        _tensor(
            folder,
            stored.get(rank_name(rank)),
            rank_name(rank),
            {"dtype": "uint8", "shape": [entry["bytes"]], "sha256": entry["sha256"]},
        )
        for rank, entry in enumerate(note["ranks"])
    ]
    return Saved(
        step=note["step"],
        state_sha256=note["state_sha256"],
        value=decode(note["state"]["tree"], tensors),
        records=[bytes(buffer_of(record)) for record in records],
    )


def _read_note(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UnusableError(f"no {RECORD}: it was not saved by Job.train")
    try:
        note: dict[str, Any] = json.loads(path.read_bytes())
        if note["format"] != FORMAT:
            raise UnusableError(
                f"{RECORD} has format {note['format']}, this keepstep reads {FORMAT}"
            )
        same = digest_of(dump_manifest(note["state"])) == note["state_sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableError(f"{RECORD} is damaged: {type(error).__name__}: {error}") from None
    if not same or len(note["names"]) != len(note["state"]["tensors"]):
        raise UnusableError(f"{RECORD} is damaged: its own SHA-256 is another")
    return note


def _tensor(folder: Path, place: Slice | None, name: str, wanted: dict[str, Any]) -> torch.Tensor:
    if place is None:
        raise UnusableError(f"{GLOBAL} does not name {name}")
    with (folder / place.file).open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.length)
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # of whatever kind: these bytes are not what was written
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnusableError(f"{place.file} is damaged at {name}: {text}") from None
    if not isinstance(found, torch.Tensor):
        raise UnusableError(f"{place.file} holds a {type(found).__name__} for {name}")
    kind = [str(found.dtype).removeprefix("torch."), list(found.shape)]
    if kind != [wanted["dtype"], wanted["shape"]]:
        raise UnusableError(
            f"{place.file} holds {kind[0]} {kind[1]} for {name}; saved was "
            f"{wanted['dtype']} {wanted['shape']}"
        )
    if hashlib.sha256(buffer_of(found.contiguous())).hexdigest() != wanted["sha256"]:
        raise UnusableError(f"{place.file} is damaged at {name}: its SHA-256 is another")
    whole: torch.Tensor = found.contiguous()
    return whole
