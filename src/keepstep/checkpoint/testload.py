"""Loads a checkpoint for real, with the PyTorch of another environment, and keeps what was proven.

PyTorch's own loader unpickles the metadata and the objects, as it does when a trainer resumes. What
can be checked before without executing anything is checked first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.inspection import inspect_store
from keepstep.checkpoint.readers import GLOBAL, RANK_LOCAL
from keepstep.checkpoint.record import (
    Record,
    address_of,
    differences,
    identify,
    read_records,
)
from keepstep.checkpoint.safetensors import SUFFIX
from keepstep.checkpoint.store import Store
from keepstep.parent import die_with_parent

OLDEST_TORCH = (2, 2)  # the first with torch.distributed.checkpoint.load

# Runs a file of this folder in an interpreter that need not have keepstep; the first entry of the
# path is the working directory, whose files have no business here.
_PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); exec(compile({!r}, {!r}, 'exec'))"

_PATIENCE_S = 60  # for an interpreter to start and say what is installed

Progress = Callable[[int, int], None]  # bytes of tensors that were read, and in all


class NoInterpreterError(OSError):
    """The interpreter does not start, or has no PyTorch that can be asked."""


class BadScriptError(ValueError):
    """The script for the keys is not one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """How a checkpoint and the trainer's state dict fit together, by the names of entries."""

    compared: int
    missing: tuple[str, ...]  # wanted by the trainer, not in the checkpoint: a load fails
    unexpected: tuple[str, ...]  # in the checkpoint, not asked for: a load leaves them out
    different: dict[str, str]  # shape or kind: a load fails; dtype: it converts

    @property
    def verdict(self) -> str:
        """Fail where a load fails; inconclusive where it does not restore all as it was saved."""
        if self.missing or any(not text.startswith("dtype") for text in self.different.values()):
            return "fail"
        return "inconclusive" if self.unexpected or self.different else "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What came of it."""

    record: Record
    tensors: int
    objects: int
    seconds: float
    peak_bytes: int  # the most memory that the interpreter had, PyTorch included
    keys: Keys | None


def load_with(
    store: Store, python: str, keys_from: Path | None = None, progress: Progress | None = None
) -> Loaded:
    """Load the checkpoint at ``store`` in the interpreter ``python``.

    Args:
        store: Where it is.
        python: Command or path of the interpreter; it needs PyTorch 2.2 or newer, not keepstep.
        keys_from: A script whose function ``state_dict()`` returns what the trainer would load.
        progress: Called now and then.

    Raises:
        CheckpointError: There is nothing to load, or what there is must not be trusted.
        NoInterpreterError: The interpreter does not start, ended early or has no such PyTorch.
        BadScriptError: The script has no ``state_dict``.
    """
    kind, ranks, size = _what_to_load(store)
    before = identify(store)
    if found := shutil.which(python):
        python = os.path.abspath(found)  # a link stays one: it is what makes a venv of a Python
    environment = environment_of(python)
    _check_torch(python, environment)
    request = {
        "address": address_of(store),
        "kind": kind,
        "ranks": ranks,
        "keys_from": None if keys_from is None else str(keys_from.resolve()),
    }
    result = _ask(python, request, lambda read: progress and progress(min(read, size), size))
    keys = _keys(keys_from, result.get("keys"))
    error = _sentence(result["error"]) if "error" in result else ""
    verdict = "fail" if error else keys.verdict if keys else "pass"
    if identify(store) != before:
        verdict, error = "inconclusive", "it was written during the test-load"
    return Loaded(
        record=Record(
            address=address_of(store),
            identity=before,
            environment=environment,
            python=python,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            verdict=verdict,
            level="keys" if keys else "bytes",
            error=error,
            bytes=result["bytes"],
            digests=result["digests"],
        ),
        tensors=result["tensors"],
        objects=result["objects"],
        seconds=result.get("seconds", 0.0),
        peak_bytes=result.get("peak_bytes", 0),
        keys=keys,
    )


@dataclass(frozen=True, slots=True)
class Proof:
    """The last test-load of a checkpoint, and why it says nothing about today."""

    record: Record
    stale: tuple[str, ...]  # empty while nothing has changed


def last_proof(store: Store, minor: str) -> Proof | None:
    """Return the last test-load with a PyTorch ``minor``; starts its interpreter, not PyTorch."""
    for record in read_records(store):
        if record.torch.split(".")[:2] != minor.split("."):
            continue
        try:
            environment = environment_of(record.python)
        except NoInterpreterError:
            environment = None
        return Proof(record, tuple(differences(record, identify(store), environment)))
    return None


def refusal(store: Store, minor: str) -> str:
    """Return how the last test-load with a PyTorch ``minor`` was refused; "" when it was not.

    One that is stale says nothing. A state dict that did not fit is no refusal by PyTorch.
    """
    if not any(record.verdict == "fail" and record.error for record in read_records(store)):
        return ""  # the usual case starts no interpreter
    proof = last_proof(store, minor)
    if proof is None or proof.stale or proof.record.verdict != "fail" or not proof.record.error:
        return ""
    record = proof.record
    return (
        f"PyTorch {record.torch} refused to load it at {record.when}: {shorten(record.error, 120)}"
    )


def environment_of(python: str) -> dict[str, Any]:
    """Return what an interpreter would load with, without loading PyTorch: 0.1 s.

    Raises:
        NoInterpreterError: It does not start.
    """
    try:
        finished = subprocess.run(
            [python, "-c", _program("probe_environment.py")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
    except OSError as error:
        raise NoInterpreterError(
            f"{python}: {error.strerror}: wanted a Python to load with"
        ) from None
    except subprocess.TimeoutExpired:
        raise NoInterpreterError(f"{python}: no answer within {_PATIENCE_S} s") from None
    for facts in map(_facts, finished.stdout.splitlines()):
        if "executable" in facts:
            return facts
    raise NoInterpreterError(
        f"{python}: wanted Python 3.8 or newer, and it said: {_last_line(finished.stderr)}"
    )


def _what_to_load(store: Store) -> tuple[str, list[int | None], int]:
    """Return the kind, the ranks whose metadata to load (None: all), and the bytes of tensors."""
    found = inspect_store(store)
    if found.readers.kind == "huggingface":
        sizes = [file.size for name, file in store.files().items() if name.endswith(SUFFIX)]
        return found.readers.kind, [None], sum(sizes)
    stale = sorted(name for name in store.files() if RANK_LOCAL.fullmatch(name))
    if found.readers.kind == "dcp" and stale:
        raise CheckpointError(
            f"{store.address}: {stale[0]} lies beside {GLOBAL}: a PyTorch that cannot read the "
            "second silently loads by the first. Move it out of the folder, then try again"
        )
    size = sum(tensor.bytes for each in found.metadata.values() for tensor in each.tensors)
    if found.readers.kind == "dcp":
        return "dcp", [None], size
    ranks = sorted(int(match[1]) for name in stale if (match := RANK_LOCAL.fullmatch(name)))
    return "rank-local", list(ranks), size


def _check_torch(python: str, environment: dict[str, Any]) -> None:
    if environment["torch"] is None:
        raise NoInterpreterError(f"{python}: it has no torch; wanted PyTorch 2.2 or newer")
    version = str(environment["torch"]["version"])
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        raise NoInterpreterError(f"{python}: it has PyTorch {version}; wanted 2.2 or newer")


def _ask(python: str, request: dict[str, Any], read: Callable[[int], object]) -> dict[str, Any]:
    """Run the probe; its answer comes in lines, what else it says goes to a file."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [python, "-c", _program("probe.py"), json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            preexec_fn=die_with_parent,  # a load can take hours; nobody waits for it any more
        )
        assert process.stdout is not None, "it is a pipe"
        result: dict[str, Any] | None = None
        with process, process.stdout:
            for line in process.stdout:
                facts = _facts(line)
                if "read" in facts:
                    read(facts["read"])
                result = facts.get("result", result)
        said.seek(0)
        if result is None:
            how = f"signal {-process.returncode}" if process.returncode < 0 else "an error"
            raise NoInterpreterError(
                f"{python}: it ended with {how} before it had an answer, and said: "
                + _last_line(said.read())
            )
        return result


def _facts(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:  # what a package printed while it was imported
        return {}
    return found if isinstance(found, dict) else {}


def _program(name: str) -> str:
    return _PROGRAM.format(Path(__file__).with_name(name).read_text(), name)


def _keys(script: Path | None, found: dict[str, Any] | None) -> Keys | None:
    if found is None:
        return None
    if "usage" in found:
        raise BadScriptError(f"{script}: {found['usage']}; wanted one that returns the state dict")
    if "failed" in found:
        raise CheckpointError(
            f"{script}: state_dict() failed in that environment: {found['failed']}"
        )
    return Keys(
        compared=found["compared"],
        missing=tuple(found["missing"]),
        unexpected=tuple(found["unexpected"]),
        different=found["different"],
    )


def _sentence(error: dict[str, str]) -> str:
    where = "the metadata" if error["at"] == "metadata" else error["entry"] or "the data"
    return f"{error['type']}: {' '.join(error['text'].split())} (in {where})"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "nothing"
