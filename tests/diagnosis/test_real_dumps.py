"""Dumps that real jobs wrote, with known causes: right rank and fault, in any order of files."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.diagnosis.verdict import Confidence, Fault, Outcome, Verdict
from keepstep.recorder.model import Finding, RankDump
from keepstep.recorder.read import read_tree
from tests.diagnosis.trusted import load_folder

DATA = Path(__file__).parent.parent / "data" / "recorder"
# Apache-2.0 files of NVIDIA/nvidia-resiliency-ext that this repository does not copy.
ELSEWHERE = Path(__file__).parents[3] / "shared" / "data" / "recorder"

TRUTH = json.loads((DATA / "truth.json").read_text())

# One dump of four: the rank that it names may wait for another one that left none.
ONE_DUMP = {
    "h200x2-4rank-nccl-lazy-extra": ((0,), Fault.STALLED),
    "h200x2-4rank-nccl-lazy-extra-equal": ((1,), Fault.STALLED),
}
# Taken within a second after the last call: nccl2 marks what has finished as completed later.
TOO_EARLY = ("h200x2-4rank-nccl-lazy-none-asked", "h200x2-4rank-nccl2-none-asked")

CASES = {
    "nvrx-gpu_error_1st": ((12, 14), Fault.DEVICE),
    "nvrx-lock_gil_1st": ((9, 14), Fault.STALLED),
    "h200-nccl2-allreduce-hang": ((2,), Fault.STALLED),
    "h200-nccl-legacy-allreduce-hang": ((2,), Fault.STALLED),
    "gloo-2.15": ((1,), Fault.STALLED),
    "h200-4rank-nccl-legacy-size": ((1,), Fault.MISMATCH),
    "h200-4rank-nccl-legacy-extra": ((0,), Fault.EXTRA_COLLECTIVE),
    "h200-4rank-nccl-legacy-p2p": ((2,), Fault.STALLED),
    "h200-4rank-nccl2-skip": ((2,), Fault.STALLED),
    "h200-4rank-nccl2-dead": ((1,), Fault.STALLED),
    "h200-4rank-nccl2-kernel": ((2, 3), Fault.DEVICE),
    "h200-4rank-nccl2-healthy": ((), Fault.NONE),
    # Of the hang drill: rank 1 of three is held before all_reduce 4.
    **{
        f"h200x2-drill-{name}": ((1,), Fault.STALLED)
        for name in (
            *("nccl2", "nccl2-asked", "nccl-lazy-asked", "nccl-legacy", "nccl-legacy-asked"),
            *("2.11-nccl", "2.11-nccl-asked"),
        )
    },
    **{
        f"h200-drill-{name}": ((1,), Fault.STALLED)
        for name in (
            *("nccl2", "nccl2-asked", "nccl-lazy-asked", "nccl-legacy", "use-nccl2-0"),
            *("2.14-nccl", "2.14-nccl-asked"),
        )
    },
    **{name: (tuple(truth["culprits"]), Fault(truth["fault"])) for name, truth in TRUTH.items()},
    **ONE_DUMP,
}


def load(name: str) -> tuple[RankDump, ...]:
    folder = DATA / name
    if name.startswith("nvrx-"):
        folder = ELSEWHERE / name
        if not folder.is_dir():
            pytest.skip("the dumps of NVIDIA/nvidia-resiliency-ext are not on this machine")
    dumps = load_folder(folder)
    assert dumps, folder
    return dumps


def judge(name: str) -> Verdict:
    return diagnose(Evidence(dumps=load(name)))


@pytest.mark.parametrize("name", CASES)
def test_the_right_ranks_and_fault(name: str) -> None:
    verdict = judge(name)
    ranks, fault = CASES[name]
    assert (verdict.ranks, verdict.fault) == (ranks, fault), verdict.headline
    nobody = Outcome.UNKNOWN if name in TOO_EARLY else Outcome.HEALTHY
    assert verdict.outcome is (Outcome.CULPRIT if ranks else nobody)
    assert verdict.faults == tuple((rank, fault) for rank in ranks)
    assert all(f"rank {rank}" in verdict.headline or "ranks" in verdict.headline for rank in ranks)


@pytest.mark.parametrize("name", ONE_DUMP)
def test_a_rank_named_by_one_dump_of_many_may_wait_itself(name: str) -> None:
    verdict = judge(name)
    assert verdict.confidence is Confidence.LOW
    assert "may wait for it" in " ".join(verdict.would_decide)


@pytest.mark.parametrize("name", CASES)
def test_the_same_verdict_for_any_order_of_files(name: str) -> None:
    dumps = list(load(name))
    wanted = judge(name)
    for seed in range(5 if name in TRUTH else 50):
        random.Random(seed).shuffle(dumps)
        assert diagnose(Evidence(dumps=tuple(dumps))) == wanted


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("nvrx-")])
def test_from_files_to_verdict(name: str) -> None:
    """The safe reader of files nobody knows leads to the same verdict."""
    reading = read_tree(DATA / name, workers=1)
    verdict = diagnose(Evidence(dumps=reading.dumps, findings=reading.findings))
    assert (verdict.ranks, verdict.fault) == CASES[name], verdict.headline


def test_the_headline_can_be_read_at_three_in_the_morning() -> None:
    assert judge("h200-nccl-legacy-allreduce-hang").headline == (
        "rank 2 did not enter all_reduce 4 of group default_pg; ranks 0 and 1 wait for it"
    )
    assert judge("h200-4rank-nccl-legacy-size").headline == (
        "rank 1 came to all_reduce 6 of group default_pg with 1048576 elements instead of 1024;"
        " ranks 0, 2 and 3 wait for it"
    )


def test_dumps_of_a_backend_without_a_recorder_prove_nothing() -> None:
    verdict = judge("h200-drill-2.14-nccl2-asked")
    assert (verdict.outcome, verdict.ranks) == (Outcome.UNKNOWN, ())
    assert verdict.headline.startswith("No operation is in the dumps")
    assert "from PyTorch 2.15 on" in " ".join(verdict.would_decide)


def test_what_else_was_seen_counts_where_the_dumps_are_empty() -> None:
    seen = {
        rank: Observation(life=Life.DEAD if rank == 1 else Life.ALIVE, why="killed by SIGKILL")
        for rank in range(3)
    }
    dumps = load("h200-drill-2.14-nccl2-asked")
    verdict = diagnose(Evidence(dumps=dumps, observations=seen))
    assert (verdict.outcome, verdict.ranks, verdict.fault) == (Outcome.CULPRIT, (1,), Fault.DEAD)


def test_a_missing_dump_is_evidence() -> None:
    verdict = judge("h200-nccl2-allreduce-hang")
    assert verdict.confidence is Confidence.MEDIUM
    assert "Rank 2 left no dump." in verdict.evidence


def test_a_file_that_cannot_be_read_is_said() -> None:
    finding = Finding("truncated", "dump_2", "the file ends in the middle")
    dumps = load("h200-nccl2-allreduce-hang")
    verdict = diagnose(Evidence(dumps=dumps, findings=(finding,)))
    assert "dump_2 could not be used: the file ends in the middle" in verdict.evidence


@pytest.mark.parametrize(
    ("life", "fault"), [(Life.DEAD, Fault.DEAD), (Life.UNRESPONSIVE, Fault.STALLED)]
)
def test_dead_only_with_evidence_of_death(life: Life, fault: Fault) -> None:
    seen = {1: Observation(life=life, why="killed by SIGKILL")}
    verdict = diagnose(Evidence(dumps=load("h200-4rank-nccl2-dead"), observations=seen))
    assert (verdict.ranks, verdict.fault) == ((1,), fault)
    assert any("killed by SIGKILL" in line for line in verdict.evidence)


def test_a_stuck_kernel_names_both_and_what_would_decide() -> None:
    verdict = judge("h200-4rank-nccl2-kernel")
    assert verdict.headline.startswith("rank 2 or rank 3 entered all_reduce 6 of group tp [2, 3]")
    assert verdict.would_decide
    assert verdict.confidence is Confidence.LOW


def test_the_extra_call_is_named_with_its_line() -> None:
    verdict = judge("h200-4rank-nccl-legacy-extra")
    assert "train4.py:45" in " ".join(verdict.evidence)


def test_victims_of_the_pipeline_and_for_whom_they_wait() -> None:
    verdict = judge("h200-4rank-nccl-legacy-p2p")
    waits = {victim.rank: victim.waits_for for victim in verdict.victims}
    assert waits == {0: (2, 3), 1: (2, 3), 3: (2,)}


def test_beliefs_show_what_each_rank_was_in() -> None:
    verdict = judge("h200-nccl-legacy-allreduce-hang")
    table = {(b.rank, b.group): (b.last_completed, b.pending, b.call_site) for b in verdict.beliefs}
    waiting = ("all_reduce 3", "all_reduce 4 [1024] Float, scheduled", "train3.py:59 hang")
    assert table[0, "default_pg"] == waiting
    assert table[2, "default_pg"] == ("all_reduce 3", "", "")


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("nvrx-")])
def test_without_any_one_dump_nobody_is_refused(name: str) -> None:
    """One file lost: an answer all the same, and it names the guilty or the lost rank or asks."""
    dumps = load(name)
    for lost in dumps:
        kept = tuple(dump for dump in dumps if dump is not lost)
        verdict = diagnose(Evidence(dumps=kept))
        assert verdict.headline
        if verdict.ranks and not verdict.would_decide:
            allowed = {*CASES[name][0], lost.rank}
            assert set(verdict.ranks) & allowed, (lost.rank, verdict.headline)


def test_a_second_equal_set_of_dumps_says_hung_and_a_moved_one_slow() -> None:
    dumps = load("h200-nccl-legacy-allreduce-hang")
    hung = diagnose(Evidence(dumps=dumps, earlier=dumps))
    assert (hung.outcome, hung.ranks) == (Outcome.CULPRIT, (2,))
    assert any("Nothing moved" in line for line in hung.evidence)
    before = tuple(
        replace(item, dump=replace(item.dump, entries=item.dump.entries[:-1])) for item in dumps
    )
    assert diagnose(Evidence(dumps=dumps, earlier=before)).outcome is Outcome.SLOW
