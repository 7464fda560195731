"""The signed envelope: DSSE v1.0.2, one payload and one signature.

https://github.com/secure-systems-lab/dsse/blob/v1.0.2/protocol.md and envelope.md. The standard
leaves the key id unsigned and lets an envelope have several signatures and either base64 alphabet.
Here it has one form only: one signature, the standard alphabet, the id of the key that signed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature

from keepstep.receipt.canonical import from_canonical, to_canonical
from keepstep.receipt.errors import BadSignatureError, NotAReceiptError, UntrustedKeyError
from keepstep.receipt.keys import PublicKey, SigningKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_KEY_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What lies in a receipt's file; nothing of it is believed until ``check`` has passed."""

    payload: bytes
    key_id: str
    signature: bytes


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: type and payload, each with its length before it."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def wrap(payload: bytes, key: SigningKey) -> bytes:
    """Return the file of a payload: its envelope as one line of canonical JSON."""
    signature = key.sign(pre_authentication_encoding(PAYLOAD_TYPE, payload))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key.id, "sig": base64.b64encode(signature).decode()}],
    }
    return to_canonical(envelope) + b"\n"


def unwrap(data: bytes) -> Envelope:
    """Return what lies in a file, without believing it.

    Raises:
        NotAReceiptError: It differs from what ``wrap`` writes, and in what.
    """
    if not data.endswith(b"\n"):
        raise NotAReceiptError("no receipt: it does not end with a line end; is it cut off?")
    try:
        found = from_canonical(data[:-1])
    except ValueError as error:
        raise NotAReceiptError(f"no receipt: {error}") from None
    fields = _exactly(found, {"payload", "payloadType", "signatures"}, "the envelope")
    if fields["payloadType"] != PAYLOAD_TYPE:
        seen = str(fields["payloadType"])[:80]
        raise NotAReceiptError(f"no receipt: its payload is {seen!r}; wanted {PAYLOAD_TYPE!r}")
    signatures = fields["signatures"]
    if not isinstance(signatures, list) or len(signatures) != 1:
        raise NotAReceiptError("no receipt: it does not have exactly one signature")
    signature = _exactly(signatures[0], {"keyid", "sig"}, "the signature")
    if not _KEY_ID.fullmatch(str(signature["keyid"])):
        raise NotAReceiptError("no receipt: its key id is not 64 hexadecimal digits")
    return Envelope(
        payload=_bytes(fields["payload"], "payload"),
        key_id=signature["keyid"],
        signature=_bytes(signature["sig"], "signature"),
    )


def check(envelope: Envelope, trusted: Mapping[str, PublicKey]) -> None:
    """Return if a trusted key signed exactly this payload.

    Args:
        envelope: What lies in a file.
        trusted: Keys by their id, from ``keys.trusted_keys``.

    Raises:
        UntrustedKeyError: The key that it names is not among them.
        BadSignatureError: That key did not sign this.
    """
    key = trusted.get(envelope.key_id)
    if key is None:
        raise UntrustedKeyError(
            f"signed with the key {envelope.key_id}, which is not trusted here; if you know "
            "whose it is: --key FILE with its public half, or put that file into the folder "
            "`trusted` that `keepstep receipt key` names"
        )
    try:
        key.verify(envelope.signature, pre_authentication_encoding(PAYLOAD_TYPE, envelope.payload))
    except InvalidSignature:
        raise BadSignatureError(
            f"the signature is not one of the key {envelope.key_id} over this content: "
            "the file was changed after it was signed; get it again from where it was made"
        ) from None


def _exactly(value: Any, names: set[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        wanted = ", ".join(sorted(names))
        raise NotAReceiptError(f"no receipt: {what} does not have exactly the fields {wanted}")
    return value


def _bytes(text: Any, what: str) -> bytes:
    """Return what base64 says. Several texts may mean the same bytes; only one is taken."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise NotAReceiptError(f"no receipt: its {what} is not base64") from None
    if base64.b64encode(found).decode() != text:
        raise NotAReceiptError(f"no receipt: its {what} is not written as base64 is written here")
    return found
