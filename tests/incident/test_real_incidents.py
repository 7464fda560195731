"""Incident folders that real jobs on a GPU left, with known causes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Life
from keepstep.diagnosis.verdict import Fault, Outcome
from keepstep.incident.advice import advised
from keepstep.incident.answer import to_json, to_text
from keepstep.incident.gather import gather

DATA = Path(__file__).parent.parent / "data" / "incident"

CASES = {
    "h200-nccl2-hang": ((2,), Fault.STALLED, "rank 2 did not enter all_reduce 31 "),
    "h200-nccl2-hang-groups": ((2,), Fault.STALLED, "rank 2 did not enter all_reduce 125 "),
    "h200-nccl2-kill-groups": ((1,), Fault.DEAD, "rank 1 died and did not enter all_reduce 125 "),
    "h200-nccl2-stop-groups": ((1,), Fault.STALLED, "rank 1 did not enter all_reduce 125 "),
    "h200-nccl2-kill": ((1,), Fault.DEAD, "rank 1 died and did not enter all_reduce 31 "),
    "h200-nccl2-kill-shrink": ((1,), Fault.DEAD, "rank 1 died and did not enter all_reduce 31 "),
    "h200-nccl2-kill-two": ((1, 2), Fault.DEAD, "ranks 1 and 2 died and did not enter all_reduce "),
    "h200-nccl2-stop": ((1,), Fault.STALLED, "rank 1 did not enter all_reduce 31 "),
    "h200-nccl2-gil": ((1,), Fault.STALLED, "rank 1 did not enter all_reduce 31 "),
    "h200-nccl2-raise": ((1,), Fault.RAISED, "rank 1 raised InjectedError"),
    "h200-nccl2-segv": ((0,), Fault.DEAD, "rank 0 died and did not enter all_reduce 31 "),
    "h200-nccl2-exit": ((2,), Fault.DEAD, "rank 2 died and did not enter all_reduce 31 "),
    "h200-nccl2-hang-groups-again": ((1,), Fault.STALLED, "rank 1 did not enter all_reduce 125 "),
}


@pytest.mark.parametrize("name", CASES)
def test_the_right_rank_and_fault(name: str) -> None:
    (incident,) = gather(DATA / name)
    verdict = diagnose(incident.evidence)
    ranks, fault, headline = CASES[name]
    assert (verdict.outcome, verdict.ranks, verdict.fault) == (Outcome.CULPRIT, ranks, fault)
    assert verdict.headline.startswith(headline)


def test_a_late_recorder_is_told_from_a_stuck_device_by_the_stack() -> None:
    (incident,) = gather(DATA / "h200-nccl2-hang-groups")
    evidence = incident.evidence
    blind = {r: replace(seen, stack=()) for r, seen in evidence.observations.items()}
    verdict = diagnose(replace(evidence, observations=blind))
    assert (verdict.ranks, verdict.fault) == ((2,), Fault.DEVICE)


def test_most_ranks_are_dead_and_that_explains_it() -> None:
    (incident,) = gather(DATA / "h200-nccl2-kill-groups")
    evidence = incident.evidence
    lost = {
        **evidence.observations,
        2: replace(evidence.observations[2], life=Life.DEAD, why="killed by SIGKILL"),
    }
    dumps = tuple(dump for dump in evidence.dumps if dump.rank == 0)
    verdict = diagnose(replace(evidence, dumps=dumps, observations=lost))
    assert (verdict.ranks, verdict.fault) == ((1, 2), Fault.DEAD)


DONE = "keepstep run has dealt with rank {} already (generation 2 at step 30). What is left: "


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("kill", DONE.format(1) + "find out what ended it"),
        ("segv", DONE.format(0) + "find out what ended it"),
        ("stop", DONE.format(1) + "find out what stopped it on its host"),
        ("gil", DONE.format(1) + "find out what held it: its stack is in pyspy_rank_1.json."),
    ],
)
def test_nobody_is_told_to_do_what_the_run_has_done(name: str, wanted: str) -> None:
    (incident,) = gather(DATA / f"h200-nccl2-{name}")
    verdict = advised(incident, diagnose(incident.evidence))
    (step,) = verdict.next_steps
    assert step.startswith(wanted)
    text = to_text(incident, verdict)
    assert "worker" in text
    assert "outcome: generation 2 at step 30" in text
    assert "Its process is stopped: its process" not in text
    assert to_json(incident, verdict)["incident"]["step"] == 30


def test_where_the_run_did_not_deal_with_the_rank_the_advice_stays() -> None:
    (incident,) = gather(DATA / "h200-nccl2-stop")
    verdict = diagnose(incident.evidence)
    (manifest,) = incident.manifests
    for changed in (
        replace(manifest, outcome="the job ended: too many recoveries"),
        replace(manifest, faults=({"rank": 0, "worker": 0, "fault": "hang", "evidence": ""},)),
    ):
        assert advised(replace(incident, manifests=(changed,)), verdict) == verdict
    assert advised(replace(incident, manifests=()), verdict) == verdict
