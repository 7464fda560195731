"""``keepstep checkpoint test-load``: load a checkpoint for real, in another environment."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from keepstep.checkpoint.record import write_record
from keepstep.checkpoint.store import open_store
from keepstep.checkpoint.testload import Keys, Loaded, load_with
from keepstep.cli.checkpoint_answer import PathArgument, answered, count_text, size_text
from keepstep.exit_codes import ExitCode
from keepstep.stack.named import find_stack

_SHOWN = 10
_LONGEST = 300  # characters of an exception's text; --json has all
_CODES = {
    "pass": ExitCode.PASS,
    "fail": ExitCode.FAIL,
    "inconclusive": ExitCode.INCONCLUSIVE,
}


@answered
def test_load(
    path: PathArgument,
    python: Annotated[
        str | None,
        typer.Option(
            help="Python of the environment to load with; keepstep need not be in it.",
            metavar="EXE",
            show_default=False,
        ),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            help="Load with this stack instead (keepstep stack list).",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    keys_from: Annotated[
        Path | None,
        typer.Option(
            help="Script whose state_dict() returns what the trainer loads, to compare with.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record/--no-record", help="Keep what was proven, for status.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Load a checkpoint for real with the PyTorch of another environment.

    It runs what a load runs: also the code that objects in the checkpoint name.
    """
    interpreter = _interpreter(python, stack)
    progress = _show if sys.stderr.isatty() else None
    found = load_with(open_store(path), interpreter, keys_from, progress)
    kept = write_record(found.record) if record else None
    print(json.dumps(_json(path, found, kept)) if as_json else "\n".join(_lines(path, found, kept)))
    return _CODES[found.record.verdict]


def _interpreter(python: str | None, stack: str | None) -> str:
    if python is not None and stack is None:
        return python
    if stack is not None and python is None:
        return find_stack(stack).launcher
    raise ValueError("wanted either --python EXE or --stack NAME, the environment to load with")


def _json(path: str, found: Loaded, kept: Path | None) -> dict[str, Any]:
    return {
        **asdict(found.record),
        "path": path,
        "tensors": found.tensors,
        "objects": found.objects,
        "seconds": found.seconds,
        "peak_bytes": found.peak_bytes,
        "keys": found.keys and asdict(found.keys),
        "record": kept and str(kept),
    }


def _lines(path: str, found: Loaded, kept: Path | None) -> list[str]:
    record = found.record
    words = {
        "pass": "loaded it",
        "fail": "does not load it" if record.error else "loaded it, and the keys do not fit",
        "inconclusive": "loaded it, but it is not proven to be what the trainer asks for",
    }
    lines = [f"{path}: PyTorch {record.torch} {words[record.verdict]}"]
    if record.error:
        lines.append(f"  {textwrap.shorten(record.error, _LONGEST)}")
    else:
        lines.append(
            f"  {count_text(found.tensors, 'tensor')} and {count_text(found.objects, 'object')}, "
            f"{size_text(record.bytes)} read and digested in {found.seconds:.1f} s, "
            f"{size_text(found.peak_bytes)} of memory at most"
        )
        lines.append(f"  PyTorch compares no checksum: keepstep checkpoint verify {path}")
    if found.keys:
        lines += _key_lines(found.keys)
    lines.append(f"  in: {record.python}, Python {record.environment['python']}")
    if kept:
        lines.append(f"  kept: {kept}")
    if record.error:
        lines.append(f"next: {_next(path, record.error, record.torch)}")
    return lines


def _key_lines(keys: Keys) -> list[str]:
    lines = [f"  compared with the trainer's state dict: {keys.compared} of its entries"]
    for names, text in (
        (keys.missing, "not in the checkpoint, so a load fails"),
        (keys.unexpected, "in the checkpoint only, so a load leaves it out"),
    ):
        lines += [f"  {name}: {text}" for name in names[:_SHOWN]]
        if len(names) > _SHOWN:
            lines.append(f"  ... and {len(names) - _SHOWN} more {text}")
    lines += [f"  {name}: {text}" for name, text in list(keys.different.items())[:_SHOWN]]
    if len(keys.different) > _SHOWN:
        lines.append(f"  ... and {len(keys.different) - _SHOWN} more that differ")
    return lines


def _next(path: str, error: str, torch: str) -> str:
    """Return what to do about an exception of PyTorch."""
    if "No module named 'safetensors'" in error:
        return "pip install safetensors in that environment"
    if "(in the metadata)" in error:
        minor = ".".join(torch.split(".")[:2])
        return f"keepstep checkpoint readers {path} --for {minor}"
    if error.startswith(("ModuleNotFoundError", "AttributeError", "ImportError")):
        return "install the trainer's own code there, or name it in PYTHONPATH: an object needs it"
    return f"keepstep checkpoint verify {path}"


def _show(read: int, size: int) -> None:
    """Show progress on a terminal, on one line."""
    end = "\r" if read < size else "\n"
    print(f"{size_text(read)} of {size_text(size)}", end=end, file=sys.stderr, flush=True)
