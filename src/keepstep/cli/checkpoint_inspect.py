"""``keepstep checkpoint inspect``: what is in a checkpoint, without torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from keepstep.checkpoint.contents import Contents
from keepstep.checkpoint.inspection import Inspection, inspect_store
from keepstep.checkpoint.readers import GLOBAL
from keepstep.checkpoint.store import open_store
from keepstep.cli.checkpoint_answer import PathArgument, answered, count_text, size_text, spans
from keepstep.cli.checkpoint_readers import to_json as readers_json
from keepstep.cli.checkpoint_readers import written_by
from keepstep.exit_codes import ExitCode

_SHOWN = 40  # lines of the tree; --all shows every one


@answered
def inspect(
    path: PathArgument,
    everything: Annotated[
        bool, typer.Option("--all", help="Every tensor, however many there are.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Show what is in a checkpoint; nothing in it is executed."""
    found = inspect_store(open_store(path))
    print(json.dumps(to_json(path, found)) if as_json else _text(path, found, everything))
    return ExitCode.PASS


def to_json(path: str, found: Inspection) -> dict[str, Any]:
    """Return the machine form of an inspection."""
    answer = readers_json(path, found.readers)
    answer["metadata"] = {
        name: {
            "version": contents.version,
            "planner": contents.planner,
            "storage_meta": contents.storage_meta,
            "tensors": [
                {
                    "name": tensor.name,
                    "dtype": tensor.dtype,
                    "shape": tensor.shape,
                    "shards": tensor.shards,
                    "strides": tensor.strides,
                    "bytes": tensor.bytes,
                }
                for tensor in contents.tensors
            ],
            "objects": contents.objects,
            "files": {name: asdict(file) for name, file in contents.files.items()},
            "transformed": contents.transformed,
        }
        for name, contents in found.metadata.items()
    }
    return answer


def _text(path: str, found: Inspection, everything: bool) -> str:
    contents = list(found.metadata.values())
    lines = (
        [f"{path}: a folder of safetensors files; what each holds is in its own header"]
        if found.readers.kind == "huggingface"
        else [_counts(path, contents)]
    )
    lines += [
        f"  written by: {written_by(found.readers)}",
        f"  read by: PyTorch {spans(found.readers.readers, True) or 'none'}",
    ]
    lines += [f"  {note}" for note in found.readers.notes]
    for name, each in found.metadata.items():
        if name != GLOBAL:
            lines.append(f"{name}:")
        lines += _tree(each, everything)
    return "\n".join(lines)


def _counts(path: str, contents: list[Contents]) -> str:
    return (
        f"{path}: {count_text(sum(len(each.tensors) for each in contents), 'tensor')}, "
        f"{count_text(sum(t.shards for each in contents for t in each.tensors), 'shard')}, "
        f"{count_text(sum(len(each.objects) for each in contents), 'object')}, "
        f"{size_text(sum(f.bytes for each in contents for f in each.files.values()))} in "
        f"{count_text(len({name for each in contents for name in each.files}), 'file')}"
    )


def _tree(contents: Contents, everything: bool) -> list[str]:
    """Return the tensors under the parts of their names, the deepest level that fits."""
    rows = [
        (t.name, f"{t.dtype} {list(t.shape)}" + (f", {t.shards} shards" if t.shards != 1 else ""))
        for t in contents.tensors
    ]
    rows += [(name, "object") for name in contents.objects]
    if everything or len(rows) <= _SHOWN:
        width = max((len(name) for name, _ in rows), default=0)
        return [f"  {name.ljust(width)}  {what}" for name, what in rows]
    depth = 1
    while depth < 8 and len(_grouped(contents, depth + 1)) <= _SHOWN:
        depth += 1
    groups = _grouped(contents, depth)
    lines = [
        f"  {prefix}.*  {count_text(tensors, 'tensor')}, {size_text(size)}"
        + (f", {count_text(objects, 'object')}" if objects else "")
        for prefix, (tensors, size, objects) in groups.items()
    ]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"  ... and {len(lines) - _SHOWN} more groups"]
    return [*lines, "  every tensor: --all, or --json"]


def _grouped(contents: Contents, depth: int) -> dict[str, tuple[int, int, int]]:
    """Return tensors, their bytes and objects for each beginning of the names."""
    groups: dict[str, tuple[int, int, int]] = {}
    for tensor in contents.tensors:
        prefix = ".".join(tensor.name.split(".")[:depth])
        count, size, objects = groups.get(prefix, (0, 0, 0))
        groups[prefix] = (count + 1, size + tensor.bytes, objects)
    for name in contents.objects:
        prefix = ".".join(name.split(".")[:depth])
        count, size, objects = groups.get(prefix, (0, 0, 0))
        groups[prefix] = (count, size, objects + 1)
    return groups
