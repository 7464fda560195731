"""Which dumps are due: the table knows each spelling, and says where that is from."""

from __future__ import annotations

import pytest

from keepstep.drills.expected import TABLE, VARIABLE, Dump, expected, implementation

WRITTEN, ABSENT, UNKNOWN = Dump.WRITTEN, Dump.ABSENT, Dump.UNKNOWN


@pytest.mark.parametrize(
    ("backend", "minor", "lever", "built"),
    [
        ("nccl", "2.14", None, "nccl-legacy"),
        ("nccl", "2.14", "1", "nccl2"),
        ("nccl", "2.14", "0", "nccl-legacy"),
        ("nccl", "2.15", None, "nccl2"),
        ("nccl", "2.15", "0", "nccl-legacy"),
        ("nccl", "2.15", "1", "nccl2"),
        ("nccl-lazy", "2.15", "0", "nccl-lazy"),
        ("gloo", "2.15", "0", "gloo"),
    ],
)
def test_the_name_alone_does_not_say_what_is_built(
    backend: str, minor: str, lever: str | None, built: str
) -> None:
    variables = {} if lever is None else {VARIABLE: lever}
    assert implementation(backend, minor, variables) == built


@pytest.mark.parametrize(
    ("backend", "minor", "waiting", "held"),
    [
        ("gloo", "2.14", ABSENT, ABSENT),
        ("gloo", "2.15", ABSENT, ABSENT),
        ("nccl", "2.15", WRITTEN, ABSENT),
        ("nccl2", "2.14", ABSENT, ABSENT),
        ("nccl-lazy", "2.15", ABSENT, ABSENT),
        ("nccl-legacy", "2.15", WRITTEN, WRITTEN),
        ("nccl", "2.11", WRITTEN, WRITTEN),
        ("nccl", "2.14", WRITTEN, WRITTEN),
        ("nccl", "2.10", UNKNOWN, UNKNOWN),
        ("ucc", "2.15", UNKNOWN, UNKNOWN),
        ("gloo", "", UNKNOWN, UNKNOWN),
    ],
)
def test_who_writes_a_dump(backend: str, minor: str, waiting: Dump, held: Dump) -> None:
    found = expected(backend, minor, {})
    assert (found.waiting, found.held) == (waiting, held)


def test_the_lever_changes_what_is_due() -> None:
    assert expected("nccl", "2.15", {VARIABLE: "0"}) == expected("nccl-legacy", "2.15", {})


def test_every_row_says_where_it_is_from_and_how_to_get_what_is_missing() -> None:
    rows = [row for rows in TABLE.values() for _, row in rows]
    assert all(row.source and row.way and row.end for row in rows)


def test_rows_are_in_the_order_of_their_versions() -> None:
    for rows in TABLE.values():
        versions = [since for since, _ in rows]
        assert versions == sorted(versions)
