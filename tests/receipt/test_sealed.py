"""What a receipt says: sealed, opened, compared."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from keepstep.receipt.diff import FactPair, diff
from keepstep.receipt.material import Material, by_rank, differences
from keepstep.receipt.sealed import Receipt, open_receipt, read_unverified, seal
from keepstep.receipt.statement import Kind
from keepstep.report.records import CellRecords, problem, read_records
from tests.receipt.receipts import JOB, KEY, NEW, NOW, TRUSTED, cell_records, sealed


def opened(data: bytes) -> Receipt:
    return open_receipt(data, TRUSTED)


def test_what_was_sealed_is_what_is_opened() -> None:
    data = sealed()
    receipt = opened(data)
    assert receipt.kind is Kind.CELL
    assert receipt.subjects == {"data_parallel.py": JOB}
    assert receipt.issued == NOW
    assert receipt.expires == NOW + timedelta(days=30)
    assert receipt.material == NEW
    assert receipt.host == "node-a"
    assert receipt.key_id == KEY.id
    assert receipt.sha256 == hashlib.sha256(data).hexdigest()
    assert read_unverified(data) == receipt


def test_records_come_back_as_what_they_were() -> None:
    records = cell_records()
    found = read_records(Kind.CELL, opened(sealed(records)).records)
    assert found == CellRecords.model_validate(records)
    assert isinstance(found, CellRecords)
    assert found.runs[0].ranks[0].seed == (1 << 63) + 5, "beyond what JSON keeps exactly"


def test_sealing_the_same_again_gives_the_same_bytes() -> None:
    assert sealed() == sealed()


def test_times_are_utc_in_whole_seconds() -> None:
    there = datetime(2026, 11, 30, 10, 30, 0, 999_999, tzinfo=timezone(timedelta(hours=1.5)))
    assert opened(sealed(now=there)).issued == datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "promotion"}, "promotion"),
        ({"subject": {}}, "subject"),
        ({"subject": {"job.py": "abc"}}, "sha256"),
        ({"predicate": {"x": object()}}, "unsupported type"),
        ({"valid_days": 0}, "expires before"),
        ({"valid_days": -1}, "expires before"),
    ],
)
def test_what_cannot_be_said_is_refused_before_it_is_signed(
    change: dict[str, Any], says: str
) -> None:
    usual: dict[str, Any] = {"kind": "cell", "subject": {"job.py": JOB}, "predicate": {}}
    with pytest.raises(ValueError, match=says):
        seal(**{**usual, "key": KEY, "material": NEW, **change})


def test_what_could_not_be_opened_again_is_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstep.receipt.sealed.MOST_BYTES", len(sealed()) - 1)
    with pytest.raises(ValueError, match="at most"):
        sealed()
    monkeypatch.setattr("keepstep.receipt.canonical.MOST_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100"):
        sealed()


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ({}, "runs: Field required"),
        ({**cell_records(), "more": 1}, "more"),
        ({**cell_records(), "verdict": {}}, r"verdict\.cell"),
    ],
)
def test_records_of_another_form_are_named(records: dict[str, Any], says: str) -> None:
    assert says.replace("\\", "") in problem(Kind.CELL, records)
    assert problem(Kind.CELL, cell_records()) == ""


# What differs between ranks.


def test_a_rank_that_is_not_like_the_others_is_found() -> None:
    material = {"new": {**NEW["new"], "rank 2": {**NEW["new"]["rank 0"], "driver": "550.9"}}}
    (found,) = differences(material)
    assert (found.stack, found.fact) == ("new", "driver")
    assert found.values == {"580.1": ("rank 0", "rank 1"), "550.9": ("rank 2",)}
    assert differences(NEW) == ()


def test_a_fact_that_one_rank_does_not_say_differs() -> None:
    material = {"new": {"rank 0": {"torch": "2.15", "nccl": "2.30.7"}, "rank 1": {"torch": "2.15"}}}
    (found,) = differences(material)
    assert found.values == {"2.30.7": ("rank 0",), "(absent)": ("rank 1",)}


def test_stacks_may_differ_from_each_other() -> None:
    assert differences({"old": {"rank 0": {"torch": "2.14"}}, **NEW}) == ()


def test_a_rank_that_changes_between_runs_is_kept_twice() -> None:
    a, b = {"torch": "2.15"}, {"torch": "2.15", "driver": "new"}
    assert by_rank("new", [{0: a, 1: a}, {0: a, 1: a}]) == {"new": {"rank 0": a, "rank 1": a}}
    material = by_rank("new", [{0: a, 1: a}, {0: a, 1: b}])
    assert material == {"new": {"rank 0": a, "rank 1": a, "rank 1 of run 1": b}}
    assert differences(material)[0].fact == "driver"
    assert by_rank("new", []) == {}


# Two receipts beside each other.


def test_the_same_twice_does_not_differ() -> None:
    found = diff(opened(sealed()), opened(sealed()))
    assert found.material == ()
    assert found.measured == ()


def test_what_they_ran_on_comes_first_then_what_was_measured() -> None:
    old: Material = {"old": {"rank 0": {**NEW["new"]["rank 0"], "torch": "2.14.1+cu130"}}}
    found = diff(
        opened(sealed(cell_records(0.02), material=old)), opened(sealed(cell_records(0.03)))
    )
    assert found.material == (
        FactPair(stack="old / new", fact="torch", a=("2.14.1+cu130",), b=("2.15.0+cu132",)),
    )
    (steps,) = found.measured
    assert steps.path == "runs.ranks.steps.seconds"
    assert (steps.a, steps.b) == (0.02, 0.03)
    assert steps.ratio == pytest.approx(1.5)


def test_a_verdict_that_differs_is_shown_as_text() -> None:
    from keepstep.canary.verdict import Verdict

    other = cell_records(verdict=Verdict.FAIL)
    found = diff(opened(sealed()), opened(sealed(other)))
    assert {pair.path: pair.b for pair in found.measured} == {
        "verdict.verdict": ("fail",),
        "verdict.gates[crash].verdict": ("fail",),
    }
