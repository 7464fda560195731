"""What follows from proofs: without evidence, or without the fault itself, nothing passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.canary.verdict import Verdict
from keepstep.drills.notebook import Notebook, decide
from keepstep.drills.record import Proof

PASS, FAIL = Verdict.PASS, Verdict.FAIL
INCONCLUSIVE, NOT_RUN = Verdict.INCONCLUSIVE, Verdict.NOT_RUN


def proof(what: str, verdict: Verdict) -> Proof:
    return Proof(what=what, verdict=verdict, seen="this", wanted="that")


def notebook() -> Notebook:
    return Notebook(drill="hang", name="hang/x/gloo", stack="x", backend="gloo")


def test_no_proof_is_no_pass() -> None:
    assert decide([], [])[0] is INCONCLUSIVE


@pytest.mark.parametrize(
    ("verdicts", "wanted"),
    [
        ([PASS, PASS], PASS),
        ([PASS, NOT_RUN], INCONCLUSIVE),
        ([PASS, INCONCLUSIVE], INCONCLUSIVE),
        ([INCONCLUSIVE, FAIL, NOT_RUN], FAIL),
    ],
)
def test_the_worst_proof_decides(verdicts: list[Verdict], wanted: Verdict) -> None:
    proofs = [proof(str(number), verdict) for number, verdict in enumerate(verdicts)]
    assert decide(proofs, [])[0] is wanted


@pytest.mark.parametrize("fault", [FAIL, INCONCLUSIVE, NOT_RUN])
@pytest.mark.parametrize("other", [PASS, FAIL])
def test_a_fault_that_is_not_proven_makes_everything_inconclusive(
    fault: Verdict, other: Verdict
) -> None:
    proofs = [proof("it was held", fault), proof("it was named", other)]
    verdict, reason = decide(proofs, ["it was held"])
    assert verdict is INCONCLUSIVE
    assert "it was held" in reason


def test_a_fault_that_nobody_looked_for_is_not_proven() -> None:
    verdict, reason = decide([proof("it was named", PASS)], ["it was held"])
    assert verdict is INCONCLUSIVE
    assert "it was held" in reason


@given(st.lists(st.sampled_from(list(Verdict))), st.lists(st.integers(0, 9), max_size=3))
def test_a_pass_needs_every_proof_and_every_fault(
    verdicts: list[Verdict], faults: list[int]
) -> None:
    proofs = [proof(str(number), verdict) for number, verdict in enumerate(verdicts)]
    passes = decide(proofs, [str(number) for number in faults])[0] is PASS
    complete = bool(verdicts) and all(number < len(verdicts) for number in faults)
    assert passes == (complete and set(verdicts) == {PASS})


def test_the_reason_names_the_proof_that_decides() -> None:
    book = notebook()
    book.prove("a", True, seen="1", wanted="1")
    book.prove("b", None, seen="nothing", wanted="something")
    book.prove("c", False, seen="2", wanted="3", mend="do this")
    record = book.record()
    assert record.verdict is FAIL
    assert record.reason == "c: 2, wanted 3"
    assert record.next == "do this"
    assert [each.verdict for each in record.proofs] == [PASS, INCONCLUSIVE, FAIL]


def test_each_proof_is_said_at_once() -> None:
    said: list[str] = []
    book = Notebook(drill="hang", name="n", stack="x", backend="gloo", say=said.append)
    book.not_run("a", "no GPU", "a class")
    assert said == ["n: not run: a: not run: no GPU"]
