"""Nothing of a receipt can be changed: each byte, each form, each part of it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from keepstep.receipt.canonical import from_canonical, to_canonical
from keepstep.receipt.envelope import PAYLOAD_TYPE, pre_authentication_encoding, unwrap, wrap
from keepstep.receipt.errors import (
    BadSignatureError,
    NotAReceiptError,
    ReceiptError,
    UntrustedKeyError,
)
from keepstep.receipt.keys import SigningKey, key_id
from keepstep.receipt.sealed import open_receipt
from tests.receipt.receipts import KEY, OTHER, TRUSTED, as_file, enveloped, parts, payload, small

BOTH = {**TRUSTED, OTHER.id: OTHER.public}
# The group's order: adding it to the second half of a signature was a way to forge variants.
_ORDER = (1 << 252) + 27742317777372353535851937790883648493


# The standard's own vector: DSSE v1.0.2, protocol.md, "Test Vectors". It is signed with another
# kind of key (P-256), so it shows what this shares with other programs: the bytes that are signed.

VECTOR_KEY = ec.EllipticCurvePublicNumbers(
    x=46950820868899156662930047687818585632848591499744589407958293238635476079160,
    y=5640078356564379163099075877009565129882514886557779369047442380624545832820,
    curve=ec.SECP256R1(),
).public_key()
VECTOR_SIGNATURE = base64.b64decode(
    "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="
)


def test_the_encoding_is_that_of_the_standard() -> None:
    encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    r, s = (int.from_bytes(half) for half in (VECTOR_SIGNATURE[:32], VECTOR_SIGNATURE[32:]))
    VECTOR_KEY.verify(encode_dss_signature(r, s), encoded, ec.ECDSA(hashes.SHA256()))


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        ("", b"", b"DSSEv1 0  0 "),
        ("é", b"\x00\n", b"DSSEv1 2 \xc3\xa9 2 \x00\n"),
        ("a 1 b", b"", b"DSSEv1 5 a 1 b 0 "),  # no type can be taken for a length
    ],
)
def test_lengths_are_those_of_bytes(kind: str, body: bytes, wanted: bytes) -> None:
    assert pre_authentication_encoding(kind, body) == wanted


def test_the_signature_is_plain_ed25519_over_the_encoding() -> None:
    """Any other program finds the same: RFC 8032, test 1, its key over our encoding."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    private = Ed25519PrivateKey.from_private_bytes(seed)
    assert private.public_key().public_bytes_raw().hex() == (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )
    key = SigningKey(id=key_id(private.public_key()), private=private)
    envelope = parts(wrap(b"{}", key))
    message = b"DSSEv1 28 application/vnd.in-toto+json 2 {}"
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    private.public_key().verify(signature, message)
    assert envelope["payloadType"] == PAYLOAD_TYPE
    assert base64.b64decode(envelope["payload"]) == b"{}"


# Changes. Whatever is done to the bytes, the receipt does not open.


def refused(data: bytes, error: type[ReceiptError] = ReceiptError) -> None:
    """The bytes are no receipt that opens, also where every key is trusted."""
    with pytest.raises(error):
        open_receipt(data, BOTH)


def test_it_opens_as_it_is() -> None:
    assert open_receipt(small(), TRUSTED).records == {"a": 1.5}


def test_every_bit_of_every_byte_counts() -> None:
    data = small()
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            refused(bytes(changed))


def test_no_byte_can_be_left_out_or_put_in() -> None:
    data = small()
    for at in range(len(data)):
        refused(data[:at] + data[at + 1 :])
        for more in (b" ", b"\n", b"0", b"A", b"\0"):
            refused(data[:at] + more + data[at:])


def test_no_end_can_be_cut_off_and_nothing_can_follow() -> None:
    data = small()
    for length in range(len(data)):
        refused(data[:length], NotAReceiptError)
    for more in (b"\n", b" ", b"{}", b"\0", data):
        refused(data + more, NotAReceiptError)
    refused(b"\xef\xbb\xbf" + data, NotAReceiptError)


def test_other_texts_of_the_same_json_are_refused() -> None:
    envelope = parts(small())
    refused(json.dumps(envelope).encode() + b"\n", NotAReceiptError)
    refused(json.dumps(envelope, indent=1).encode() + b"\n", NotAReceiptError)
    backwards = dict(reversed(list(envelope.items())))
    refused(json.dumps(backwards, separators=(",", ":")).encode() + b"\n", NotAReceiptError)
    refused(small().replace(b'"payload"', b'"\\u0070ayload"'), NotAReceiptError)
    refused(small().replace(b"/vnd", b"\\/vnd"), NotAReceiptError)


@pytest.mark.parametrize("name", ["payload", "payloadType", "signatures"])
def test_a_key_twice_is_refused_wherever_it_stands(name: str) -> None:
    """Readers disagree on which of the two counts."""
    envelope = parts(small())
    pair = f'"{name}":{json.dumps(envelope[name], separators=(",", ":"))},'.encode()
    refused(small().replace(b"{", b"{" + pair, 1), NotAReceiptError)
    other = f'"{name}":"AAAA",'.encode()
    refused(small().replace(b"{", b"{" + other, 1), NotAReceiptError)


def test_a_key_twice_inside_the_payload_is_refused_though_it_is_signed() -> None:
    inner = payload(small()).replace(b'"format":1', b'"format":1,"format":1')
    refused(enveloped(inner), NotAReceiptError)


def test_other_forms_of_base64_are_refused() -> None:
    envelope = parts(small())
    text = envelope["payload"]
    variants = [
        text.rstrip("=") if text.endswith("=") else text + "=",
        text + "====",
        text[:40] + "\n" + text[40:],
        " " + text,
        base64.urlsafe_b64encode(b"\xfb\xff\xfe").decode() + text,
        base64.b64encode(payload(small()) + b" ").decode(),
    ]
    for variant in variants:
        refused(as_file({**envelope, "payload": variant}))
    signature = envelope["signatures"][0]
    raw = base64.b64decode(signature["sig"])
    # The last digit before == has four bits that mean nothing.
    loose = signature["sig"][:85] + chr(ord(signature["sig"][85]) + 1) + "=="
    for variant in (loose, base64.urlsafe_b64encode(b"\xff" + raw[1:]).decode(), "", None, 5):
        refused(as_file({**envelope, "signatures": [{**signature, "sig": variant}]}))


def test_one_signature_and_no_other_beside_it() -> None:
    envelope = parts(small())
    (own,) = envelope["signatures"]
    (other,) = parts(enveloped(payload(small()), OTHER))["signatures"]
    for signatures in ([], [own, own], [own, other], [other, own], own, None, [[own]]):
        refused(as_file({**envelope, "signatures": signatures}), NotAReceiptError)
    refused(as_file({**envelope, "signatures": [{**own, "cert": "x"}]}), NotAReceiptError)
    refused(as_file({**envelope, "more": 1}), NotAReceiptError)


def test_payloads_cannot_change_places() -> None:
    first, second = parts(small()), parts(enveloped(payload(small()).replace(b"1.5", b"2.5")))
    assert open_receipt(as_file(second), TRUSTED).records == {"a": 2.5}
    refused(as_file({**first, "payload": second["payload"]}), BadSignatureError)
    refused(as_file({**second, "payload": first["payload"]}), BadSignatureError)


def test_the_key_id_cannot_lie() -> None:
    """The standard leaves it unsigned; here a wrong one is refused, also that of a trusted key."""
    envelope = parts(small())
    (own,) = envelope["signatures"]
    lie = {**envelope, "signatures": [{**own, "keyid": OTHER.id}]}
    refused(as_file(lie), BadSignatureError)
    for wrong in ("", KEY.id.upper(), KEY.id[:16], KEY.id + "0", None, 7, {"a": 1}):
        refused(as_file({**envelope, "signatures": [{**own, "keyid": wrong}]}), NotAReceiptError)


def test_a_key_that_is_not_trusted_is_named() -> None:
    with pytest.raises(UntrustedKeyError, match=KEY.id):
        open_receipt(small(), {})
    with pytest.raises(UntrustedKeyError):
        open_receipt(small(), {OTHER.id: OTHER.public})


def test_a_signature_has_one_form_only() -> None:
    """Adding the group's order to a signature gives another that a careless reader accepts."""
    envelope = parts(small())
    (own,) = envelope["signatures"]
    raw = base64.b64decode(own["sig"])
    larger = int.from_bytes(raw[32:], "little") + _ORDER
    variant = raw[:32] + larger.to_bytes(32, "little")
    sig = base64.b64encode(variant).decode()
    refused(as_file({**envelope, "signatures": [{**own, "sig": sig}]}), BadSignatureError)


@pytest.mark.parametrize("kind", ["application/json", "", None, "application/vnd.in-toto+json "])
def test_another_payload_type_is_refused_though_it_is_signed(kind: str | None) -> None:
    body = payload(small())
    signature = KEY.sign(pre_authentication_encoding(str(kind), body))
    sig = base64.b64encode(signature).decode()
    envelope = {**parts(small()), "payloadType": kind}
    refused(as_file({**envelope, "signatures": [{"keyid": KEY.id, "sig": sig}]}), NotAReceiptError)


# What is signed as it should be, and is nonsense.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'"\\ud800"',
        b"NaN",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":-0}',
        b'{"a":1.0}',
        b'{"a":9007199254740993}',
        b'{"a":' + b"9" * 100_000 + b"}",
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"a":1}x',
        b'{"a":1}\n',
    ],
)
def test_nonsense_is_refused_though_it_is_signed(body: bytes) -> None:
    refused(enveloped(body), NotAReceiptError)
    refused(body + b"\n", NotAReceiptError)


def _changed(path: str, value: Any) -> bytes:
    """A signed receipt of which one field is another one."""
    body = json.loads(payload(small()))
    *folders, name = path.split(".")
    place = body
    for folder in folders:
        place = place[int(folder)] if folder.isdigit() else place[folder]
    if value is KeyError:
        del place[name]
    else:
        place[name] = value
    return enveloped(to_canonical(body))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("_type", "https://in-toto.io/Statement/v0.1"),
        ("predicateType", "urn:keepstep:receipt:cell:v2"),
        ("predicateType", 3),
        ("subject", []),
        ("subject", KeyError),
        ("subject.0.digest.sha256", "0" * 63),
        ("subject.0.digest.sha256", "A" * 64),
        ("subject.0.digest.md5", "0" * 32),
        ("subject.0.name", ""),
        ("predicate.more", 1),
        ("predicate.records", []),
        ("predicate.records", KeyError),
        ("predicate.format", 2),
        ("predicate.format", "1"),
        ("predicate.format", True),
        ("predicate.issued", "2026-11-30 09:00:00"),
        ("predicate.issued", "2026-11-31T09:00:00Z"),
        ("predicate.issued", "2026-11-3T09:00:00Z"),
        ("predicate.issued", "2027-11-30T09:00:00Z"),  # after it expires
        ("predicate.expires", None),
        ("predicate.material", {"new": {"rank 0": {"torch": 2.15}}}),
        ("predicate.host", 1),
    ],
)
def test_a_statement_that_is_not_exactly_one_is_refused(path: str, value: Any) -> None:
    refused(_changed(path, value), NotAReceiptError)


def test_subjects_are_in_order_and_each_is_there_once() -> None:
    body = json.loads(payload(small()))
    body["subject"] *= 2
    refused(enveloped(to_canonical(body)), NotAReceiptError)


# Canonical JSON: what is written is read back, and nothing else is read.

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_whatever_is_written_is_read_and_written_alike(value: Any) -> None:
    data = to_canonical(value)
    assert to_canonical(from_canonical(data)) == data


@given(st.binary(max_size=60))
def test_bytes_are_read_exactly_or_refused(data: bytes) -> None:
    try:
        value = from_canonical(data)
    except ValueError:
        return
    assert to_canonical(value) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_as_an_envelope(data: bytes) -> None:
    with pytest.raises(NotAReceiptError):
        unwrap(data + b"\n")


def test_large_numbers_become_text_and_half_characters_a_mark() -> None:
    assert from_canonical(to_canonical({"seed": (1 << 63) + 5})) == {"seed": str((1 << 63) + 5)}
    assert from_canonical(to_canonical("x\udcff\ud800")) == "x\ufffd\ufffd"
    assert from_canonical(to_canonical([float("nan"), float("-inf")])) == ["nan", "-inf"]
    assert from_canonical(to_canonical(1e20)) == 1e20
