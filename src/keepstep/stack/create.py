"""Makes a stack: as a whole or not at all, and in no time when it is there already."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keepstep.stack.asked import ask_fingerprint
from keepstep.stack.disk import check_space, sizes, wanted_space
from keepstep.stack.errors import OtherStackError, StackError
from keepstep.stack.named import (
    AT_CREATION,
    ENVIRONMENT,
    LAUNCHER,
    LOCK,
    STACK,
    Stack,
    find_stack,
    read_stack,
    stack_folder,
    to_json,
)
from keepstep.stack.uv import ask_uv, find_uv, run_uv
from keepstep.stack.wanted import Wanted, wanted_of
from keepstep.whole import write_whole

_COMPILE = ("--generate-hashes", "--no-emit-index-url", "--quiet")

Say = Callable[[str], None]


def create(
    name: str,
    *,
    torch: str | None = None,
    python: str | None = None,
    requirements: Path | None = None,
    adopt: Path | None = None,
    prefix: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
    say: Say | None = None,
) -> Stack:
    """Make a stack and return it; one that is there and has not changed is returned at once.

    Args:
        name: Of the stack.
        torch: The version wanted. An environment with it is made, unless one of the next three
            says what to use; then it must have this version.
        python: An interpreter that is there; with ``prefix``, one inside the container.
        requirements: What to install instead of the lock that comes with keepstep.
        adopt: The folder of an environment that is there. Nothing in it is changed.
        prefix: What starts a container in which the interpreter is.
        variables: That jobs of this stack get; of the table in ``variable_table`` only.
        say: Told about progress; standard error when None.

    Raises:
        BadRequestError: The request contradicts itself.
        OtherStackError: A stack of this name exists and is another one.
        NoSpaceError: There is too little room; nothing was begun.
        InstallError: The installer failed.
        StackError: The interpreter does not start, or has another PyTorch.
    """
    wanted = wanted_of(name, torch, python, requirements, adopt, tuple(prefix), variables or {})
    folder = stack_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    say = say or _say
    with _only_one(folder, say):
        there = read_stack(folder)
        if there is not None:
            _check_same(there, wanted)
            if _unchanged(there, wanted):
                return there
        try:
            return _make(folder, wanted, say)
        except BaseException:
            _tidy(folder, wanted)
            raise


def remove(name: str) -> None:
    """Remove a stack, also one that was never finished; an adopted environment itself stays.

    Raises:
        UnknownStackError: There is none.
    """
    folder = stack_folder(name)
    if not folder.is_dir():
        find_stack(name)
    with _only_one(folder, _say):
        (folder / STACK).unlink(missing_ok=True)  # from here on it is no stack
        shutil.rmtree(folder)


@contextlib.contextmanager
def _only_one(folder: Path, say: Say) -> Iterator[None]:
    """Hold the lock under which a stack is made and removed."""
    # Beside the folder, not in it: it stays when the stack is removed under it.
    with open(folder.with_name(f".{folder.name}.lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another keepstep that works on the stack {folder.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)  # whom we waited for may have removed it
        yield


def _check_same(there: Stack, wanted: Wanted) -> None:
    seen = (there.origin, there.prefix, there.variables)
    asked = (wanted.origin, wanted.prefix, wanted.variables)
    other_torch = wanted.torch and there.torch != wanted.torch
    other_python = wanted.python and there.python != wanted.python
    if seen != asked or other_torch or other_python:
        raise OtherStackError(
            f"there is another stack {there.name}: {there.origin}, PyTorch {there.torch}, "
            f"{' '.join(there.command())}. Remove it first (keepstep stack remove {there.name}), "
            "or choose another name"
        )


def _unchanged(there: Stack, wanted: Wanted) -> bool:
    if wanted.prefix:
        return True  # whether the container starts is found out when it is used
    if not os.path.exists(there.python):  # uninstalled, or its base was upgraded in place
        return False
    if wanted.origin != "created" or wanted.lock is None:
        return True
    return there.lock_sha256 == _sha256(wanted.lock.read_bytes())


def _tidy(folder: Path, wanted: Wanted) -> None:
    """Leave nothing of an attempt that failed, except what the next one would install again."""
    if wanted.origin != "created":
        shutil.rmtree(folder, ignore_errors=True)
    elif not any(folder.iterdir()):
        folder.rmdir()


def _make(folder: Path, wanted: Wanted, say: Say) -> Stack:
    (folder / STACK).unlink(missing_ok=True)
    stack = Stack(
        name=wanted.name,
        python=wanted.python,
        prefix=wanted.prefix,
        variables=wanted.variables,
        torch=wanted.torch,
        origin=wanted.origin,
    )
    if wanted.origin == "created":
        stack = _install(folder, wanted, stack, say)
    elif wanted.prefix:
        _write_launcher(folder / LAUNCHER, stack)
    say(f"reading what the stack {wanted.name} contains")
    found = ask_fingerprint(stack)
    version = _check_torch(stack, found)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    stack = replace(stack, torch=version, made=made)
    write_whole(folder / AT_CREATION, [json.dumps(found)])
    write_whole(folder / STACK, [json.dumps(to_json(stack))])
    return stack


def _install(folder: Path, wanted: Wanted, stack: Stack, say: Say) -> Stack:
    uv = find_uv()
    cache = Path(ask_uv(uv, "cache", "dir") or "/nonexistent")
    place = folder / ENVIRONMENT
    room = wanted_space(wanted.pinned, cache, folder)
    check_space(folder, wanted=room)
    if place.exists():
        say(f"clearing what is left of the stack {wanted.name}")
        shutil.rmtree(place)
    lock = _lock(folder, wanted, uv, say)
    say(f"making the stack {wanted.name} (a first PyTorch of a version downloads about 3 GB)")
    run_uv(uv, "venv", "--quiet", "--python", sys.executable, place)
    python = place / "bin" / "python"
    hashes = ["--require-hashes"] if b"--hash=" in lock.read_bytes() else []
    # Compiled now, or every rank would do it again where Python may not write beside its sources.
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    install = ["pip", "install", *quiet, "--compile-bytecode", *hashes]
    run_uv(uv, *install, "--python", python, "-r", lock)
    total, own = sizes(place)
    source = wanted.lock or lock
    return replace(
        stack,
        python=str(python),
        lock_sha256=_sha256(source.read_bytes()),
        bytes=total,
        own_bytes=own,
    )


def _lock(folder: Path, wanted: Wanted, uv: Path, say: Say) -> Path:
    """Put what is to be installed into the stack's folder; return that file."""
    lock = folder / LOCK
    if wanted.lock is not None:
        write_whole(lock, [wanted.lock.read_text()])
        return lock
    say(f"finding out what PyTorch {wanted.torch} needs")
    asked = folder / "requirements.in"
    write_whole(asked, [f"torch=={wanted.torch}\nnumpy\n"])
    run_uv(uv, "pip", "compile", *_COMPILE, "--python", sys.executable, asked, "-o", lock)
    return lock


def _check_torch(stack: Stack, found: dict[str, Any]) -> str:
    """Return the PyTorch that is really in a stack, without what follows a plus sign."""
    version = (found.get("torch") or {}).get("version")
    if not version:
        why = (found.get("reasons") or {}).get("torch", "nothing said why")
        raise StackError(f"{' '.join(stack.command())}: it has no PyTorch that loads: {why}")
    release = str(version).partition("+")[0]
    if stack.torch and release != stack.torch:
        raise StackError(
            f"{' '.join(stack.command())}: it has PyTorch {version}; wanted {stack.torch}. Leave "
            "--torch out to take it as it is, or name another environment"
        )
    return release


def _write_launcher(path: Path, stack: Stack) -> None:
    write_whole(path, [f'#!/bin/sh\nexec {shlex.join(stack.command())} "$@"\n'])
    path.chmod(0o755)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _say(text: str) -> None:
    print(f"keepstep: {text}", file=sys.stderr, flush=True)
