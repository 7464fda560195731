"""A receipt: sealed by the one who saw, opened by the one who wants to know."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from keepstep._version import __version__
from keepstep.receipt.canonical import MOST_BYTES
from keepstep.receipt.envelope import Envelope, check, unwrap, wrap
from keepstep.receipt.keys import PublicKey, SigningKey
from keepstep.receipt.material import Material
from keepstep.receipt.statement import (
    Kind,
    kind_of,
    payload_of,
    read_statement,
    read_time,
    time_text,
)

VALID_DAYS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a receipt says."""

    kind: Kind
    subjects: dict[str, str]  # name of a file to its SHA-256
    issued: datetime
    expires: datetime
    keepstep: str  # the version that wrote it
    host: str
    material: Material
    records: dict[str, Any]
    key_id: str
    sha256: str  # of the receipt's own file, by which other receipts and approvals name it


def seal(
    kind: Kind | str,
    subject: Mapping[str, str],
    predicate: Mapping[str, Any],
    *,
    key: SigningKey,
    material: Material,
    valid_days: float = VALID_DAYS,
    host: str | None = None,
    now: datetime | None = None,
) -> bytes:
    """Return the file of a receipt: a DSSE envelope around an in-toto Statement v1.

    Args:
        kind: ``cell``, ``drill`` or ``rehearsal``.
        subject: The files it is about (job script, plan, checkpoint metadata): name to SHA-256.
        predicate: The records, of JSON types: ``model_dump(mode="json")`` of them.
        key: Who says so, such as ``default_key()``.
        material: What it ran on, by stack and process.
        valid_days: After how many days it proves nothing any more.
        host: Where it ran; this host unless told otherwise.
        now: When it is issued; the clock's time unless told otherwise.

    Raises:
        ValueError: It cannot be said in a receipt, and why.
    """
    issued = (now or datetime.now(UTC)).replace(microsecond=0)
    body = {
        "format": 1,
        "issued": time_text(issued),
        "expires": time_text(issued + timedelta(days=valid_days)),
        "keepstep": __version__,
        "host": platform.node() if host is None else host,
        "material": material,
        "records": predicate,
    }
    payload, _ = payload_of(Kind(kind), dict(subject), body)
    data = wrap(payload, key)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it would have {len(data)} bytes; a receipt has at most {MOST_BYTES}")
    return data


def open_receipt(data: bytes, trusted: Mapping[str, PublicKey]) -> Receipt:
    """Return what a receipt says, after its signature was verified.

    Whether it has expired, and whether what it ran on is still there, is another question:
    ``keepstep.receipt.verify``.

    Args:
        data: The content of its file.
        trusted: Keys by their id, from ``trusted_keys()``.

    Raises:
        ReceiptError: It proves nothing: changed, cut off, signed by somebody unknown.
    """
    envelope = unwrap(data)
    check(envelope, trusted)
    return _receipt(data, envelope)


def read_unverified(data: bytes) -> Receipt:
    """Return what a file says, whoever wrote it: to look at, never to rely on.

    Raises:
        NotAReceiptError: It has not the form of a receipt.
    """
    return _receipt(data, unwrap(data))


def _receipt(data: bytes, envelope: Envelope) -> Receipt:
    statement = read_statement(envelope.payload)
    body = statement.predicate
    return Receipt(
        kind=kind_of(statement),
        subjects={each.name: each.digest.sha256 for each in statement.subject},
        issued=read_time(body.issued),
        expires=read_time(body.expires),
        keepstep=body.keepstep,
        host=body.host,
        material=body.material,
        records=body.records,
        key_id=envelope.key_id,
        sha256=hashlib.sha256(data).hexdigest(),
    )
