"""What NCCL's RAS service says about ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepstep.diagnosis.evidence import Life, Observation
from keepstep.incident import ras


def answer(*communicators: dict[str, Any]) -> bytes:
    return json.dumps({"nccl_version": "2.28.9", "communicators": list(communicators)}).encode()


def communicator(name: str, counts: dict[int, int], **more: Any) -> dict[str, Any]:
    ranks = [
        {"rank": rank, "collective_counts": {"AllReduce": count, "Broadcast": 1}}
        for rank, count in counts.items()
    ]
    return {"hash": name, "size": 3, "ranks": ranks, **more}


def test_an_answer_is_recognised() -> None:
    assert ras.is_ras(answer())
    assert not ras.is_ras(b'{"communicators": []}')


def test_counts_of_all_communicators_that_span_the_world() -> None:
    small = {**communicator("c", {0: 99}), "size": 2}
    body = answer(communicator("a", {0: 7, 1: 6}), communicator("b", {0: 2}), small)
    assert ras.parse(body, 3) == {
        0: Observation(life=Life.ALIVE, collective_counts={"a": (7, 1), "b": (2, 1)}),
        1: Observation(life=Life.ALIVE, collective_counts={"a": (6, 1)}),
    }


def test_a_rank_that_is_missing_in_one_communicator_is_missing() -> None:
    dead = {"rank": 2, "status": {"considered_dead": True}}
    first = communicator("a", {0: 7}, missing_ranks=[{"rank": 1}, dead])
    found = ras.parse(answer(first, communicator("b", {0: 7, 1: 7, 2: 7})), 3)
    assert found[1].life is Life.UNRESPONSIVE
    assert found[2] == Observation(life=Life.DEAD, why="NCCL RAS considers it dead")


@pytest.mark.parametrize("rank", ["1", True, None, [], -1, 3, 10**30])
def test_a_rank_that_the_job_does_not_have_makes_the_answer_worthless(rank: object) -> None:
    row = {"rank": rank, "collective_counts": {}}
    assert ras.parse(answer({"hash": "a", "size": 3, "ranks": [row]}), 3) == {}
    missing = {"hash": "a", "size": 3, "missing_ranks": [{"rank": rank}]}
    assert ras.parse(answer(missing), 3) == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"null",
        b'{"communicators": 5}',
        b'{"communicators": [5]}',
        b'{"communicators": [{"size": 3}]}',
        b'{"communicators": [{"size": 3, "hash": 1, "ranks": [{"rank": 0}]}]}',
        b'{"communicators": [{"size": 3, "hash": 1, "ranks": [{"rank": 0, "collective_counts":'
        b' {"x": Infinity}}]}]}',
        b"[" * 200_000,
    ],
)
def test_anything_else_says_nothing(body: bytes) -> None:
    assert ras.parse(body, 3) == {}
