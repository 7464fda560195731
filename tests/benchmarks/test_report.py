"""The report on recorded trials: what is counted, and when a goal is met."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery import overhead, report
from benchmarks.recovery.between import Between, read
from benchmarks.recovery.marks import FOLDER
from benchmarks.recovery.results import Results


def record(system: str, number: int, next_step: float | None, **more: Any) -> dict[str, Any]:
    return {
        "system": system,
        "kind": "kill",
        "number": number,
        "step_seconds": 0.1,
        "next_step": next_step,
        "caught_up": next_step,
        "full_strength": next_step,
        "lost_steps": 0,
        "short_steps": 0,
        "digests": ["same"],
        **more,
    }


def trials(system: str, times: Sequence[float | None], **more: Any) -> list[dict[str, Any]]:
    return [record(system, number, time, **more) for number, time in enumerate(times)]


UNFAULTED = {**record("keepstep", 0, None), "kind": "none"}


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.2, 0.1, 0.4], "0.20 (0.10 - 0.40)"),
        ([0.1, 0.2], "0.15 (0.10 - 0.20)"),
        ([0.1, None, 0.3], "0.30 (0.10 - never)"),
        ([0.1, None], "never (0.10 - never)"),
        ([], "-"),
    ],
)
def test_what_never_happened_counts_as_longer_than_everything(
    values: list[float | None], shown: str
) -> None:
    assert report.spread(values, "{:.2f}") == shown


def test_a_goal_needs_enough_trials_and_all_of_them() -> None:
    few, good = trials("keepstep", [0.3] * 9), trials("keepstep", [0.3] * 10)
    late = trials("keepstep", [0.3] * 9 + [0.36])
    never = trials("keepstep", [0.3] * 9 + [None])
    verdicts = [report.goals(records)[0] for records in (few, good, late, never)]
    assert "inconclusive (n = 9" in verdicts[0]
    assert verdicts[1].endswith("met, 10 of 10")
    assert verdicts[2].endswith("missed, 9 of 10")
    assert verdicts[3].endswith("missed, 9 of 10")


def test_ours_is_compared_with_the_median_of_the_others() -> None:
    ours, theirs = trials("keepstep", [0.25] * 10), trials("torchft-readme", [5.0] * 10)
    assert report.ratio([*ours, *theirs], "torchft-readme", "kill") == "20.0"
    line = next(line for line in report.goals([*ours, *theirs]) if "20 times" in line)
    assert "missed" in line  # not more than 20
    quicker = trials("keepstep", [0.2] * 10)
    assert "met, x 25.0" in next(
        line for line in report.goals([*quicker, *theirs]) if "20 times" in line
    )


def test_state_is_equal_only_to_an_unfaulted_run_at_full_strength() -> None:
    found = trials("keepstep", [0.3, 0.3], digests=["same"])
    found[1]["digests"] = ["same", "other"]
    assert "| 1 of 2 |" in report.row([UNFAULTED, *found], "keepstep", "kill")
    assert "| unknown |" in report.row(found, "keepstep", "kill")
    short = {**UNFAULTED, "short_steps": 1}
    assert "| unknown |" in report.row([short, *found], "keepstep", "kill")


def test_failed_trials_are_shown() -> None:
    failed = {"system": "torchrun", "kind": "kill", "number": 1, "error": "no progress"}
    line = report.row([*trials("torchrun", [9.0]), failed], "torchrun", "kill")
    assert "| 1 + 1 failed |" in line


def test_the_report_prints_the_settings_beside_the_numbers() -> None:
    made_with = {"cores": 2, "settings": {"keepstep": {"spares": "1"}}}
    text = report.render(made_with, trials("keepstep", [0.3]))
    assert "- all: cores 2\n- keepstep: spares 1\n" in text


# Results on disk.


def test_results_are_continued_only_with_what_they_were_made_with(tmp_path: Any) -> None:
    path = tmp_path / "out.json"
    Results.open(path, {"torch": "2.15.0"}).add({"number": 0})
    assert Results.open(path, {"torch": "2.15.0"}).records == [{"number": 0}]
    with pytest.raises(ValueError, match="choose another file"):
        Results.open(path, {"torch": "2.16.0"})


# Overhead.


def sessions(ratio: float, count: int) -> list[dict[str, Any]]:
    def of(name: str) -> dict[str, float]:
        wall = 0.1 * ratio if "keepstep" in name else 0.1
        return {
            overhead.WALL: wall,
            overhead.PROCESSOR: 0.2,
            overhead.BESIDE: 0.001,
        }

    odd = {name: {**of(name), overhead.WALL: 0.3} for name in overhead.VARIANTS}
    odd |= {name: of(name) for name in overhead.BASES}
    turns = [odd, *({name: of(name) for name in overhead.VARIANTS} for _ in range(3))]
    asked = {overhead.BETWEEN: 0.0003, overhead.GAP: 0.0004}
    return [{"turns": turns, "between": dict.fromkeys(overhead.VARIANTS, asked)}] * count


@pytest.mark.parametrize(
    ("ratio", "count", "verdict"),
    [(1.005, 10, "met"), (1.02, 10, "missed"), (1.0, 9, "inconclusive")],
)
def test_overhead_is_the_median_of_ratios(ratio: float, count: int, verdict: str) -> None:
    assert verdict in overhead.goal(sessions(ratio, count), "keepstep, no spare", overhead.WALL)


def test_each_round_begins_with_another_variant() -> None:
    firsts = [overhead.in_turn(number)[0] for number in range(len(overhead.VARIANTS))]
    assert sorted(firsts) == sorted(overhead.VARIANTS)
    assert sorted(overhead.in_turn(3)) == sorted(overhead.VARIANTS)


def test_one_session_is_enough_to_print() -> None:
    records = sessions(1.02, 1)
    wall, processor = overhead.render(records).split("The processor time of a step,")
    assert "| keepstep, 1 spare | 1.0200 |" in wall
    assert "| keepstep, 1 spare | 1.0000 |" in processor
    assert "| keepstep, 1 spare | 0.50% |" in processor
    assert "| keepstep, 1 spare | 0.30% | 0.40% |" in processor


def test_the_median_lies_where_95_of_100_medians_do() -> None:
    generator, hits = random.Random(5), 0
    for _ in range(400):
        least, greatest = overhead.interval([generator.gauss(1.0, 0.1) for _ in range(30)])
        hits += least <= 1.0 <= greatest
    assert 0.93 < hits / 400 < 1.0
    assert overhead.interval([1.0]) == (1.0, 1.0)


def test_what_lies_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    between = Between()
    for _ in range(40):
        between.enter()
        between.leave()
        sum(range(20_000))
    between.write()
    assert read(tmp_path, 2) is None
    found = read(tmp_path, 1)
    assert found is not None
    processor, clock = found
    assert 0 < processor < 1
    assert 0 < clock < 60
