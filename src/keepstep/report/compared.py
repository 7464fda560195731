"""Whether a report says what was signed: the receipt over all of a rehearsal says what it must say.

The JSON holds the signed record and what follows from it. The page is made from both and holds the
digest of the receipt, so the receipt cannot hold the page's: the page is made once more instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from keepstep._version import __version__
from keepstep.receipt.canonical import to_canonical
from keepstep.receipt.files import FOLDER, PAGE, REPORT, SUFFIX, read
from keepstep.receipt.sealed import Receipt
from keepstep.receipt.statement import Kind
from keepstep.receipt.verify import Answer, Check
from keepstep.report.data import as_json
from keepstep.report.html import as_html
from keepstep.report.model import ReceiptFile, Rehearsal
from keepstep.report.records import read_records

WHOLE = Kind.REHEARSAL.value  # the name of the receipt over all others
_RECORDS = ("rehearsal", "receipt")  # the parts of the JSON that no version words differently
_AGAIN = "the command that rehearsed, with the same --out, writes it again"


def check_report(receipt: Receipt, file: Path) -> Check:
    """Say whether a report is the one of a receipt of a rehearsal, which was verified.

    Args:
        receipt: Its records are those of a ``Rehearsal``.
        file: ``report.json``; or the page, which needs ``report.json`` beside it.

    Raises:
        OSError: It cannot be read.
    """
    if file.suffix != PAGE[-5:]:
        return _json(receipt, file)
    source = file.with_name(REPORT)
    if not source.is_file():
        return _said(Answer.UNKNOWN, f"{file.name} is only compared beside its {REPORT}")
    first = _json(receipt, source)
    if first.answer is not Answer.YES:
        return _said(Answer.UNKNOWN, f"{file.name} was not compared, as its {REPORT} does not hold")
    report = read(source)
    if page_of(report, _sealed(receipt)).encode() == read(file):
        return _said(Answer.YES, f"{file.name} is the page of the signed record")
    if not _as_written(report, _sealed(receipt)):
        text = (
            f"{file.name} cannot be compared: the page has its tables in the order of {source.name}"
            f", and {source.name} says what was signed, but not in the order or with the spaces "
            f"that keepstep writes; {_AGAIN}"
        )
        return _said(Answer.UNKNOWN, text)
    return _differs(
        receipt,
        f"{file.name} is not the page of {source.name}, which says what was signed",
        "the page was changed, or the order of entries in the other",
    )


def page_of(report: str | bytes, sealed: ReceiptFile) -> str:
    """Return the page that belongs to a report.json: the order of its entries is not signed."""
    return as_html(_rehearsal(report), sealed)


def _rehearsal(report: str | bytes) -> Rehearsal:
    return Rehearsal.model_validate(json.loads(report)["rehearsal"])


def _as_written(report: bytes, sealed: ReceiptFile) -> bool:
    """Return whether a report.json is as keepstep writes it, byte by byte."""
    return as_json(_rehearsal(report), sealed).encode() == report


def _json(receipt: Receipt, file: Path) -> Check:
    try:
        body = json.loads(read(file), object_pairs_hook=_once)
        found = {name: to_canonical(value) for name, value in body.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        return _said(Answer.NO, f"{file.name} is no report: {error}; {_AGAIN}")
    try:
        rehearsal = read_records(Kind.REHEARSAL, receipt.records)
    except ValidationError:
        return _said(Answer.UNKNOWN, f"{file.name} cannot be compared: the records are not read")
    assert isinstance(rehearsal, Rehearsal)
    wanted = json.loads(as_json(rehearsal, _sealed(receipt))) | {"rehearsal": receipt.records}
    other = [
        name
        for name in (*wanted, *(found.keys() - wanted.keys()))
        if name not in wanted or found.get(name) != to_canonical(wanted[name])
    ]
    if not other:
        return _said(Answer.YES, f"{file.name} says what was signed")
    text = f"{file.name} does not say what was signed, in {', '.join(other)}"
    if set(other) & set(_RECORDS):
        return _said(Answer.NO, f"{text}: it was changed, or is of another sitting; {_AGAIN}")
    return _differs(receipt, text)


def _differs(receipt: Receipt, text: str, why: str = "it was changed") -> Check:
    """Another version has other words, and another look, for the same record."""
    if receipt.keepstep == __version__:
        if ".dev" in __version__:  # many states of the code have this one name
            why = f"{why}, or it is of another state of keepstep {__version__}"
        return _said(Answer.NO, f"{text}: {why}; {_AGAIN}")
    return _said(
        Answer.UNKNOWN,
        f"{text}, as keepstep {__version__} words it; keepstep {receipt.keepstep} can compare it",
    )


def _sealed(receipt: Receipt) -> ReceiptFile:
    return ReceiptFile(file=f"{FOLDER}/{WHOLE}{SUFFIX}", sha256=receipt.sha256, about=WHOLE)


def _said(answer: Answer, text: str) -> Check:
    return Check(what="report", answer=answer, text=text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice in one object")
    return found
