"""``keepstep check-recorder``: before a job starts, would a recorder dump survive it?"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Annotated, NoReturn

import typer

from keepstep.exit_codes import ExitCode
from keepstep.incident.answer import printable
from keepstep.recorder import delivery, disk, naming
from keepstep.recorder.model import Backend, Severity

_KNOWN = (Backend.NCCL2, Backend.NCCL_LAZY, Backend.NCCL_LEGACY, Backend.GLOO, Backend.TORCHCOMMS)
_MOST_RANKS = 1 << 16  # of one host


def check_recorder(
    backend: Annotated[
        str, typer.Option(help="Whose recorder: nccl2, nccl-lazy, nccl-legacy, gloo, torchcomms.")
    ] = "nccl2",
    ranks: Annotated[int, typer.Option(help="Ranks that this host will run.")] = 1,
    grace: Annotated[
        float | None,
        typer.Option(help="Seconds that the launcher leaves a failed job before it kills it."),
    ] = None,
    asked: Annotated[
        bool,
        typer.Option(
            "--asked", help="Something asks silent ranks for their dumps, as keepstep run does."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The machine form.")] = False,
) -> ExitCode:
    """Say what would keep a recorder dump from surviving a job that starts here.

    Run it where a rank will run: in its container, as its user, with its variables.
    """
    if backend not in _KNOWN:
        _refuse(f"--backend {backend}: known are {', '.join(_KNOWN)}")
    if not 1 <= ranks <= _MOST_RANKS:
        _refuse(f"--ranks {ranks}: wanted the number of ranks of this host, 1 to {_MOST_RANKS}")
    if grace is not None and not 0 <= grace < float("inf"):
        _refuse(f"--grace {grace:g}: wanted a number of seconds, 0 or more")
    path, problems = _check(Backend(backend), ranks, grace, asked)
    survives = all(each.severity is not Severity.ERROR for each in problems)
    if as_json:
        print(json.dumps(_body(backend, path, survives, problems), indent=2))
    else:
        print(_text(backend, path, survives, problems), end="")
    return ExitCode.PASS if survives else ExitCode.FAIL


def _check(
    backend: Backend, ranks: int, grace: float | None, asked: bool
) -> tuple[str, tuple[delivery.Problem, ...]]:
    """Return where rank 0 would write, "" where a variable keeps it from running, and what is."""
    host, environment = socket.gethostname(), os.environ
    try:
        path = naming.effective_path(environment, 0, backend).path
        disks = {host: disk.observe(path.removesuffix("0"))}
    except naming.VariableError:
        path, disks = "", {}
    problems = delivery.check_recorder(
        environment,
        {host: range(ranks)},
        backend,
        disks=disks,
        grace_s=grace,
        silent_ranks_are_asked=asked,
    )
    return path, problems


def _body(
    backend: str, path: str, survives: bool, problems: tuple[delivery.Problem, ...]
) -> dict[str, object]:
    return {
        "survives": survives,
        "backend": backend,
        "path": path,
        "problems": [
            {
                "code": each.code,
                "severity": each.severity.value,
                "host": each.host,
                "text": each.text,
                "mend": each.mend,
            }
            for each in problems
        ],
    }


def _text(backend: str, path: str, survives: bool, problems: tuple[delivery.Problem, ...]) -> str:
    verdict = "would survive the job" if survives else "would be lost"
    where = f" at {path}" if path else ""
    lines = [f"a dump of {backend}, of rank 0{where}, {verdict}"]
    for each in problems:
        lines += [f"  {each.severity} ({each.code}): {each.text}", f"    mend: {each.mend}"]
    return "".join(f"{printable(line)}\n" for line in lines)


def _refuse(problem: str) -> NoReturn:
    sys.stderr.write(f"keepstep check-recorder: {problem}\n")
    raise typer.Exit(ExitCode.USAGE)
