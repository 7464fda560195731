"""The table and the verdict of the control plane benchmark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

GOAL = 1.0  # seconds from the news of a fault to the last agent's form message
GOAL_SHARE = 0.99  # of the faults
ENOUGH = 100  # faults; with fewer the 99th percentile says nothing

COLUMNS = (
    "agents",
    "ranks",
    "joined (s)",
    "coordinator CPU: no fault",
    "a record (µs)",
    "a fault without its records, p50 (s)",
    "agents' CPU: a fault, p50 (s)",
    "memory (MB)",
    "form (KB)",
    "halt p50",
    "halt p99",
    "form sent p50",
    "form sent p99",
    "form p50",
    "form p99",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the report as Markdown."""
    lines = [HEAD, *(row(record) for record in records), "", *(map(verdict, records))]
    return "\n".join(lines) + "\n"


def row(record: Mapping[str, Any]) -> str:
    """Return one line of the table."""

    def of(name: str) -> list[float]:
        return [fault[name] for fault in record["faults"]]

    record_cpu = record["idle_cpu"] / record["beats_per_s"]
    net = [fault["cpu"] - fault["beats"] * record_cpu for fault in record["faults"]]
    cells = [
        f"{record['agents']}",
        f"{record['agents'] * (record['workers'] - 1)}",
        f"{record['join_s']:.1f}",
        f"{record['idle_cpu']:.0%}",
        f"{record_cpu * 1e6:.0f}",
        f"{percentile(net, 0.5):.3f}",
        f"{percentile(of('cpu_of_agents'), 0.5):.3f}",
        f"{record['peak_bytes'] / 1e6:.0f}",
        f"{record['form_bytes'] / 1e3:.1f}",
    ]
    for name in ("halt_last", "form_sent", "form_last"):
        cells += [f"{percentile(of(name), 0.5):.3f}", f"{percentile(of(name), GOAL_SHARE):.3f}"]
    return "| " + " | ".join(cells) + " |"


def verdict(record: Mapping[str, Any]) -> str:
    """Return whether the goal is met."""
    values = [fault["form_last"] for fault in record["faults"]]
    reached = percentile(values, GOAL_SHARE)
    word = "met" if reached <= GOAL else "missed"
    if len(values) < ENOUGH:
        word = f"inconclusive ({len(values)} faults, {ENOUGH} are wanted)"
    return (
        f"- {record['agents']} agents: planned and announced within {reached:.2f} s at the "
        f"{GOAL_SHARE:.0%} point of {len(values)} faults, goal {GOAL:g} s: {word}; "
        f"{record['unasked']} generations that no fault asked for; load {record['load']:.1f}"
    )
