"""Did every run take place, and did it end as it should: whole, crash, hang, refusal, leftovers."""

from __future__ import annotations

from keepstep.canary.gate.case import Case, listed, named_ranks, settle
from keepstep.canary.gate.texts import plain
from keepstep.canary.record import Outcome
from keepstep.canary.verdict import GateResult, Verdict


def whole(case: Case) -> GateResult:
    """Every pair has its run, and every run a record of each rank."""
    wanted = f"{case.plan.pairs} runs with {case.cell.world_size} ranks each"
    there = {run.pair for run in case.runs if run.outcome is not Outcome.NOT_RUN}
    missing = [str(pair) for pair in range(case.plan.pairs) if pair not in there]
    short = [
        f"pair {run.pair}: records of ranks {_ranks(sorted(rank.rank for rank in run.ranks))}"
        for run in case.ended
        if sorted(rank.rank for rank in run.ranks) != list(range(case.cell.world_size))
    ]
    short += [
        f"{where} says that it was {rank.end}" + (f": {rank.error}" if rank.error else "")
        for where, rank in case.ranks()
        if rank.end in ("running", "exception") or rank.exit_code
    ]
    if short:
        return GateResult(
            gate="records",
            verdict=Verdict.FAIL,
            seen=listed(short),
            wanted=wanted,
            next="look into the output of the run: a rank ended before it could write",
        )
    if missing:
        return GateResult(
            gate="records",
            verdict=Verdict.INCONCLUSIVE,
            seen=f"no run of pair {', '.join(missing)}",
            wanted=wanted,
            next="start the same command again: it goes on where it stopped",
        )
    return GateResult(gate="records", verdict=Verdict.PASS, seen=wanted, wanted=wanted)


def crash(case: Case) -> GateResult:
    """No run ended with an error."""
    bad = {Outcome.CRASH, Outcome.REFUSED}
    return _no_run_ended(
        case,
        "crash",
        bad,
        "exit code 0 of every run",
        "see the end of its output: runs/CELL/N/output-RANK.txt",
    )


def hang(case: Case) -> GateResult:
    """No run had to be killed at its limit."""
    mend = "run it under keepstep run, which names the rank that did not answer"
    wanted = f"an end within {case.plan.limits.run_s:g} s"
    return _no_run_ended(case, "hang", {Outcome.HANG}, wanted, mend)


def refusal(case: Case) -> GateResult:
    """Every run was refused, and said why."""
    text = case.job.refusal
    problems = []
    for run in case.runs:
        said = " ".join([run.reason, run.output_tail, *(rank.error for rank in run.ranks)])
        if run.outcome is Outcome.COMPLETE:
            problems.append(f"pair {run.pair} ran as if nothing were wrong")
        elif run.outcome in (Outcome.CRASH, Outcome.REFUSED) and plain(text) not in plain(said):
            problems.append(
                f"pair {run.pair} ended for another reason: {run.reason or 'none given'}"
            )
    refused = [run for run in case.runs if run.outcome in (Outcome.CRASH, Outcome.REFUSED)]
    wanted = f"an error that says: {text}"
    if problems:
        return GateResult(
            gate="refusal",
            verdict=Verdict.FAIL,
            seen=listed(problems),
            wanted=wanted,
            next="it is not refused any more: find out what it does now before jobs rely on it",
        )
    if len(refused) < case.plan.pairs:
        seen = (
            f"{len(refused)} of {case.plan.pairs} runs were refused; of the others nothing is known"
        )
        return GateResult(gate="refusal", verdict=Verdict.INCONCLUSIVE, seen=seen, wanted=wanted)
    return GateResult(gate="refusal", verdict=Verdict.PASS, seen="every run said it", wanted=wanted)


def leftovers(case: Case) -> GateResult:
    """Nothing is left behind: no process or file, and no more in a process than before."""
    problems = [f"pair {run.pair}: {each}" for run in case.runs for each in run.leftovers]
    usual = {plain(each) for _, rank in case.reference_ranks() for each in rank.left_behind}
    if case.reference is not None:
        problems += [
            f"{where}: {each}"
            for where, rank in named_ranks(case.runs)
            for each in rank.left_behind
            if plain(each) not in usual
        ]
    return settle(
        case,
        "leftovers",
        problems,
        seen="nothing",
        wanted="no process, file or shared memory left behind, and nothing that the reference "
        "does not leave",
        mend="look at what the script does at its end: destroy_process_group, workers, saves",
    )


def _no_run_ended(case: Case, gate: str, bad: set[Outcome], wanted: str, mend: str) -> GateResult:
    problems = [
        f"pair {run.pair}: {run.reason or run.outcome}" for run in case.runs if run.outcome in bad
    ]
    others = [run for run in case.runs if run.outcome is not Outcome.NOT_RUN]
    if problems or len(others) < case.plan.pairs:
        return settle(case, gate, problems, seen="", wanted=wanted, mend=mend)
    return GateResult(
        gate=gate, verdict=Verdict.PASS, seen=f"{len(others)} of {len(others)} runs", wanted=wanted
    )


def _ranks(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
