"""Who waits for whom, told from the same evidence as a stall."""

from __future__ import annotations

from typing import Any

import pytest

from keepstep.runtime.board import Condition, Row, name_waits


def member(rank: int, condition: Condition, sequence: int = 10, **facts: Any) -> Row:
    given: dict[str, Any] = {"age": 1.0, "generation": 2, "host": "h", "pid": 1}
    return Row(wid=rank, rank=rank, condition=condition, sequence=sequence, **{**given, **facts})


def waits(*rows: Row) -> dict[int, tuple[int, ...]]:
    return {row.wid: row.waits_for for row in name_waits(rows) if row.waits_for}


WAIT, STEP, LOST = Condition.COLLECTIVE, Condition.STEP, Condition.LOST


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([member(0, WAIT), member(1, STEP)], {0: (1,)}, id="outside the collective"),
        pytest.param([member(0, WAIT), member(1, WAIT, 9)], {0: (1,)}, id="one collective behind"),
        pytest.param([member(0, WAIT), member(1, WAIT)], {}, id="all inside"),
        pytest.param([member(0, STEP), member(1, STEP)], {}, id="all compute"),
        pytest.param(
            [member(0, STEP, 11), member(1, STEP, 10)], {0: (1,)}, id="inside one of the user's"
        ),
        pytest.param([member(0, WAIT), member(1, LOST)], {0: (1,)}, id="lost"),
        pytest.param([member(0, WAIT), member(1, Condition.STOPPED)], {0: (1,)}, id="stopped"),
        pytest.param([member(0, WAIT, age=0.1), member(1, STEP)], {}, id="not worth a word"),
        pytest.param([member(0, WAIT), member(1, STEP, local=False)], {}, id="the news may be old"),
        pytest.param(
            [member(0, WAIT, age=3.0), member(1, STEP, local=False)], {0: (1,)}, id="another host"
        ),
        pytest.param(
            [member(0, WAIT), member(1, STEP, generation=1)], {}, id="of another generation"
        ),
        pytest.param(
            [member(0, WAIT), member(1, WAIT), member(2, STEP), member(3, LOST)],
            {0: (2, 3), 1: (2, 3)},
            id="two of four",
        ),
    ],
)
def test_who_waits_for_whom(rows: list[Row], expected: dict[int, tuple[int, ...]]) -> None:
    assert waits(*rows) == expected
    assert waits(*reversed(rows)) == expected


def test_a_spare_waits_for_nobody() -> None:
    spare = Row(wid=5, rank=None, host="h", pid=1, condition=Condition.SPARE, age=50.0)
    assert waits(member(0, STEP), spare) == {}
