"""The closing words of ``keepstep run``: what happened, what is proven, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keepstep.cli.run_sentences import count

HEADER = (
    "fault",
    "rank",
    "step",
    "action",
    "detected after",
    "next step after",
    "full strength after",
    "steps lost",
)
SHOWN = 40  # recoveries in the table; the summary file has all

# What to look at first, by the last fault of a job that failed.
NEXT = {
    "kill": "SIGKILL comes from outside the process, most often from the kernel when memory ran "
    "out: look at `dmesg` and at memory.events of the job's cgroup on that host",
    "segv": "run it with PYTHONFAULTHANDLER=1: the crashing line of Python is then in the output",
    "abort": "a library gave up on purpose: its message is in the output above",
    "exit": "the worker's output above says why it ended",
    "raise": "the traceback is in the output above",
    "oom": "use a smaller batch or model per rank, or give the ranks more memory",
    "device": "run the job without that device, and test it before it is used again",
    "hang": "look at the stack of that rank while it hangs: `py-spy dump --pid PID`",
    "gil": "find the native call that keeps the interpreter lock: `py-spy dump --native --pid PID`",
    "stop": "find out who stops the process (SIGSTOP, a debugger, a frozen cgroup)",
    "corrupt": "test memory and device of the contradicted rank before they are used again",
    "partition": "check the network between that host and the coordinator's",
    "network": "check the network between the hosts: connections broke and every process lived",
    "slow": "compare clocks, temperature and other load of that rank's host with the others'",
}


def render_summary(
    summary: dict[str, Any] | None, exit_code: int, why: str, planned: Sequence[str] = ()
) -> str:
    """Return the closing lines of a run. ``planned``: the faults to inject, in order."""
    if summary is None:
        return f"keepstep: ended with exit code {exit_code}{f': {why}' if why else ''}\n"
    failed = exit_code != 0 or summary["outcome"] != "completed"
    lines = [_outcome(summary, exit_code)]
    reason = why or summary.get("why", "")
    if reason and reason != summary["outcome"]:
        lines.append(f"keepstep: {'why' if failed else 'note'}: {reason}")
    lines += _faults(summary)
    fired = summary.get("injections_fired", ())
    missed = [spec for index, spec in enumerate(planned) if index not in fired]
    if missed:
        lines.append(f"keepstep: planned but never happened: {', '.join(missed)}")
    wrong = summary["steps"] and (summary.get("samples_lost") or summary.get("samples_repeated"))
    lines.append(f"keepstep: {'WRONG' if wrong else 'proven'}: {_proven(summary)}")
    if failed:
        lines.append(f"keepstep: next: {_next(summary, exit_code)}")
    return "\n".join(lines) + "\n"


def _outcome(summary: dict[str, Any], exit_code: int) -> str:
    outcome = summary["outcome"] or "ended early"
    code = f" (exit code {exit_code})" if exit_code else ""
    return (
        f"keepstep: {outcome}{code}: {count(summary['steps'], 'step')} on "
        f"{count(summary['world_size'], 'rank')}, {count(summary['generations'], 'generation')}, "
        f"median step {summary['median_step_s']:.3f} s"
    )


def _faults(summary: dict[str, Any]) -> list[str]:
    recoveries, lines = summary["recoveries"], []
    if recoveries:
        shown = recoveries[-SHOWN:]
        lines += table(HEADER, [_cells(entry) for entry in shown])
        if len(shown) < len(recoveries):
            lines.append(f"  ... and {len(recoveries) - len(shown)} before them")
    else:
        lines.append("keepstep: no fault")
    others = [
        count(summary["coordinator_restarts"], "restart") + " of the coordinator"
        if summary["coordinator_restarts"]
        else "",
        f"{count(summary['spares_lost'], 'spare')} lost" if summary["spares_lost"] else "",
    ]
    if any(others):
        lines.append(f"keepstep: also: {', '.join(text for text in others if text)}")
    return lines


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    rank = "unknown" if entry["rank"] is None else str(entry["rank"])
    spans = ("detected_after_s", "next_step_after_s", "full_strength_after_s")
    return (
        entry["fault"],
        rank,
        str(entry["step"]),
        entry["action"],
        *("never" if entry[name] is None else f"{entry[name]:.2f} s" for name in spans),
        str(entry["lost_steps"]),
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines; columns of numbers lean to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    right = [
        all(cell[:1].isdigit() or cell == "never" for cell in column[1:]) for column in columns
    ]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.rjust(width) if lean else cell.ljust(width)
            for cell, width, lean in zip(row, widths, right, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _proven(summary: dict[str, Any]) -> str:
    if not summary["steps"]:
        return "nothing: no step was committed"
    lost, repeated = summary.get("samples_lost"), summary.get("samples_repeated")
    if lost is None or repeated is None:
        samples = "nothing about samples (the script does not use keepstep.Sampler, or its notes "
        samples += "are incomplete)"
    else:
        samples = f"{count(lost, 'sample')} lost, {repeated} repeated"
        if lost or repeated:
            samples += (
                " (a step used other samples than those of Job.share for it, or noted some twice)"
            )
    sha = summary.get("state_sha256")
    if sha:
        return f"{samples}; the replicas agree on the final state (sha256 {sha[:12]})"
    return f"{samples}; no final state was agreed on"


def _next(summary: dict[str, Any], exit_code: int) -> str:
    if exit_code == 130 and summary["outcome"] == "completed":
        return "the training is complete; what the script does after Job.train was cut short"
    if exit_code == 130:
        return (
            "run the command again; it goes on from the script's last checkpoint, or from step 0 "
            "where it keeps none"
        )
    if summary["outcome"] == "completed":
        return "the training is complete; see what the script did after Job.train"
    last = summary["recoveries"][-1]["fault"] if summary["recoveries"] else ""
    return NEXT.get(last, "the workers' output above says more")
