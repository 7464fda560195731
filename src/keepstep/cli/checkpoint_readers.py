"""``keepstep checkpoint readers``: which PyTorch versions can load a checkpoint."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from keepstep.checkpoint.eras import minor_of
from keepstep.checkpoint.payload import find_file_readers
from keepstep.checkpoint.readers import Readers, find_readers
from keepstep.checkpoint.store import LocalStore, open_store
from keepstep.cli.checkpoint_answer import PathArgument, answered, spans
from keepstep.exit_codes import ExitCode


@answered
def readers(
    path: PathArgument,
    wanted: Annotated[
        str | None, typer.Option("--for", help="Fail unless this PyTorch can load it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Say which PyTorch versions can load a checkpoint."""
    minor = None if wanted is None else minor_of(wanted)
    store = open_store(path)
    if isinstance(store, LocalStore) and store.path.is_file():
        found = find_file_readers(store.path)
    else:
        found = find_readers(store)
    print(json.dumps(to_json(path, found)) if as_json else _text(path, found, minor))
    if minor is not None and not found.readers[minor]:
        return ExitCode.FAIL if found.readers[minor] is False else ExitCode.INCONCLUSIVE
    return ExitCode.PASS if found.oldest else ExitCode.FAIL


def to_json(path: str, found: Readers) -> dict[str, Any]:
    """Return the machine form of an answer."""
    return {
        "path": path,
        "kind": found.kind,
        "era": found.era and found.era.name,
        "written_by": found.era and [found.era.first, found.era.last],
        "readers": found.readers,
        "evidence": found.evidence,
        "python": found.python or None,
        "notes": found.notes,
    }


def written_by(found: Readers) -> str:
    """Return the versions that write what was found, as text."""
    era = found.era
    if era is None:
        return "not known"
    return f"PyTorch {era.first}" + (f" to {era.last}" if era.last != era.first else "")


def _text(path: str, found: Readers, minor: str | None) -> str:
    can = spans(found.readers, True)
    lines = [f"{path}: PyTorch {can} can load it" if can else f"{path}: no PyTorch can load it"]
    if minor is not None:
        word = {True: "can", False: "cannot", None: "may or may not be able to"}
        lines[0] = f"{path}: PyTorch {minor} {word[found.readers[minor]]} load it"
        lines.append(f"  versions that can: {can or 'none'}")
    if unknown := spans(found.readers, None):
        lines.append(f"  not known: {unknown}")
    if found.era:
        lines.append(f"  written by: {written_by(found)}")
    lines += [f"  {note}" for note in found.notes]
    run = [evidence.rpartition(" ")[2] for evidence in found.evidence.values() if "run" in evidence]
    if found.era:
        lines.append(f"  evidence: tried with {', '.join(run)}; the others derived from source")
    if found.kind == "dcp" and found.era and found.readers["2.15"] and not found.readers["2.14"]:
        lines.append(f"next: keepstep checkpoint downgrade {path} --for {minor or '2.14'}")
    return "\n".join(lines)
