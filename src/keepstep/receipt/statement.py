"""What is signed: an in-toto Statement v1 about a cell, a drill or a whole rehearsal.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from keepstep.receipt.canonical import from_canonical, to_canonical
from keepstep.receipt.errors import NotAReceiptError
from keepstep.receipt.material import Material

TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE = "urn:keepstep:receipt:{}:v1"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_EXAMPLE = "2026-11-30T09:00:00Z"

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Kind(StrEnum):
    """What a receipt is about; its records are as the part that wrote them defines them."""

    CELL = "cell"  # records: runs (RunRecord) and verdict (CellVerdict)
    DRILL = "drill"  # records: DrillRecord
    REHEARSAL = "rehearsal"  # records: Rehearsal


class _Exact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Digest(_Exact):
    """What identifies a file."""

    sha256: Sha256


class Subject(_Exact):
    """One file that the receipt is about."""

    name: Annotated[str, StringConstraints(min_length=1)]
    digest: Digest


class Predicate(_Exact):
    """What is said about the subjects."""

    format: Annotated[int, Field(ge=1, le=1)] = 1
    issued: str
    expires: str
    keepstep: str  # version
    host: str
    material: Material
    records: dict[str, Any]


class Statement(_Exact):
    """All that is signed."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1)]
    predicate_type: str = Field(alias="predicateType")
    predicate: Predicate


def payload_of(
    kind: Kind, subjects: dict[str, str], predicate: dict[str, Any]
) -> tuple[bytes, Statement]:
    """Return the bytes to sign, and what they say.

    Raises:
        ValueError: It cannot be said in a receipt, and why.
    """
    payload = to_canonical(
        {
            "_type": TYPE,
            "subject": [
                {"name": name, "digest": {"sha256": digest}}
                for name, digest in sorted(subjects.items())
            ],
            "predicateType": _PREDICATE.format(kind.value),
            "predicate": predicate,
        }
    )
    try:
        return payload, read_statement(payload)
    except NotAReceiptError as error:
        raise ValueError(f"it cannot be sealed: {error}") from None


def read_statement(payload: bytes) -> Statement:
    """Return what a payload says.

    Raises:
        NotAReceiptError: It is no statement of this program, and what is wrong with it.
    """
    try:
        from_canonical(payload)
        statement = Statement.model_validate_json(payload)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the statement"
        raise NotAReceiptError(f"no statement: {field}: {first['msg']}") from None
    except ValueError as error:
        raise NotAReceiptError(f"no statement: {error}") from None
    kind_of(statement)
    names = [subject.name for subject in statement.subject]
    if names != sorted(set(names)):
        raise NotAReceiptError("no statement: its subjects are not in order, or one is there twice")
    issued, expires = (
        read_time(text) for text in (statement.predicate.issued, statement.predicate.expires)
    )
    if expires <= issued:
        raise NotAReceiptError("no statement: it expires before it is issued")
    return statement


def kind_of(statement: Statement) -> Kind:
    """Return what a statement is about.

    Raises:
        NotAReceiptError: It is of a kind that this version does not know.
    """
    for kind in Kind:
        if statement.predicate_type == _PREDICATE.format(kind.value):
            return kind
    seen = statement.predicate_type[:80]
    wanted = ", ".join(_PREDICATE.format(kind.value) for kind in Kind)
    raise NotAReceiptError(f"no statement: its kind is {seen!r}; wanted one of {wanted}")


def time_text(time: datetime) -> str:
    """Return a time as a receipt writes it: UTC, whole seconds."""
    return time.astimezone(UTC).strftime(_TIME)


def read_time(text: str) -> datetime:
    """Return the time that a receipt names.

    Raises:
        NotAReceiptError: It is not written as ``time_text`` writes it.
    """
    try:
        time = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        time = None
    if time is None or time_text(time) != text:
        raise NotAReceiptError(
            f"no statement: {text[:40]!r} is no time such as 2026-11-30T09:00:00Z"
        )
    return time
