"""The line about losses and gradient norms says what the records say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepstep.report.data import as_json
from keepstep.report.html import as_html
from keepstep.report.model import Numbers
from keepstep.report.numbers import numbers_line
from keepstep.report.text import as_text
from tests.report.rehearsals import rehearsal

WHAT = "Losses and gradient norms, new stack against old"


def one(job: str, lever: str = "", **changes: Any) -> Numbers:
    facts: dict[str, Any] = {
        "cell": f"{job}/2.15/gloo{lever}",
        "against": f"{job}/2.14/gloo",
        "runs": 5,
        "reference_runs": 5,
        "steps": 10,
    }
    return Numbers.model_validate(facts | changes)


DIFFERS: dict[str, Any] = {"difference": 1.25e-7, "where": "loss of step 3 on rank 1"}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "this record does not say; the same command compares them."),
        ((), "not known, no cell of the new stack was run beside one of the old."),
        (
            (one("dp"), one("dp", "-lever"), one("tp")),
            "equal to the last bit in 3 of 3 compared cells, on every rank in the first 10 steps "
            "of 10 runs of the old stack and 15 of the new one.",
        ),
        (
            (one("dp"), one("tp", **DIFFERS)),
            "equal to the last bit in 1 of 2 compared cells, on every rank in the first 10 steps "
            "of 5 runs of the old stack and 5 of the new one; not equal in tp/2.15/gloo, where the "
            "largest relative difference is 1.25e-07 (loss of step 3 on rank 1) of the first 10 "
            "steps in 5 and 5 runs.",
        ),
        (
            (one("dp", missing="no complete run of dp/2.15/gloo", runs=0),),
            "not known in dp/2.15/gloo (no complete run of dp/2.15/gloo).",
        ),
    ],
)
def test_every_form_has_the_line(found: tuple[Numbers, ...] | None, said: str) -> None:
    record = rehearsal(numbers=found)
    assert numbers_line(record) == f"{WHAT}: {said}"
    assert f"{WHAT}: {said}" in as_text(record, 1000)
    assert f"{WHAT}: {said}" in as_html(record)
    assert json.loads(as_json(record))["numbers"] == f"{WHAT}: {said}"


def test_the_worst_of_several_cells_is_named() -> None:
    worse = one("tp", difference=0.5, where="gradient norm of step 0 on rank 0")
    line = numbers_line(rehearsal(numbers=(one("dp", **DIFFERS), worse)))
    assert "not equal in dp/2.15/gloo and tp/2.15/gloo" in line
    assert "0.5 (gradient norm of step 0 on rank 0, tp/2.15/gloo)" in line
