"""Did the hang really happen? Without each of these proofs nothing else of the drill counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keepstep.drills.expected import Expectation
from keepstep.drills.held_ranks import WARM_UP, Observed
from keepstep.drills.limits import Limits
from keepstep.drills.notebook import Notebook


def held_name(held: int) -> str:
    """Return what the first proof of every hang drill says."""
    return f"rank {held} was held before the collective"


def prove_injection(
    notebook: Notebook, observed: Observed, limits: Limits, expectation: Expectation
) -> None:
    """Write down whether the fault happened: without each of these nothing else counts."""
    held = observed.held
    line = observed.first(held, "held")
    pid = observed.pids[held] if observed.pids else 0
    entered = [rank for rank in observed.waiting if observed.first(rank, "entered")]
    notebook.prove(
        held_name(held),
        line is not None and observed.first(held, "entered") is None,
        seen=_held_text(line, pid) if line else _why_not_held(observed),
        wanted="it says that it is held, and never that it has entered",
        evidence=f"stack-{held}.txt",
        fault=True,
    )
    notebook.prove(
        "the other ranks had entered it",
        entered == list(observed.waiting),
        seen=f"{_ranks(entered)} entered all_reduce {WARM_UP + 1}",
        wanted=f"{_ranks(observed.waiting)}",
        evidence=f"progress-{observed.waiting[0]}.jsonl",
        fault=True,
    )
    ends = {rank: _wait_of(observed, rank) for rank in observed.waiting}
    fired = all(_fired(observed, rank, limits, expectation) for rank in observed.waiting)
    notebook.prove(
        "the timeout fired on every rank that waits",
        fired,
        seen="; ".join(f"rank {rank}: {text}" for rank, text in ends.items()),
        wanted=f"{expectation.end}, {limits.operation_s:g} s after it entered or later",
        fault=True,
    )
    still = observed.last(held, "still held")
    fired_at = [observed.fired_at(rank, limits.operation_s) for rank in observed.waiting]
    last = max((at for at in fired_at if at is not None), default=None)
    notebook.prove(
        f"rank {held} was still held when the timeout had fired",
        _was_held_until(observed, still, last, expectation),
        seen=_still_text(observed, still, last),
        wanted="its process alive, and a line of its own after the last timeout",
        evidence=f"progress-{held}.jsonl",
        fault=True,
    )


def _was_held_until(
    observed: Observed,
    still: Mapping[str, object] | None,
    last: float | None,
    expectation: Expectation,
) -> bool:
    """Return whether the held rank spoke after the last timeout; NCCL may abort it after that."""
    if still is None or last is None or float(str(still["at"])) <= last:
        return False
    code = observed.ends.get(observed.held)
    return observed.state in "RSD" if code is None else expectation.aborts and code < 0


def _held_text(line: Mapping[str, object], pid: int) -> str:
    same = "" if line["pid"] == pid else f" (started as {pid})"
    return f"process {line['pid']}{same} sleeps in held.py, line {line['line']}"


def _why_not_held(observed: Observed) -> str:
    early = {rank: code for rank, code in observed.ends.items() if code}
    if early:
        return "; ".join(f"rank {rank} ended with {code}" for rank, code in early.items())
    return "it never said so"


def _wait_of(observed: Observed, rank: int) -> str:
    line = observed.first(rank, "failed", "completed")
    if line is not None:
        error = str(line.get("error", "")).rpartition("] ")[2]
        return f"{line['fact']} after {line['seconds']:.1f} s {error}".strip()
    if rank in observed.ends:
        return f"ended with {observed.ends[rank]}{_after(observed, rank, observed.end_s)}"
    if rank in observed.dump_s:
        waits = observed.looked - float(str((observed.first(rank, "entered") or {}).get("at", 0)))
        return f"dumped{_after(observed, rank, observed.dump_s)}, and waits after {waits:.1f} s"
    return "still waits"


def _after(observed: Observed, rank: int, moments: Mapping[int, float]) -> str:
    entered = observed.first(rank, "entered")
    return "" if entered is None else f" after {moments[rank] - float(entered['at']):.1f} s"


def _fired(observed: Observed, rank: int, limits: Limits, expectation: Expectation) -> bool:
    entered, failed = observed.first(rank, "entered"), observed.first(rank, "failed")
    if entered is None:
        return False
    if failed is not None:
        waited = float(failed["seconds"])
    elif expectation.aborts and observed.ends.get(rank, 0) < 0:
        waited = observed.end_s[rank] - float(entered["at"])
    elif rank in observed.dump_s and rank not in observed.ends:
        waited = observed.dump_s[rank] - float(entered["at"])
    else:
        return False
    # A tenth early: the clock of the operation starts when it is queued, ours a little later.
    return waited >= 0.9 * limits.operation_s


def _still_text(observed: Observed, still: Mapping[str, object] | None, last: float | None) -> str:
    if still is None or last is None:
        return "it never said so" if still is None else "no timeout was seen"
    code = observed.ends.get(observed.held)
    how = f"state {observed.state or '?'}" if code is None else f"it ended with {code}"
    return (
        f"{how}; its last line came {float(str(still['at'])) - last:+.2f} s from the last timeout"
    )


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
