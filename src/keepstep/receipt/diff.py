"""Two receipts beside each other: first what they ran on, then what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from keepstep.receipt.material import ABSENT, Facts
from keepstep.receipt.sealed import Receipt

Values = tuple[str, ...]

# Fields by which the entries of a list are told apart, so that like is compared with like.
_NAMES = (
    ("operation", "bytes"),
    ("metric",),
    ("gate",),
    ("what",),
    ("action", "function"),
    ("category", "text"),
    ("name",),
)
# What differs between any two runs and says nothing, and the fingerprint: material is made of it.
_LEFT_OUT = frozenset(
    ("fingerprint", "fingerprints", "pid", "started", "order", "pair", "output_tail", "receipts")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactPair:
    """One material fact that differs. Several values: processes of one receipt disagree."""

    stack: str  # "old" where both call it so, "old / new" otherwise
    fact: str
    a: Values
    b: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """One value of the records that differs: medians of numbers, otherwise the different texts."""

    path: str
    a: float | Values | None  # None: not there
    b: float | Values | None
    ratio: float | None = None  # b over a


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """All that differs."""

    material: tuple[FactPair, ...]
    measured: tuple[MeasuredPair, ...]  # numbers by how far they are apart, then texts


def diff(a: Receipt, b: Receipt) -> Diff:
    """Return what differs between two receipts."""
    return Diff(material=tuple(_material(a, b)), measured=_measured(a, b))


def _material(a: Receipt, b: Receipt) -> Iterator[FactPair]:
    for left, right in _stacks(a, b):
        ours, theirs = a.material.get(left, {}), b.material.get(right, {})
        name = left if left == right else f"{left or ABSENT} / {right or ABSENT}"
        all_facts = {fact for facts in (*ours.values(), *theirs.values()) for fact in facts}
        for fact in sorted(all_facts):
            first, second = _values(ours, fact), _values(theirs, fact)
            if first != second:
                yield FactPair(stack=name, fact=fact, a=first, b=second)


def _stacks(a: Receipt, b: Receipt) -> list[tuple[str, str]]:
    """Return the stacks that belong together: those of one name, then the others in order."""
    both = [name for name in a.material if name in b.material]
    left = [name for name in a.material if name not in b.material]
    right = [name for name in b.material if name not in a.material]
    longest = max(len(left), len(right))
    rest = zip(
        left + [""] * (longest - len(left)), right + [""] * (longest - len(right)), strict=True
    )
    return [(name, name) for name in both] + list(rest)


def _values(processes: dict[str, Facts], fact: str) -> Values:
    found = sorted({facts.get(fact, ABSENT) for facts in processes.values()})
    return tuple(found) or (ABSENT,)


def _measured(a: Receipt, b: Receipt) -> tuple[MeasuredPair, ...]:
    ours, theirs = _flat(a.records), _flat(b.records)
    numbers, texts = [], []
    for path in sorted(ours.keys() | theirs.keys()):
        first, second = _one(ours.get(path)), _one(theirs.get(path))
        if first == second:
            continue
        if isinstance(first, float) and isinstance(second, float):
            ratio = second / first if first and second / first > 0 else None
            numbers.append(MeasuredPair(path=path, a=first, b=second, ratio=ratio))
        else:
            texts.append(MeasuredPair(path=path, a=first, b=second))
    numbers.sort(key=lambda pair: -math.inf if pair.ratio is None else -abs(math.log(pair.ratio)))
    return (*numbers, *texts)


def _flat(records: dict[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for path, value in _leaves("", records):
        found.setdefault(path, []).append(value)
    return found


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; entries of a list share one, unless they have names."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _LEFT_OUT:
                yield from _leaves(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(path + _name(item), item)
    elif value is not None:
        yield path, value


def _name(item: Any) -> str:
    if isinstance(item, dict):
        for fields in _NAMES:
            if all(field in item for field in fields):
                return f"[{' '.join(str(item[field]) for field in fields)}]"
    return ""


def _one(values: list[Any] | None) -> float | Values | None:
    """Return the median of numbers, or the different texts of anything else."""
    if not values:
        return None
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return float(statistics.median(values))
    return tuple(sorted({str(value) for value in values}))
