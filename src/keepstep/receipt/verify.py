"""Whether a receipt still proves what it says: one check after the other, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from keepstep.receipt.drift import Drift
from keepstep.receipt.errors import ReceiptError, UntrustedKeyError
from keepstep.receipt.keys import PublicKey
from keepstep.receipt.sealed import Receipt, open_receipt, read_unverified
from keepstep.receipt.statement import Kind, time_text

CLOCKS_DIFFER = timedelta(minutes=5)  # between two hosts that both keep their clocks right


class Answer(StrEnum):
    """The three answers; what cannot be checked is not passed."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about a receipt."""

    what: str  # signature, time, records, drift, files
    answer: Answer
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """All questions about a receipt, in the order in which they were asked."""

    receipt: Receipt | None  # None where the file has not even the form of one
    checks: tuple[Check, ...]

    @property
    def answer(self) -> Answer:
        """The one that decides."""
        return worst(check.answer for check in self.checks)


Problem = Callable[[Kind, dict[str, Any]], str]  # "" for records that are as they should be


def worst(answers: Iterable[Answer]) -> Answer:
    """Return no before unknown before yes; unknown where nothing was asked."""
    found = set(answers)
    if Answer.NO in found:
        return Answer.NO
    return Answer.YES if found == {Answer.YES} else Answer.UNKNOWN


def verify(
    data: bytes,
    trusted: Mapping[str, PublicKey],
    *,
    at: datetime,
    problem: Problem,
    drift: Callable[[Receipt], Drift | None] | None = None,
) -> Verified:
    """Return what is true of a receipt at one time.

    Args:
        data: The content of its file.
        trusted: Keys by their id.
        at: The time that is asked about.
        problem: Says what is wrong with the records of a kind.
        drift: Compares a receipt with a stack as it is now; returns None where the receipt does
            not concern that stack. Without it, nobody asks.
    """
    signature, receipt = _signature(data, trusted)
    if signature.answer is not Answer.YES or receipt is None:
        return Verified(receipt=receipt, checks=(signature,))
    checks = [signature, _time(receipt, at), _records(receipt, problem)]
    if drift is not None and (found := drift(receipt)) is not None:
        checks.append(_drift(found))
    return Verified(receipt=receipt, checks=tuple(checks))


def _signature(data: bytes, trusted: Mapping[str, PublicKey]) -> tuple[Check, Receipt | None]:
    try:
        receipt = open_receipt(data, trusted)
    except UntrustedKeyError as error:
        return Check(what="signature", answer=Answer.NO, text=str(error)), _look(data)
    except ReceiptError as error:
        return Check(what="signature", answer=Answer.NO, text=str(error)), None
    text = f"signed with the key {receipt.key_id[:16]}, not a byte changed"
    return Check(what="signature", answer=Answer.YES, text=text), receipt


def _look(data: bytes) -> Receipt | None:
    try:
        return read_unverified(data)
    except ReceiptError:
        return None


def _time(receipt: Receipt, at: datetime) -> Check:
    if at >= receipt.expires:
        text = f"expired on {time_text(receipt.expires)}: rehearse again (keepstep rehearse)"
        return Check(what="time", answer=Answer.NO, text=text)
    if at < receipt.issued - CLOCKS_DIFFER:
        text = f"issued on {time_text(receipt.issued)}, which is still to come: one clock is wrong"
        return Check(what="time", answer=Answer.NO, text=text)
    days = (receipt.expires - at) / timedelta(days=1)
    text = f"valid until {time_text(receipt.expires)} ({days:.0f} days)"
    return Check(what="time", answer=Answer.YES, text=text)


def _records(receipt: Receipt, problem: Problem) -> Check:
    wrong = problem(receipt.kind, receipt.records)
    if wrong:
        text = f"written by keepstep {receipt.keepstep}, and this version cannot read it: {wrong}"
        return Check(what="records", answer=Answer.NO, text=text)
    return Check(what="records", answer=Answer.YES, text=f"records of a {receipt.kind.value}")


def _drift(found: Drift) -> Check:
    if found.unknown:
        return Check(what="drift", answer=Answer.UNKNOWN, text=found.unknown)
    if found.changed:
        lines = [f"{each.fact}: was {each.then}, is {each.now}" for each in found.changed]
        text = f"the stack {found.stack} has drifted: {'; '.join(lines)}"
        return Check(what="drift", answer=Answer.NO, text=text)
    text = f"the stack {found.stack} is what it was: {found.compared} facts are the same"
    return Check(what="drift", answer=Answer.YES, text=text)
