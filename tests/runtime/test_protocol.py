"""Messages keep their meaning on the wire; what is no message is refused."""

from __future__ import annotations

import types
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import protocol as p

FIRST = p.Fence(wid=1, why="first")
SECOND = p.Fence(wid=2, why="second")


def concrete_kinds() -> list[type[p.Message]]:
    kinds = [kind for kind in vars(p).values() if isinstance(kind, type)]
    messages = [kind for kind in kinds if issubclass(kind, p.Message)]
    return [kind for kind in messages if kind not in (p.Message, p.Report)]


KINDS = concrete_kinds()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        Any: json_values,
        type(None): st.none(),
        int: st.integers(),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text(max_size=8),
    }
    return plain[hint]


def messages_of(kind: type[p.Message]) -> st.SearchStrategy[p.Message]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hint) for name, hint in hints.items()})


def test_every_kind_is_known_by_its_name() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert len(names) == len(KINDS)
    assert names >= {"Hello", "Proposal", "Form", "Finish", "Summary"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_every_kind_survives_json_and_dictionary(kind: type[p.Message], data: Any) -> None:
    message = data.draw(messages_of(kind))
    line = p.to_json(message)
    assert b"\n" not in line
    assert p.from_json(line) == message
    assert p.from_dict(p.to_dict(message)) == message


WRONG = {str: 1, int: "1", float: "1.0", bool: 1, list: {}, dict: []}


def wrong_fields() -> list[Any]:
    cases = []
    for kind in KINDS:
        for name, hint in typing.get_type_hints(kind).items():
            wrong = WRONG.get(typing.get_origin(hint) or hint, "neither number nor nothing")
            cases.append(pytest.param(kind, name, wrong, id=f"{kind.__name__}.{name}"))
    return cases


@pytest.mark.parametrize(("kind", "name", "wrong"), wrong_fields())
def test_a_field_of_another_type_is_refused(
    kind: type[p.Message], name: str, wrong: object
) -> None:
    with pytest.raises(p.ProtocolError, match=name):
        p.from_dict({"kind": kind.__name__, name: wrong})


def test_true_is_not_a_number() -> None:
    with pytest.raises(p.ProtocolError, match=r"Fence\.wid"):
        p.from_dict({"kind": "Fence", "wid": True, "why": ""})


def test_an_integer_stands_for_a_float() -> None:
    assert p.from_dict({"kind": "Lease", "sent": 3, "patience": 1}) == p.Lease(
        sent=3.0, patience=1.0
    )


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "Fence", "wid": 1},
        {"kind": "Fence", "wid": 1, "why": "", "more": 1},
        {"kind": "Fnece"},
        {"kind": None},
        {"kind": ["Fence"]},
        {"kind": "__init__"},
        {},
    ],
)
def test_missing_fields_surplus_fields_and_unknown_kinds_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(p.ProtocolError):
        p.from_dict(body)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"3", b'"Fence"', b"null", b"\xff\xfe", b"{}x"])
def test_what_is_no_json_object_is_refused(line: bytes) -> None:
    with pytest.raises(p.ProtocolError):
        p.from_json(line)


@settings(max_examples=50, deadline=None)
@given(line=st.binary(max_size=60))
def test_random_bytes_are_refused_and_nothing_else_happens(line: bytes) -> None:
    with pytest.raises(p.ProtocolError):
        p.from_json(line)


def test_deeply_nested_json_is_refused_like_any_other_nonsense() -> None:
    with pytest.raises(p.ProtocolError):
        p.from_json(b"[" * 100_000)


@pytest.mark.parametrize("name", ["Message", "Report"])
def test_the_base_of_messages_is_no_message(name: str) -> None:
    fields = {"wid": 1} if name == "Report" else {}
    with pytest.raises(p.ProtocolError):
        p.from_dict({"kind": name, **fields})


def test_expect_returns_the_wanted_kind_and_refuses_another() -> None:
    assert p.expect(FIRST, p.Fence) is FIRST
    with pytest.raises(p.ProtocolError, match="expected Halt, got Fence"):
        p.expect(FIRST, p.Halt)
