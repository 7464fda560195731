"""``keepstep explain``: read recorder dumps, name the rank to blame and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.verdict import Outcome, Verdict
from keepstep.exit_codes import ExitCode
from keepstep.incident.answer import ranks_text, to_json, to_text
from keepstep.incident.gather import Gathered, errors, gather, no_dump
from keepstep.incident.page import to_page
from keepstep.incident.perfetto import to_trace
from keepstep.incident.write import write_whole


def explain(
    path: Annotated[
        Path,
        typer.Argument(
            help="An incident of `keepstep run`, a folder or an archive of dumps, or one dump.",
            show_default=False,
        ),
    ],
    expect: Annotated[
        int | None,
        typer.Option(help="Ranks that were due to leave a dump: say which arrived, and why not."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The machine form.")] = False,
    fail_on_culprit: Annotated[
        bool, typer.Option(help="Exit with 1 when a rank is named.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page to look at, one file.", metavar="FILE")
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Also write a trace for ui.perfetto.dev.", metavar="FILE"),
    ] = None,
) -> ExitCode:
    """Read recorder dumps of any PyTorch and say which rank to blame, why, and what to do next."""
    if expect is not None and expect < 1:
        _refuse(f"--expect {expect}: wanted the number of ranks of the job, 1 or more")
    try:
        attempts = gather(path)
    except FileNotFoundError:
        _refuse(f"{path}: nothing is there; wanted a folder, an archive or a file with dumps")
    if all(no_dump(each) for each in attempts):
        _refuse(_nothing_usable(path, attempts))
    judged = [(each, diagnose(each.evidence)) for each in attempts]
    if html or perfetto:
        _draw(path, judged, html, perfetto)
    if as_json:
        bodies = [_with_delivery(each, verdict, expect) for each, verdict in judged]
        print(json.dumps(bodies[0] if len(bodies) == 1 else {"attempts": bodies}, indent=2))
    else:
        print("\n".join(_text(each, verdict, expect) for each, verdict in judged), end="")
    return _code([verdict for _, verdict in judged], fail_on_culprit)


def _draw(
    path: Path, judged: list[tuple[Gathered, Verdict]], html: Path | None, perfetto: Path | None
) -> None:
    newest, verdict = max(judged, key=lambda pair: _age(pair[0]))
    if len(judged) > 1:
        text = f"{len(judged)} attempts; the newest is drawn: {newest.attempt}"
        sys.stderr.write(f"keepstep explain: {text}\n")
    for file in filter(None, (html, perfetto)):
        if file.resolve() == path.resolve():
            _refuse(f"{file} is what is to be explained; wanted another file to write to")
    if html:
        _write(html, [to_page(newest, verdict, str(path))])
    if perfetto:
        _write(perfetto, to_trace(newest, verdict, str(path)))


def _age(each: Gathered) -> int:
    """Return when the newest operation of an attempt was called (ns); 0 where nothing says."""
    dumps = [rank_dump.dump for rank_dump in each.evidence.dumps]
    return max((entry.created_ns or 0 for dump in dumps for entry in dump.entries), default=0)


def _write(path: Path, parts: Iterable[str]) -> None:
    try:
        write_whole(path, parts)
    except OSError as error:
        _refuse(f"{path} cannot be written: {error.strerror or error}; wanted a file to write to")


def _code(verdicts: list[Verdict], fail_on_culprit: bool) -> ExitCode:
    if fail_on_culprit and any(verdict.outcome is Outcome.CULPRIT for verdict in verdicts):
        return ExitCode.FAIL
    if any(verdict.outcome is Outcome.UNKNOWN for verdict in verdicts):
        return ExitCode.INCONCLUSIVE
    return ExitCode.PASS


def _nothing_usable(path: Path, attempts: tuple[Gathered, ...]) -> str:
    why = [finding for each in attempts for finding in errors(each) if finding.code != "no-dump"]
    listed = [f"  {finding.path}: {finding.text}" for finding in why[:10]]
    more = [f"  and {len(why) - 10} more"] if len(why) > 10 else []
    text = (
        f"{path}: no usable recorder dump. Wanted the files that PyTorch writes when a collective "
        "times out (by default ~/.cache/torch/comm_lib_trace_rank_N), or an incident folder"
    )
    return "\n".join([text, *listed, *more])


def _with_delivery(each: Gathered, verdict: Verdict, expect: int | None) -> dict[str, object]:
    body = to_json(each, verdict)
    if expect is not None:
        body["delivery"] = {"expected": expect, "missing": _undelivered(each, expect)}
    return body


def _undelivered(each: Gathered, expect: int) -> list[int]:
    arrived = {dump.rank for dump in each.evidence.dumps}
    return [rank for rank in range(expect) if rank not in arrived]


def _text(each: Gathered, verdict: Verdict, expect: int | None) -> str:
    title = f"attempt {each.attempt}\n" if each.attempt else ""
    text = title + to_text(each, verdict)
    if expect is None:
        return text
    missing = _undelivered(each, expect)
    if not missing:
        return f"{text}\ndelivery: the dumps of all {expect} ranks arrived\n"
    return (
        f"{text}\ndelivery: {expect - len(missing)} of {expect} dumps arrived; "
        f"{ranks_text(missing)} left none\n"
    )


def _refuse(problem: str) -> NoReturn:
    sys.stderr.write(f"keepstep explain: {problem}\n")
    raise typer.Exit(ExitCode.USAGE)
