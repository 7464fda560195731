"""From records of runs to tables and goals. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.diagnosis.analysers import OURS, TORCHFRTRACE
from benchmarks.diagnosis.answers import Mark

Record = Mapping[str, Any]

ACCURACY = "accuracy"
SPEED = "speed"

ENOUGH = 3  # runs of a size; with fewer a goal is neither met nor missed
FASTER = 10.0  # times faster than torchfrtrace
LARGE = 1024  # ranks that have to be done within the limits below, on two cores
SECONDS = 30.0
BYTES = 2 * 10**9
LINEAR = 1.1  # greatest exponent that counts as linear
SMALLEST = 64  # ranks; below that a run is mostly the start of Python
LARGEST = 16384  # ranks, calculated


def render(made_with: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the report as Markdown."""
    accuracy = [record for record in records if record["part"] == ACCURACY]
    speed = [record for record in records if record["part"] == SPEED]
    parts = []
    if accuracy:
        parts += [marks_table(accuracy), cases_table(accuracy)]
    if speed:
        parts += [speed_table(speed), "\n".join(growth(speed) + goals(speed))]
    parts.append("- " + "; ".join(f"{name} {value}" for name, value in made_with.items()))
    return "\n\n".join(parts) + "\n"


# Accuracy.


def marks_table(records: Sequence[Record]) -> str:
    """Return how many cases each tool got right, by order of files and kind of case."""
    lines = [
        f"| tool | files | cases | n | {' | '.join(Mark)} |",
        "|---|---|---|---|" + "---|" * len(Mark),
    ]
    for kind in dict.fromkeys(record["kind"] for record in records):
        for tool, order in _systems(records):
            found = Counter(
                mark_shown(r)
                for r in records
                if (r["kind"], r["tool"], r["order"]) == (kind, tool, order)
            )
            counts = " | ".join(str(found[each]) for each in Mark)
            lines.append(f"| {tool} | {order or '-'} | {kind} | {found.total()} | {counts} |")
    return "\n".join(lines)


def cases_table(records: Sequence[Record]) -> str:
    """Return what each tool answered to each case."""
    tools = list(dict.fromkeys(record["tool"] for record in records))
    lines = [f"| case | to blame | {' | '.join(tools)} |", "|---|---|" + "---|" * len(tools)]
    for case in dict.fromkeys(record["case"] for record in records):
        found = [record for record in records if record["case"] == case]
        cells = [_answers([r for r in found if r["tool"] == tool]) for tool in tools]
        truth = ranks_shown(found[0]["truth"])
        lines.append(f"| {case} | {truth} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _answers(found: Sequence[Record]) -> str:
    """Return one answer for all orders of files, or one for each where they differ."""
    shown = [answer_shown(record) for record in found]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown) or "-"


def answer_shown(record: Record) -> str:
    """Return a mark, and what was named instead of the truth."""
    mark = mark_shown(record)
    if mark in (Mark.PARTIAL, Mark.WRONG):
        return f"{mark}: {ranks_shown(record['readings'][0])}"
    return mark


def mark_shown(record: Record) -> str:
    """Return the mark of a run; a run into the limit is no answer."""
    return Mark.NO_ANSWER if record["timed_out"] else record["mark"]


def ranks_shown(ranks: Sequence[int]) -> str:
    """Return a list of ranks, "none" for an empty one."""
    return ", ".join(map(str, ranks)) or "none"


def _systems(records: Sequence[Record]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((record["tool"], record["order"]) for record in records))


# Speed and memory.


def speed_table(records: Sequence[Record]) -> str:
    """Return time and memory of each tool at each size: median, least and greatest."""
    lines = [
        "| ranks | tool | n | wall (s) | x ours | CPU (s) | x ours | peak memory (MB) | answer "
        "| load |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for ranks in sorted({record["ranks"] for record in records}):
        for tool in dict.fromkeys(record["tool"] for record in records):
            found = _of(records, tool, ranks)
            late = sum(r["timed_out"] for r in records if (r["tool"], r["ranks"]) == (tool, ranks))
            if not found and not late:
                continue
            cells = [
                f"{ranks:,}",
                tool,
                f"{len(found)}" + (f" + {late} over the limit" if late else ""),
                spread([r["wall"] for r in found], "{:.2f}"),
                ratio(records, tool, ranks, "wall"),
                spread([r["cpu"] for r in found], "{:.2f}"),
                ratio(records, tool, ranks, "cpu"),
                spread([r["peak_bytes"] / 1e6 for r in found], "{:.0f}"),
                ", ".join(sorted({r["mark"] for r in found})) or "-",
                spread([r["load"] for r in found], "{:.1f}"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(records: Sequence[Record], tool: str, ranks: int) -> list[Record]:
    return [r for r in records if (r["tool"], r["ranks"], r["timed_out"]) == (tool, ranks, False)]


def spread(values: Sequence[float], form: str) -> str:
    """Return median, least and greatest; a single value as it is."""
    if not values:
        return "-"
    shown = [form.format(each) for each in (statistics.median(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]} - {shown[2]})"


def median(records: Sequence[Record], tool: str, ranks: int, what: str) -> float | None:
    """Return the median of one column, None where nothing was measured."""
    values = [record[what] for record in _of(records, tool, ranks)]
    return statistics.median(values) if values else None


def ratio(records: Sequence[Record], tool: str, ranks: int, what: str) -> str:
    """Return how many times ours a column of a tool is (medians)."""
    theirs, ours = (median(records, name, ranks, what) for name in (tool, OURS))
    return "-" if theirs is None or ours is None else f"{theirs / ours:.1f}"


def growth(records: Sequence[Record]) -> list[str]:
    """Return how each tool grows between sizes, and what that means for larger ones."""
    lines = []
    for tool in dict.fromkeys(record["tool"] for record in records):
        sizes = _sizes(records, tool)
        for small, large in pairwise(sizes):
            exponents = [
                f"{what} {exponent(records, tool, small, large, key):.2f}"
                for what, key in (("wall", "wall"), ("CPU", "cpu"), ("memory", "peak_bytes"))
            ]
            text = ", ".join(exponents)
            lines.append(f"- {tool}, {small:,} to {large:,} ranks: exponents of growth {text}")
        if len(sizes) > 1:
            lines += [
                f"- {tool}, {ranks:,} ranks, calculated from the slope of CPU time and of memory "
                f"between {sizes[-2]:,} and {sizes[-1]:,}, not measured: "
                f"{calculated(records, tool, sizes, ranks, 'cpu'):.0f} s CPU, "
                f"{calculated(records, tool, sizes, ranks, 'peak_bytes') / 1e9:.2f} GB"
                for ranks in (LARGE, LARGEST)
                if ranks > sizes[-1]
            ]
    return lines


def _sizes(records: Sequence[Record], tool: str) -> list[int]:
    return sorted({r["ranks"] for r in records if r["tool"] == tool and r["ranks"] >= SMALLEST})


def exponent(records: Sequence[Record], tool: str, small: int, large: int, what: str) -> float:
    """Return k, where a column grows as the number of ranks to the k; nan where it cannot be said.

    Starting the tool is part of both; so it comes out a little too small.
    """
    before, after = (median(records, tool, ranks, what) for ranks in (small, large))
    if not before or not after:
        return math.nan
    return math.log(after / before) / math.log(large / small)


def calculated(
    records: Sequence[Record], tool: str, sizes: Sequence[int], ranks: int, what: str
) -> float:
    """Return a column for a size that was not measured: a line through the two largest sizes."""
    small, large = sizes[-2:]
    before, after = (median(records, tool, size, what) for size in (small, large))
    if before is None or after is None:
        return math.nan
    return after + (after - before) / (large - small) * (ranks - large)


# Goals.


def goals(records: Sequence[Record]) -> list[str]:
    """Return a line for each goal: met, missed, or inconclusive for want of runs."""
    lines = []
    for ranks in _sizes(records, OURS):
        count = min(len(_of(records, tool, ranks)) for tool in (OURS, TORCHFRTRACE))
        times = [median(records, tool, ranks, "wall") for tool in (OURS, TORCHFRTRACE)]
        # mypy does not see that neither time is None then.
        met = None not in times and times[1] >= FASTER * times[0]  # type: ignore[operator]
        seen = ratio(records, TORCHFRTRACE, ranks, "wall")
        lines.append(
            f"- {FASTER:g} times faster than torchfrtrace, {ranks:,} ranks: "
            f"{verdict(count, met)}, x {seen}"
        )
    found = _of(records, OURS, LARGE)
    kept = sum(r["wall"] <= SECONDS and r["peak_bytes"] <= BYTES for r in found)
    lines.append(
        f"- {LARGE:,} ranks within {SECONDS:g} s and {BYTES / 1e9:g} GB: "
        f"{verdict(len(found), kept == len(found))}, {kept} of {len(found)}"
    )
    for small, large in pairwise(_sizes(records, OURS)):
        count = min(len(_of(records, OURS, ranks)) for ranks in (small, large))
        seen_exponent = exponent(records, OURS, small, large, "cpu")
        lines.append(
            f"- CPU time grows linearly (exponent up to {LINEAR:g}), {small:,} to {large:,} ranks: "
            f"{verdict(count, seen_exponent <= LINEAR)}, {seen_exponent:.2f}"
        )
    return lines


def verdict(count: int, met: bool) -> str:
    """Return what a goal comes to after ``count`` runs."""
    if count < ENOUGH:
        return f"inconclusive (n = {count}, wanted {ENOUGH})"
    return "met" if met else "missed"
