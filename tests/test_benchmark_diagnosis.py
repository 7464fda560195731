"""The diagnosis benchmark: how answers are read and marked, what its dumps say, what it reports."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from benchmarks.diagnosis import answers, report
from benchmarks.diagnosis.answers import Answer, Mark, Output, mark
from benchmarks.diagnosis.cases import SIMULATED_CASES, all_cases
from benchmarks.diagnosis.large import write_large
from benchmarks.diagnosis.process import resident_bytes
from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence
from keepstep.recorder.read import read_tree

# The rule of marking.


@pytest.mark.parametrize(
    ("named", "truth", "expected"),
    [
        ([(2,)], (2,), Mark.EXACT),
        ([(1, 2)], (2,), Mark.PARTIAL),
        ([(1,)], (1, 2), Mark.PARTIAL),
        ([(1,)], (2,), Mark.WRONG),
        ([(1,)], (), Mark.WRONG),
        ([()], (), Mark.EXACT),
        ([()], (2,), Mark.NO_ANSWER),
        ([(1, 2, 3), (2,)], (2,), Mark.EXACT),  # the better of two readings counts
        ([(1, 3), (3,)], (2,), Mark.WRONG),
    ],
)
def test_marks(named: list[tuple[int, ...]], truth: tuple[int, ...], expected: Mark) -> None:
    assert mark(Answer(tuple(named)), truth) is expected


def test_to_name_nobody_is_right_only_for_a_tool_that_could_tell() -> None:
    assert mark(Answer(((),), undecided=True), ()) is Mark.NO_ANSWER


def test_an_error_is_a_crash_unless_somebody_was_named_before() -> None:
    assert mark(Answer(((),), error="KeyError: 0"), ()) is Mark.CRASH
    assert mark(Answer(((2,),), error="KeyError: 0"), (2,)) is Mark.EXACT


# Reading the tools' output.

LOG = """Not all ranks joining collective, sequence number: 26
group info: 52:PIPELINE
missing ranks: {3, 11}
expected ranks: {11, 3, 15, 7}
Collective sequence number: 6 has errors
error msg: Culprit rank 3; Error type: X, sizes '[[10]]', Culprit rank 12; Error type: X
"""


def test_torchfrtrace_names_in_two_ways_and_report_by_report() -> None:
    answer = answers.torchfrtrace(Output(0, "", LOG))
    assert answer == Answer(readings=((3, 11, 12), (3, 11)))
    undecided = answers.torchfrtrace(Output(0, "", "We cannot decide what's wrong (missed {2})"))
    assert undecided == Answer(readings=((),), undecided=True)


def test_an_error_is_told_by_its_last_line() -> None:
    crashed = Output(1, "", "Traceback\n  a line\nKeyError: ('0', 1)\n\n")
    for read in (answers.torchfrtrace, answers.nvrx, answers.keepstep):
        assert read(crashed) == Answer(readings=((),), error="KeyError: ('0', 1)")


def test_nvrx() -> None:
    assert answers.nvrx(Output(0, '"hanging ranks: [9, 14]"\n', "")).readings == ((9, 14),)
    assert answers.nvrx(Output(0, '"hanging ranks: []"\n', "")).readings == ((),)


def test_keepstep() -> None:
    one = '{"verdict": "culprit", "ranks": [2], "fault": "stalled"}'
    assert answers.keepstep(Output(0, one, "")) == Answer(((2,),), fault="stalled")
    unknown = '{"attempts": [{"verdict": "unknown", "ranks": [], "fault": ""}]}'
    assert answers.keepstep(Output(3, unknown, "")).undecided


# The dumps.


@pytest.mark.parametrize("name", SIMULATED_CASES)
def test_files_say_what_the_simulator_said(name: str, tmp_path: Path) -> None:
    """Written and read again: the same operations, numbers and states."""
    dumps, _ = SIMULATED_CASES[name][1]()
    (case,) = (case for case in all_cases([]) if case.name == name)
    case.lay(tmp_path)
    reading = read_tree(tmp_path, workers=1)
    assert [each.rank for each in reading.dumps] == [each.rank for each in dumps]
    for found, wanted in zip(reading.dumps, dumps, strict=True):
        assert found.dump.status == wanted.dump.status
        assert len(found.dump.entries) == len(wanted.dump.entries)
        for entry, said in zip(found.dump.entries, wanted.dump.entries, strict=True):
            assert (entry.sequence, entry.op_id, entry.state, entry.retired, entry.group) == (
                *(said.sequence, said.op_id, said.state, said.retired, said.group),
            )
            assert entry.operation.name.lstrip("_") == said.operation.name.lstrip("_")
            assert (entry.operation.direction, entry.operation.own, entry.operation.peer) == (
                *(said.operation.direction, said.operation.own, said.operation.peer),
            )


def test_a_large_job_lacks_one_rank(tmp_path: Path) -> None:
    stalled = write_large(tmp_path, 16, 200)
    found = [pickle.loads((tmp_path / f"_dump_{rank}").read_bytes()) for rank in range(16)]
    assert [len(each["entries"]) for each in found] == [200 - (rank == 5) for rank in range(16)]
    assert found[9]["pg_config"]["2"]["ranks"] == "[8, 9, 10, 11, 12, 13, 14, 15]"
    assert {len(entry["frames"]) for each in found for entry in each["entries"]} == {5}
    verdict = diagnose(Evidence(dumps=read_tree(tmp_path, workers=1).dumps))
    assert verdict.ranks == (stalled,)


# The report.


def timed(tool: str, ranks: int, wall: float, number: int = 0, **more: Any) -> dict[str, Any]:
    used = {"wall": wall, "cpu": wall, "peak_bytes": 10**8, "timed_out": False}
    head = {"part": "speed", "tool": tool, "ranks": ranks, "number": number, "load": 1.0}
    return {**head, **used, "mark": "exact", **more}


def test_goals_need_three_runs() -> None:
    once = [timed("keepstep", 64, 1.0), timed("torchfrtrace", 64, 20.0)]
    assert report.goals(once)[0].endswith("64 ranks: inconclusive (n = 1, wanted 3), x 20.0")
    thrice = [
        timed(tool, 64, wall, number)
        for number in range(3)
        for tool, wall in (("keepstep", 1.0), ("torchfrtrace", 9.0))
    ]
    assert report.goals(thrice)[0].endswith("64 ranks: missed, x 9.0")


def test_the_large_size_has_limits_of_time_and_memory() -> None:
    runs = [timed("keepstep", 1024, 20.0, number) for number in range(3)]
    assert "met, 3 of 3" in report.goals(runs)[1]
    runs[0]["peak_bytes"] = 3 * 10**9
    assert "missed, 2 of 3" in report.goals(runs)[1]


def test_growth_and_what_follows_for_larger_jobs() -> None:
    runs = [timed("keepstep", 64, 2.0), timed("keepstep", 256, 8.0)]
    first, large, largest = report.growth(runs)
    assert "wall 1.00, CPU 1.00, memory 0.00" in first
    assert "1,024 ranks, calculated" in large
    assert "32 s CPU" in large
    assert "512 s CPU" in largest


def test_a_run_over_the_limit_is_counted_and_not_timed() -> None:
    runs = [timed("keepstep", 64, 2.0), timed("torchfrtrace", 64, 900.0, timed_out=True)]
    line = report.speed_table(runs).splitlines()[-1]
    assert "0 + 1 over the limit" in line
    assert "900" not in line


def test_answers_that_differ_between_orders_are_all_shown() -> None:
    def record(order: str, mark: str, *named: int) -> dict[str, Any]:
        head = {"part": "accuracy", "case": "size", "kind": "real", "truth": [1]}
        found = {"readings": [list(named)], "mark": mark, "timed_out": False}
        return {**head, "tool": "torchfrtrace", "order": order, **found}

    records = [record("ascending", "exact", 1), record("descending", "wrong", 0, 2)]
    assert "| size | 1 | exact / wrong: 0, 2 |" in report.cases_table(records)
    assert "| torchfrtrace | descending | real | 1 | 0 | 0 | 1 | 0 | 0 |" in report.marks_table(
        records
    )


def test_memory_of_a_process_that_is_gone_is_none() -> None:
    assert resident_bytes(2**22 + 1) == 0
