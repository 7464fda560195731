"""``keepstep explain``: read recorder dumps, name the rank to blame and why."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.verdict import Outcome, Verdict
from keepstep.exit_codes import ExitCode
from keepstep.incident import delivery
from keepstep.incident.advice import advised
from keepstep.incident.answer import printable, to_json, to_text
from keepstep.incident.gather import Gathered, errors, gather, no_dump
from keepstep.recorder.delivery import Delivery
from keepstep.recorder.delivery import Verdict as Delivered
from keepstep.recorder.entries import newest_ns
from keepstep.whole import write_whole

MOST_RANKS = 1 << 20  # more than any job has; each is a line of what is due


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
    if expect is not None and not 1 <= expect <= MOST_RANKS:
        _refuse(f"--expect {expect}: wanted the number of ranks of the job, 1 to {MOST_RANKS}")
    if not os.path.exists(path):
        _refuse(f"{path}: nothing is there; wanted a folder, an archive or a file with dumps")
    try:
        attempts = gather(path)
    except OSError as error:
        sys.stderr.write(f"keepstep explain: {error}; set TMPDIR to a folder with free space\n")
        return ExitCode.INFRASTRUCTURE
    if all(no_dump(each) for each in attempts):
        _refuse(_nothing_usable(path, attempts))
    judged = [(each, advised(each, diagnose(each.evidence))) for each in attempts]
    if html or perfetto:
        _draw(path, judged, html, perfetto)
    delivered = [None if expect is None else delivery.check(each, expect) for each in attempts]
    answers = [(*pair, due) for pair, due in zip(judged, delivered, strict=True)]
    if as_json:
        bodies = [_with_delivery(*answer) for answer in answers]
        print(json.dumps(bodies[0] if len(bodies) == 1 else {"attempts": bodies}, indent=2))
    else:
        print("\n".join(_text(*answer) for answer in answers), end="")
    return _code([(verdict, due) for _, verdict, due in answers], fail_on_culprit)


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
    # Imported here, so that an answer without pictures comes sooner.
    if html:
        from keepstep.incident.page import to_page

        _write(html, [to_page(newest, verdict, str(path))])
    if perfetto:
        from keepstep.incident.perfetto import to_trace

        _write(perfetto, to_trace(newest, verdict, str(path)))


def _age(each: Gathered) -> int:
    """Return when the newest operation of an attempt was called (ns); 0 where nothing says."""
    return max((newest_ns(each.dump.entries) for each in each.evidence.dumps), default=0)


def _write(path: Path, parts: Iterable[str]) -> None:
    try:
        write_whole(path, parts)
    except OSError as error:
        _refuse(f"{path} cannot be written: {error.strerror or error}; wanted a file to write to")


def _code(answers: list[tuple[Verdict, Delivery | None]], fail_on_culprit: bool) -> ExitCode:
    outcomes = [verdict.outcome for verdict, _ in answers]
    if fail_on_culprit and Outcome.CULPRIT in outcomes:
        return ExitCode.FAIL
    # Without all dumps a culprit can be known; that nobody is to blame cannot.
    unproven = any(
        due is not None and due.verdict is not Delivered.COMPLETE
        for verdict, due in answers
        if verdict.outcome is not Outcome.CULPRIT
    )
    if unproven or Outcome.UNKNOWN in outcomes:
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


def _with_delivery(each: Gathered, verdict: Verdict, due: Delivery | None) -> dict[str, object]:
    body = to_json(each, verdict)
    return body if due is None else {**body, "delivery": delivery.to_json(each, due)}


def _text(each: Gathered, verdict: Verdict, due: Delivery | None) -> str:
    title = f"attempt {printable(each.attempt)}\n" if each.attempt else ""
    text = title + to_text(each, verdict)
    return text if due is None else f"{text}\n{delivery.to_text(each, due)}"


def _refuse(problem: str) -> NoReturn:
    sys.stderr.write(f"keepstep explain: {problem}\n")
    raise typer.Exit(ExitCode.USAGE)
