"""Did every rank deliver its dump: what was due, what arrived, what is stale, and why."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from keepstep.incident.answer import printable, ranks_text
from keepstep.incident.gather import Gathered
from keepstep.incident.manifest import DUMP
from keepstep.incident.regular import NOT_READABLE, NOT_THERE
from keepstep.recorder import arrival, place
from keepstep.recorder.delivery import Arrived, Delivery, Due, Item, Reason, Verdict, check_delivery
from keepstep.recorder.entries import called_ns, newest_ns
from keepstep.recorder.meaning import MEANINGS
from keepstep.recorder.model import Backend, Dump, RankDump, Severity

SKEW_S = 60.0  # by which the clocks of hosts may differ
APART_S = 0.5  # seconds between two looks at a file: one that changes is still being written
_LISTED = 20  # reasons, and unexpected files, that are printed; JSON has all
_NOTHING = (Reason.NEVER_ATTEMPTED, Reason.NOT_REACHED)

Observe = Callable[[Iterable[str]], Mapping[str, Arrived]]


def _twice(paths: Iterable[str]) -> Mapping[str, Arrived]:
    return arrival.observe(paths, apart_s=APART_S)


def check(gathered: Gathered, expect: int, *, observe: Observe = _twice) -> Delivery:
    """Return what became of the dumps of ranks 0 to ``expect`` - 1.

    A dump is stale when it was written, or its newest operation called, before the oldest operation
    that the newest dump remembers: then it is of an earlier attempt.
    """
    dumps = gathered.evidence.dumps
    backend = _backend(dumps)
    by_rank = {each.rank: each for each in reversed(dumps) if each.rank is not None}
    refused, reasons, named = _refused(gathered), _reasons(gathered), _named(gathered)
    due = []
    for rank in range(expect):
        if rank in by_rank:
            found = by_rank[rank]
            due.append(Due(rank=rank, path=str(found.path), backend=found.dump.backend))
        else:
            path = refused.get(rank) or _expected_path(dumps, rank)
            excuse = None
            if gathered.manifests:
                excuse = _excuse(reasons[rank], rank in named) if rank in reasons else Reason.LOST
            due.append(Due(rank=rank, path=path, backend=backend, excuse=excuse))
    arrived = _arrived(gathered, [each.path for each in due], observe)
    return check_delivery(due, arrived, started_s=_started(dumps) - SKEW_S)


def _backend(dumps: Iterable[RankDump]) -> Backend:
    counted = Counter(each.dump.backend for each in dumps).most_common(1)
    return counted[0][0] if counted else Backend.UNKNOWN


def _refused(gathered: Gathered) -> dict[int, str]:
    """Return the files that could not be used, by the rank that their names say."""
    paths = [f.path for f in gathered.evidence.findings if f.severity is Severity.ERROR]
    named = [(path, place.places([(Path(path).name,)])[0].ranks) for path in paths]
    return {ranks[0]: path for path, ranks in named if ranks and os.path.isfile(path)}


def _expected_path(dumps: tuple[RankDump, ...], rank: int) -> str:
    """Return where a dump would lie: beside another one, with the other rank in its name."""
    if not dumps:
        return f"comm_lib_trace_rank_{rank}"
    other = dumps[0].path
    return str(other.with_name(re.sub(r"[0-9]+(?=[^0-9]*\Z)", str(rank), other.name)))


def _reasons(gathered: Gathered) -> dict[int, str]:
    """Return what the manifests of an incident know about the dumps that are missing."""
    missing = [each for each in gathered.arrivals if each.kind == DUMP and not each.file]
    return {each.rank: each.reason for each in missing} if gathered.manifests else {}


def _named(gathered: Gathered) -> frozenset[int]:
    """Return the ranks of which a manifest names a dump: it was there once."""
    members = [facts for manifest in gathered.manifests for facts in manifest.members]
    return frozenset(m.rank for m in members for a in m.artifacts if a.kind == DUMP and a.file)


def _excuse(reason: str, was_there: bool) -> Reason:
    if not was_there:
        return Reason.NOT_REACHED
    if reason == NOT_THERE:
        return Reason.LOST
    return Reason.UNREADABLE if reason.startswith(NOT_READABLE) else Reason.OVERWRITTEN


def _arrived(gathered: Gathered, due: list[str], observe: Observe) -> dict[str, Arrived]:
    """Look at the files on disk; a dump in an archive is as old as the archive."""
    dumps = {str(each.path): each.dump for each in gathered.evidence.dumps}
    on_disk = {path: _on_disk(path) for path in {*due, *dumps}}
    seen = observe(sorted(set(on_disk.values())))
    codes = defaultdict(list)
    for finding in gathered.evidence.findings:
        codes[finding.path].append(finding.code)
    return {
        path: _aged(dataclasses.replace(seen[file], findings=tuple(codes[path])), dumps.get(path))
        for path, file in on_disk.items()
        if file in seen and (path in dumps or codes[path])
    }


def _on_disk(path: str) -> str:
    inside = Path(path)
    return str(next((each for each in (inside, *inside.parents) if os.path.isfile(each)), inside))


def _aged(file: Arrived, dump: Dump | None) -> Arrived:
    """Return the file with the age of its newest operation: copying makes a file look newer."""
    newest = newest_ns(dump.entries) / 1e9 if dump else 0
    if not newest or newest > file.modified_s:
        return file
    later = file.later_modified_s
    moved = None if later is None else newest + (later - file.modified_s)
    return dataclasses.replace(file, modified_s=newest, later_modified_s=moved)


def _started(dumps: Iterable[RankDump]) -> float:
    """Return when the oldest operation of the newest dump was called (s); 0.0 where none says."""
    called = [list(called_ns(each.dump.entries)) for each in dumps]
    newest = max(filter(None, called), key=max, default=[0])
    return min(newest) / 1e9


# What is said about it


def to_json(gathered: Gathered, delivery: Delivery) -> dict[str, Any]:
    """Return the machine form: ``missing`` are ranks, ``why`` says for each what is known."""
    known = _reasons(gathered)
    return {
        "expected": len(delivery.items),
        "verdict": delivery.verdict.value,
        "missing": [item.due.rank for item in delivery.missing],
        "why": [
            {
                "rank": item.due.rank,
                "reason": item.reason,
                "path": item.due.path,
                "text": _why(item, known),
            }
            for item in delivery.missing
        ],
        "unexpected": list(delivery.unexpected),
    }


def to_text(gathered: Gathered, delivery: Delivery) -> str:
    """Return the lines for a person; ranks with the same reason share one."""
    count, missing, known = len(delivery.items), len(delivery.missing), _reasons(gathered)
    if delivery.verdict is Verdict.COMPLETE:
        lines = [f"delivery: the dumps of all {count} ranks arrived"]
    else:
        lines = [f"delivery: {count - missing} of {count} dumps arrived and can be used"]
    ranks = defaultdict(list)
    for item in delivery.missing:
        ranks[item.reason, _why(item, known)].append(item.due.rank)
    listed = [f"{ranks_text(those)} ({reason}): {why}" for (reason, why), those in ranks.items()]
    lines += _some(listed)
    lines += _some([f"not expected: {path}" for path in delivery.unexpected])
    return "".join(f"{printable(line)}\n" for line in lines)


def _some(listed: list[str]) -> list[str]:
    more = len(listed) - _LISTED
    return [f"  - {line}" for line in listed[:_LISTED]] + (
        [f"  - and {more} more; --json has all"] if more > 0 else []
    )


def _why(item: Item, known: Mapping[int, str]) -> str:
    if item.due.rank in known:
        return known[item.due.rank]
    if item.due.excuse is Reason.LOST and item.reason is Reason.LOST:
        return "no manifest here says what became of it; add the folders of the other hosts"
    if item.reason in _NOTHING:
        backend = item.due.backend
        return f"no file is there; of {backend}, {MEANINGS[backend].writes} write one unasked"
    return item.text
