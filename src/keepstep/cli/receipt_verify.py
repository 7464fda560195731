"""``keepstep receipt verify``: whether receipts still prove what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from keepstep.cli.receipt_answer import (
    JsonOption,
    KeyOption,
    PathsArgument,
    answered,
    many,
    say,
    time_of,
)
from keepstep.exit_codes import ExitCode
from keepstep.receipt.drift import Drift, ask, compare
from keepstep.receipt.files import (
    FOLDER,
    PAGE,
    REPORT,
    SUFFIX,
    check_counted,
    find,
    read,
    rehearsals_of,
    unsealed,
)
from keepstep.receipt.keys import PublicKey, trusted_keys
from keepstep.receipt.sealed import Receipt
from keepstep.receipt.statement import Kind, time_text
from keepstep.receipt.verify import Answer, Verified, worst
from keepstep.receipt.verify import verify as examine
from keepstep.report.compared import WHOLE, check_report
from keepstep.report.records import problem
from keepstep.stack.named import find_stack

_CODES = {
    Answer.YES: ExitCode.PASS,
    Answer.NO: ExitCode.FAIL,
    Answer.UNKNOWN: ExitCode.INCONCLUSIVE,
}
_WORDS = {Answer.YES: "verified", Answer.NO: "REFUSED", Answer.UNKNOWN: "not known"}


@answered
def verify(
    paths: PathsArgument,
    stack: Annotated[
        str | None,
        typer.Option(
            help="Also compare with this stack as it is now; LABEL is its name in the receipts.",
            metavar="[LABEL=]NAME",
            show_default=False,
        ),
    ] = None,
    key: KeyOption = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="Ask about this time instead of now.", metavar="TIME", show_default=False
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Compare this report.json or report.html with the receipt of its rehearsal; one "
            "in the rehearsal's folder is compared unasked.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Verify signature, content and validity of receipts, and that a stack is still what it was.

    Exit code 0: all hold; 1: one is changed, expired, drifted, or signed by an unknown key; 3: it
    cannot be checked.
    """
    if report is not None and not report.is_file():
        raise ValueError(f"--report {report}: wanted a report.json or report.html")
    trusted, files, time = trusted_keys(key), find(paths), time_of(at)
    drift = None if stack is None else _against(stack)
    found = [(path, _verify(path, trusted, time, drift, report)) for path in files]
    if report is not None and not any(_is_whole(each) for _, each in found):
        raise ValueError(f"--report {report}: wanted the receipt of its rehearsal as well")
    answer = worst(each.answer for _, each in found)
    reasons = [*_unsealed(paths, found), *_not_compared(found, stack)]
    if reasons and answer is Answer.YES:
        answer = Answer.UNKNOWN
    if as_json:
        receipts = [_json(path, each) for path, each in found]
        body = {"answer": answer.value, "reason": "; ".join(reasons), "receipts": receipts}
        print(json.dumps(body))
    else:
        lines = [line for path, each in found for line in _lines(path, each)]
        say([*lines, *_summary(found), *reasons])
    return _CODES[answer]


def _against(stack: str) -> Callable[[Receipt], Drift | None]:
    """Return the comparison with a stack, which is asked only once."""
    label, _, name = stack.rpartition("=")
    live = ask(find_stack(name), label or name)
    return lambda receipt: compare(receipt, live)


def _verify(
    path: Path,
    trusted: dict[str, PublicKey],
    time: datetime,
    drift: Callable[[Receipt], Drift | None] | None,
    report: Path | None,
) -> Verified:
    found = examine(read(path), trusted, at=time, problem=problem, drift=drift)
    if found.receipt is None or found.answer is Answer.NO:
        return found
    counted = check_counted(found.receipt, path)
    if counted is None:
        return found
    reports = (check_report(found.receipt, each) for each in _reports(path, report))
    return Verified(receipt=found.receipt, checks=(*found.checks, counted, *reports))


def _is_whole(found: Verified) -> bool:
    """Return whether it is the receipt over a whole rehearsal; one that nobody can read may be."""
    return found.receipt is None or found.receipt.kind is Kind.REHEARSAL


def _reports(path: Path, named: Path | None) -> list[Path]:
    """Return the reports to compare with a rehearsal's receipt: the one named, or those there."""
    if named is not None:
        return [named]
    # Where a link leads to as well: the report beside the link is the one that is read.
    folders = (path.parent, path.resolve().parent)
    places = dict.fromkeys(place for folder in folders for place in rehearsals_of(folder))
    return [file for place in places for name in (REPORT, PAGE) if (file := place / name).is_file()]


def _unsealed(paths: list[Path], found: list[tuple[Path, Verified]]) -> list[str]:
    """Say of which rehearsals there is no receipt that counts the others and seals the report."""
    whole = [path for path, each in found if _is_whole(each)]
    return [
        f"{_WORDS[Answer.UNKNOWN]}  {folder}: it holds {', '.join(left)}, and no receipt of the "
        f"whole rehearsal ({FOLDER}/{WHOLE}{SUFFIX}): whether a report was changed or a receipt is "
        "missing cannot be checked; get the folder again from where it was made"
        for folder, left in unsealed(paths, whole).items()
    ]


def _not_compared(found: list[tuple[Path, Verified]], stack: str | None) -> list[str]:
    """Say why the question is not answered though nothing is wrong."""
    if not found:
        return ["no receipt is there: nothing is proven"]
    if stack is None or any(check.what == "drift" for _, each in found for check in each.checks):
        return []
    labels = {label for _, each in found if each.receipt for label in each.receipt.material}
    known = ", ".join(sorted(labels)) or "none"
    return [
        f"none of them is about the stack {stack.rpartition('=')[0] or stack}, but: {known}; "
        f"where a label is not the stack's name: --stack LABEL={stack.rpartition('=')[2]}"
    ]


def _json(path: Path, found: Verified) -> dict[str, Any]:
    receipt = found.receipt
    body: dict[str, Any] = {
        "path": str(path),
        "answer": found.answer.value,
        "checks": [
            {"what": check.what, "answer": check.answer.value, "text": check.text}
            for check in found.checks
        ],
    }
    if receipt is not None:
        body |= {
            "kind": receipt.kind.value,
            "sha256": receipt.sha256,
            "key": receipt.key_id,
            "host": receipt.host,
            "issued": time_text(receipt.issued),
            "expires": time_text(receipt.expires),
        }
    return body


def _lines(path: Path, found: Verified) -> list[str]:
    """Return one line for what holds, and one for each question where it does not."""
    if found.answer is Answer.YES:
        text = "; ".join(check.text for check in found.checks if check.what != "records")
        return [f"{_WORDS[found.answer]}  {path}: {text}"]
    wrong = [check for check in found.checks if check.answer is not Answer.YES]
    return [
        f"{_WORDS[found.answer]}  {path}",
        *(f"  {check.what}: {check.text}" for check in wrong),
    ]


def _summary(found: list[tuple[Path, Verified]]) -> list[str]:
    if len(found) < 2:
        return []
    counts = {
        answer: sum(each.answer is answer for _, each in found)
        for answer in (Answer.NO, Answer.UNKNOWN)
    }
    rest = [f"{count} {_WORDS[answer]}" for answer, count in counts.items() if count]
    good = len(found) - sum(counts.values())
    return [f"{many(len(found))}: {good} verified{''.join(f', {each}' for each in rest)}"]
