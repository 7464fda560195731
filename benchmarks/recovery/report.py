"""From records of trials to the table and the goals. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.recovery.ours import SYSTEM as OURS
from benchmarks.recovery.torchft import AS_README, AS_TUNED
from keepstep.runtime.settings import Times

Record = Mapping[str, Any]

KINDS = {"kill": "SIGKILL", "stop": "SIGSTOP"}
ENOUGH = 10  # faults of a kind; with fewer a goal is neither met nor missed

KILL_ALLOWANCE = 0.25  # seconds beyond one step, after SIGKILL
STOP_ALLOWANCE = 0.35  # seconds beyond the patience, after SIGSTOP
README_FACTOR = 20.0  # times faster than torchft as its README sets it

HEAD = (
    "| system | fault | n | next step (s) | x ours | caught up (s) | full strength (s) "
    "| steps lost | short steps | state equal |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def render(made_with: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the report as Markdown."""
    systems = list(dict.fromkeys(record["system"] for record in records))
    rows = [row(records, system, kind) for kind in KINDS for system in systems]
    parts = [
        "Median (least - greatest). Times are seconds since the signal.",
        "\n".join([HEAD, *(line for line in rows if line)]),
        "\n".join(_settings(made_with, systems)),
        "\n".join(goals(records)),
    ]
    return "\n\n".join(parts) + "\n"


def row(records: Sequence[Record], system: str, kind: str) -> str:
    """Return one line of the table; empty where there was no trial."""
    found = measured(records, system, kind)
    failed = sum("error" in r for r in records if (r["system"], r["kind"]) == (system, kind))
    if not found and not failed:
        return ""
    cells = [
        system,
        KINDS[kind],
        f"{len(found)}" + (f" + {failed} failed" if failed else ""),
        spread([r["next_step"] for r in found], "{:.2f}"),
        ratio(records, system, kind),
        spread([r["caught_up"] for r in found], "{:.2f}"),
        spread([r["full_strength"] for r in found], "{:.2f}"),
        spread([r["lost_steps"] for r in found], "{:g}"),
        spread([r["short_steps"] for r in found], "{:g}"),
        _equal(records, system, found),
    ]
    return "| " + " | ".join(cells) + " |"


def measured(records: Sequence[Record], system: str, kind: str) -> list[Record]:
    """Return the trials of one system and kind that came to a fault."""
    return [r for r in records if (r["system"], r["kind"]) == (system, kind) and "error" not in r]


def spread(values: Sequence[float | None], form: str) -> str:
    """Return median, least and greatest; None counts as longer than everything."""
    if not values:
        return "-"
    known = [math.inf if value is None else value for value in values]
    shown = [
        "never" if math.isinf(value) else form.format(value)
        for value in (_median(known), min(known), max(known))
    ]
    return f"{shown[0]} ({shown[1]} - {shown[2]})"


def _median(values: Sequence[float]) -> float:
    """Return the median; the upper one of two, where one of them is infinite."""
    low, high = statistics.median_low(values), statistics.median_high(values)
    return high if math.isinf(high) else (low + high) / 2


def next_step(records: Sequence[Record], system: str, kind: str) -> float | None:
    """Return the median time to the next step; None without trials, infinity for never."""
    values = [r["next_step"] for r in measured(records, system, kind)]
    return _median([math.inf if v is None else v for v in values]) if values else None


def ratio(records: Sequence[Record], system: str, kind: str) -> str:
    """Return how many times longer than ours the next step takes."""
    theirs, ours = next_step(records, system, kind), next_step(records, OURS.name, kind)
    if theirs is None or ours is None or math.isinf(ours):
        return "-"
    return "never" if math.isinf(theirs) else f"{theirs / ours:.1f}"


def _equal(records: Sequence[Record], system: str, found: Sequence[Record]) -> str:
    reference = reference_digest(records, system)
    if reference is None:
        return "unknown"
    return f"{sum(r['digests'] == [reference] for r in found)} of {len(found)}"


def reference_digest(records: Sequence[Record], system: str) -> str | None:
    """Return the digest of the unfaulted run; None if there was none at full strength."""
    for record in measured(records, system, "none"):
        if record["short_steps"] == 0 and len(record["digests"]) == 1:
            return str(record["digests"][0])
    return None


def _settings(made_with: Mapping[str, Any], systems: Sequence[str]) -> list[str]:
    chosen = made_with["settings"]
    machine = {name: value for name, value in made_with.items() if name != "settings"}
    return [f"- all: {_pairs(machine)}", *(f"- {name}: {_pairs(chosen[name])}" for name in systems)]


def _pairs(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {value}" for name, value in values.items())


# Goals.


def goals(records: Sequence[Record]) -> list[str]:
    """Return a line for each goal: met, missed, or inconclusive for want of trials."""
    lines = [
        _within(records, "kill", f"one step + {KILL_ALLOWANCE:g} s", kill_limit),
        _within(records, "stop", f"patience + {STOP_ALLOWANCE:g} s", stop_limit),
    ]
    for kind in KINDS:
        lines.append(_faster(records, AS_README.name, kind, README_FACTOR))
        lines.append(_faster(records, AS_TUNED.name, kind, 1.0))
    return lines


def kill_limit(step_seconds: float) -> float:
    """Return how long the next step may take after SIGKILL."""
    return step_seconds + KILL_ALLOWANCE


def stop_limit(step_seconds: float) -> float:
    """Return how long it may take after SIGSTOP."""
    return Times.derive(None, step_seconds).patience + STOP_ALLOWANCE


def _within(records: Sequence[Record], kind: str, name: str, limit: Any) -> str:
    found = measured(records, OURS.name, kind)
    times = [(math.inf if r["next_step"] is None else r["next_step"], r) for r in found]
    kept = sum(time <= limit(r["step_seconds"]) for time, r in times)
    verdict = _verdict(len(found), kept == len(found))
    return f"- {KINDS[kind]}: next step within {name}: {verdict}, {kept} of {len(found)}"


def _faster(records: Sequence[Record], system: str, kind: str, factor: float) -> str:
    ours, theirs = next_step(records, OURS.name, kind), next_step(records, system, kind)
    count = min(len(measured(records, name, kind)) for name in (OURS.name, system))
    met = ours is not None and theirs is not None and theirs > factor * ours
    wanted = f"{factor:g} times faster" if factor != 1.0 else "faster"
    verdict, seen = _verdict(count, met), ratio(records, system, kind)
    return f"- {KINDS[kind]}: {wanted} than {system}: {verdict}, x {seen}"


def _verdict(count: int, met: bool) -> str:
    if count < ENOUGH:
        return f"inconclusive (n = {count}, wanted {ENOUGH})"
    return "met" if met else "missed"
