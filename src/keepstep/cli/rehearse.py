"""``keepstep rehearse``: the canary matrix and every drill, one report, signed receipts."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from keepstep.canary.matrix import cells, runnable
from keepstep.canary.plan import Plan, default_plan, read_plan
from keepstep.canary.short_plan import short_text
from keepstep.canary.verdict import Verdict
from keepstep.exit_codes import ExitCode
from keepstep.incident.answer import printable
from keepstep.receipt.errors import KeyFileError
from keepstep.receipt.files import PAGE, REPORT
from keepstep.receipt.keys import default_key
from keepstep.rehearsal.drilling import Drill, drills_of
from keepstep.rehearsal.estimate import estimate
from keepstep.rehearsal.folder import Folder, only_one
from keepstep.rehearsal.machine import allocation, this_machine
from keepstep.rehearsal.rehearse import Rehearsed, Request
from keepstep.rehearsal.rehearse import rehearse as run_rehearsal
from keepstep.report.compared import page_of
from keepstep.report.data import as_json
from keepstep.report.summary import verdict_of
from keepstep.report.text import as_text

_INFRASTRUCTURE = ExitCode.INFRASTRUCTURE
_CODES = {
    Verdict.PASS: ExitCode.PASS,
    Verdict.FAIL: ExitCode.FAIL,
    Verdict.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Verdict.NOT_RUN: ExitCode.INCONCLUSIVE,
}


def rehearse(
    plan: Annotated[
        Path | None,
        typer.Argument(
            help="Plan in TOML; without one, the plan that comes with keepstep.",
            metavar="[PLAN.toml]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results, receipts and the report.")] = Path(
        "rehearsal"
    ),
    checkpoints: Annotated[
        str,
        typer.Option(
            help="Folder or address of a run's checkpoints: which of them can the old stack read?",
            metavar="ROOT",
            show_default=False,
        ),
    ] = "",
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Begin nothing new after so many minutes, and report what there is; 0: run "
            "nothing, only report.",
            min=0,
            show_default=False,
        ),
    ] = None,
    only_list: Annotated[
        bool,
        typer.Option("--list", help="List what can run here and how long it takes; run nothing."),
    ] = False,
    print_plan: Annotated[
        bool, typer.Option("--print-plan", help="Print the plan, to start one's own with.")
    ] = False,
    job: Annotated[
        str,
        typer.Option(
            help="With --print-plan: only the cells of this job.",
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    pairs: Annotated[
        int | None,
        typer.Option(help="With --print-plan: runs of each cell.", metavar="N", show_default=False),
    ] = None,
    json_wanted: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> ExitCode:
    """Prove, on this machine, that a team can move to a new PyTorch and get back.

    Results are on disk after every run: the same command goes on after an interruption.
    """
    try:
        if (job or pairs is not None) and (plan or not print_plan):
            raise ValueError(
                "--job and --pairs shorten the plan that comes with keepstep; wanted keepstep "
                "rehearse --print-plan --job NAME --pairs N > PLAN.toml"
            )
        text = _text_of(plan) if plan else short_text(job, pairs)
        if print_plan:
            print(text, end="")
            return ExitCode.PASS
        wanted = read_plan(plan) if plan else default_plan()
        if only_list:
            print("\n".join(_listed(wanted, text, out)))
            return ExitCode.PASS
        request = Request(
            plan=wanted,
            text=text,
            name=plan.name if plan else "default.toml",
            key=default_key(),
            checkpoints=checkpoints,
            minutes=minutes,
        )
        return _run(request, out, json_wanted)
    except (ValueError, KeyFileError) as error:
        return _told(error, ExitCode.USAGE)
    except OSError as error:
        return _told(f"{error}; what was run is kept: the same command goes on", _INFRASTRUCTURE)


def _text_of(plan: Path) -> str:
    try:
        return plan.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{plan}: {error.strerror}; wanted a plan in TOML") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{plan}: not UTF-8: {error}; wanted a plan in TOML") from None


def _run(request: Request, out: Path, json_wanted: bool) -> ExitCode:
    signal.signal(signal.SIGTERM, _interrupt)
    with only_one(out) as folder:
        try:
            found = run_rehearsal(request, folder, _say)
        except KeyboardInterrupt:
            _say(f"interrupted; what was run is in {out}: the same command goes on")
            raise
        page = _write(found, folder)
    if json_wanted:
        print(as_json(found.rehearsal, found.receipt))
    else:
        print(
            as_text(
                found.rehearsal,
                shutil.get_terminal_size().columns,
                sys.stdout.isatty(),
                found.receipt,
            )
        )
        print(f"report: {page}")
    return _CODES[verdict_of(found.rehearsal)]


def _write(found: Rehearsed, folder: Folder) -> Path:
    report = as_json(found.rehearsal, found.receipt)
    folder.write_text(REPORT, report)
    return folder.write_text(PAGE, page_of(report, found.receipt))


def _listed(plan: Plan, text: str, out: Path) -> list[str]:
    machine = allocation(this_machine())
    lines = []
    for cell in cells(plan):
        why = runnable(cell, machine)
        lines.append(f"{cell.id}: {f'not run: {why}' if why else f'{plan.pairs} runs'}")
        lines.append(f"    {cell.role.value}; {cell.topology}; {cell.proves}")
    for drill in drills_of(plan):
        lines.append(f"drill {drill.name}: {_ends(drill, machine.gpus)}")
    return [*lines, "", *map(printable, estimate(plan, text, machine, out))]


def _ends(drill: Drill, gpus: int) -> str:
    """Say what a drill proves on a machine with so many GPUs, or why nothing."""
    if drill.gpus > gpus:
        return f"not run: it needs {drill.gpus} GPU"
    if drill.gpus_to_answer > gpus:
        return f"runs, and ends without an answer: it needs {drill.gpus_to_answer} GPU for one"
    return drill.proves


def _say(text: str) -> None:
    lines = [printable(line) for line in text.split("\n")]  # a job's words may be in it
    print("keepstep: " + "\n".join(lines), file=sys.stderr, flush=True)


def _told(error: object, code: ExitCode) -> ExitCode:
    _say(str(error))
    return code


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
