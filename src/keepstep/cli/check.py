"""``keepstep check``: look at a job before it moves to another PyTorch."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from keepstep.check.finding import Finding, NotLooked, Report, Severity
from keepstep.check.launch import BadLaunchError, Launch, read_launch
from keepstep.check.layout import BadLayoutError
from keepstep.check.leap import BadLeapError, Leap, read_leap
from keepstep.check.look import look
from keepstep.check.question import Given, Question
from keepstep.check.sources import CannotLookError
from keepstep.exit_codes import ExitCode
from keepstep.incident.answer import printable
from keepstep.stack.errors import BadRequestError, UnknownStackError
from keepstep.stack.named import Stack, find_stack

_MOST_PLACES = 4  # of one finding, or of groups, that are there many times
_TITLES = {
    Severity.BREAKS: "Breaks",
    Severity.CHANGES: "Changes",
    Severity.RISK: "Risks",
    Severity.NOTE: "Notes",
}


def check(
    script: Annotated[Path, typer.Argument(help="The training script.", show_default=False)],
    old: Annotated[str, typer.Option("--from", help="The PyTorch that it runs on.")] = "2.14",
    new: Annotated[str, typer.Option("--to", help="The PyTorch that it is to run on.")] = "2.15",
    launch: Annotated[
        str,
        typer.Option(
            help="The line that starts it: 'VAR=x torchrun --nproc-per-node 8 train.py'.",
            metavar="LINE",
        ),
    ] = "",
    stack: Annotated[
        str | None, typer.Option(help="A stack (keepstep stack list): look at its packages.")
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option(help="Another folder of your modules.", metavar="FOLDER"),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            help="Count the communicators of a layout: 'mesh=dp:512,tp:8'.", metavar="LAYOUT"
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(help="Of a host that it will run on: sm_90x8; or none.", metavar="LIST"),
    ] = None,
    driver: Annotated[
        str | None, typer.Option(help="Driver there, such as 580.65.06.", metavar="VERSION")
    ] = None,
    fabric_manager: Annotated[
        str | None, typer.Option(help="Fabric manager there.", metavar="VERSION")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The machine form.")] = False,
) -> ExitCode:
    """Say what a new PyTorch would break or change in a job, without running it."""
    named = _named(stack)
    for folder in include or ():
        if not folder.is_dir():
            _refuse(f"--include {folder}: wanted a folder")
    for option, version in (("--driver", driver), ("--fabric-manager", fabric_manager)):
        if version is not None and not re.fullmatch(r"\d+(\.\d+){0,3}", version):
            _refuse(f"{option} {version}: wanted a version such as 580.65.06")
    try:
        question = Question(
            script=script,
            leap=read_leap(old, new),
            launch=read_launch(launch) if launch else Launch(),
            python=tuple(named.command()) if named else (),
            stack=stack or "",
            wished_torch=named.torch if named and named.origin == "created" else "",
            include=tuple(include or ()),
            groups=tuple(groups or ()),
            given=Given(gpus=_gpus(gpus), driver=driver, fabric_manager=fabric_manager),
            environment={**os.environ, **(named.variables if named else {})},
        )
        report = look(question, _say)
    except (CannotLookError, BadLeapError, BadLaunchError, BadLayoutError) as error:
        _refuse(str(error))
    if as_json:
        print(json.dumps(to_json(question.leap, report), indent=2))
    else:
        print(to_text(str(script), question.leap, report), end="")
    return report.code


def _named(stack: str | None) -> Stack | None:
    try:
        return None if stack is None else find_stack(stack)
    except (BadRequestError, UnknownStackError) as error:
        _refuse(str(error))


def _gpus(text: str | None) -> tuple[str, ...] | None:
    """Return the architectures of ``sm_90x8,sm_80`` or ``none``; None where nothing was said."""
    if text is None:
        return None
    found: list[str] = []
    for part in [] if text.strip() == "none" else text.split(","):
        match = re.fullmatch(r"\s*(?:sm_)?(\d{2,3})(?:x(\d{1,3}))?\s*", part)
        if match is None:
            _refuse(f"--gpus {part}: wanted architectures such as sm_90x8 or sm_80,sm_90, or none")
        found += [f"sm_{match[1]}"] * int(match[2] or 1)
    return tuple(found)


def to_json(leap: Leap, report: Report) -> dict[str, object]:
    """Return the machine form of a report."""
    return {
        "from": f"2.{leap.old}",
        "to": f"2.{leap.new}",
        "exit_code": int(report.code),
        "backends": list(report.backends),
        "findings": [asdict(finding) for finding in report.findings],
        "not_looked": [asdict(each) for each in report.not_looked],
        "looked": list(report.looked),
    }


def to_text(script: str, leap: Leap, report: Report) -> str:
    """Return the report for people: the worst first, each place clickable."""
    lines = [f"{script}, PyTorch {leap}: {_sentence(report)}"]
    lines += [f"backend: {each}" for each in report.backends[:_MOST_PLACES]]
    if len(report.backends) > _MOST_PLACES:
        lines.append(f"and {len(report.backends) - _MOST_PLACES} more backends: --json lists all")
    lines.append("")
    for severity in Severity:
        of_it = [each for each in report.findings if each.severity is severity]
        if of_it:
            lines += [f"{_TITLES[severity]} ({len(of_it)})", ""]
            for group in _grouped(of_it):
                lines += _finding(group)
    if report.not_looked:
        lines += [f"Not looked at ({len(report.not_looked)})", ""]
        lines += [line for each in report.not_looked for line in _not_looked(each)]
        lines.append("")
    lines.append(f"{_counted(len(report.looked), 'file')} read, nothing executed")
    return "".join(f"{printable(line)}\n" for line in lines)


def _sentence(report: Report) -> str:
    counts = {s: sum(each.severity is s for each in report.findings) for s in Severity}
    if breaks := counts[Severity.BREAKS]:
        return "1 thing breaks" if breaks == 1 else f"{breaks} things break"
    if report.code is ExitCode.INCONCLUSIVE:
        return "nothing found that breaks, but something that matters was not looked at"
    softer = [_counted(counts[s], word) for s, word in _WORDS.items() if counts[s]]
    return f"nothing found that breaks; {', '.join(softer)}" if softer else "nothing found"


_WORDS = {Severity.CHANGES: "change", Severity.RISK: "risk", Severity.NOTE: "note"}


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _grouped(findings: list[Finding]) -> list[list[Finding]]:
    """Put findings of one rule with the same reason and mend together."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.code, each.why, each.mend), []).append(each)
    return list(groups.values())


def _finding(group: list[Finding]) -> list[str]:
    lines = [f"  {_place(each)}{each.code} {each.text}" for each in group[:_MOST_PLACES]]
    if len(group) > _MOST_PLACES:
        lines.append(f"  and {len(group) - _MOST_PLACES} more: --json lists all")
    return [*lines, f"    why: {group[0].why}", f"    mend: {group[0].mend}", ""]


def _place(each: Finding) -> str:
    if not each.file:
        return ""
    return f"{each.file}:{each.line}:{each.column}: " if each.line else f"{each.file}: "


def _not_looked(each: NotLooked) -> list[str]:
    mark = "matters: " if each.matters else ""
    lines = [f"  {mark}{each.what}: {each.why}"]
    return [*lines, f"    mend: {each.mend}"] if each.mend else lines


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"keepstep check: {text}\n")


def _refuse(problem: str) -> NoReturn:
    sys.stderr.write(f"keepstep check: {problem}\n")
    raise typer.Exit(ExitCode.USAGE)
