"""What a rehearsal comes to: one verdict, one sentence, and what stays open."""

from __future__ import annotations

from keepstep.canary.cell import Role
from keepstep.canary.facts import Facts
from keepstep.canary.verdict import Verdict, worst
from keepstep.report.model import CellResult, Rehearsal

# Cells of the old stack: when they fail, nothing is said against the new one.
_SAYS_NOTHING = frozenset(
    {Role.REFERENCE, Role.SAME, Role.SLOWER, Role.FASTER, Role.SEPARATOR},
)

_WAYS_BACK = ("rollback", "restore")  # drills without which nothing is known of a way back

WHOSE_JOBS = (
    "Hang and replace start small jobs that come with keepstep, on the stacks of the plan; "
    "rollback and restore start the plan's saving_job."
)


class Gap(Facts):
    """Something that is open because of what this machine is, with all that it concerns."""

    proves: str
    why: str
    what: tuple[str, ...]


def verdict_of(rehearsal: Rehearsal) -> Verdict:
    """Return the verdict over cells, controls, drills and the checkpoint together.

    The judge says which failed cell speaks against the new stack; any other that did not pass, a
    control among them, leaves the question open. What was not run was not proven.
    """
    judgement = rehearsal.judgement
    found = [judgement.verdict, *(drill.verdict for drill in rehearsal.drills)]
    found.append(rehearsal.checkpoint.verdict if rehearsal.checkpoint else Verdict.NOT_RUN)
    parts = [verdict_of_cell(cell) for cell in rehearsal.cells]
    parts += [control.verdict for control in judgement.controls]
    open_parts = not rehearsal.drills or rehearsal.not_run or left_out(rehearsal)
    if set(parts) - {Verdict.PASS} or open_parts:
        found.append(Verdict.INCONCLUSIVE)
    return worst(found)


def sentence(rehearsal: Rehearsal) -> str:
    """Return the verdict as one sentence: whether to move, and what decides it."""
    move, verdict = _move(rehearsal), verdict_of(rehearsal)
    done = f"{_count(_judged(rehearsal), 'cell')} and {_count(len(rehearsal.drills), 'drill')}"
    if verdict is Verdict.PASS:
        return f"Ready to move {move}: {done} passed, nothing was left out."
    if verdict is Verdict.FAIL:
        return f"Do not move {move}: {listed(_against(rehearsal))} failed.{_also(rehearsal)}"
    open_parts = "; ".join(_open(rehearsal)) or rehearsal.judgement.sentence.rstrip(".")
    failed = _cells(rehearsal, Verdict.FAIL) or _broken(rehearsal)
    but = "" if failed else f"nothing failed in {done}, but "
    return f"Not decided whether to move {move}: {but}{open_parts}."


def gaps(rehearsal: Rehearsal) -> tuple[Gap, ...]:
    """Return what was not run, grouped by what it was to prove and why it was not run."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for each in rehearsal.not_run:
        grouped.setdefault((each.proves, each.why), []).append(each.what)
    return tuple(
        Gap(proves=proves, why=why, what=tuple(what)) for (proves, why), what in grouped.items()
    )


def left_out(rehearsal: Rehearsal) -> list[str]:
    """Return the drills of the ways back that the plan does not have, where it has others."""
    names = [drill.name for drill in rehearsal.drills] + [gap.what for gap in rehearsal.not_run]
    kinds = {name.partition("/")[0] for name in names}
    return [kind for kind in _WAYS_BACK if kind not in kinds] if rehearsal.drills else []


def verdict_of_cell(cell: CellResult) -> Verdict:
    """Return what a report shows for a cell: one that was interrupted has no answer."""
    if cell.verdict is not None and cell.state == "judged":
        return cell.verdict.verdict
    return Verdict.NOT_RUN if cell.state == "not run" else Verdict.INCONCLUSIVE


def _move(rehearsal: Rehearsal) -> str:
    builds = list(dict.fromkeys(stack.torch for stack in rehearsal.stacks))
    versions = [build.partition("+")[0] for build in builds]
    if len(set(versions)) < len(builds):
        versions = builds  # the versions alone do not tell them apart
    if len(versions) < 2:
        return "to the new stack"
    return f"from PyTorch {versions[0]} to {versions[-1]}"


def _against(rehearsal: Rehearsal) -> list[str]:
    """Return what speaks against the new stack."""
    found = []
    if rehearsal.judgement.verdict is Verdict.FAIL:
        new = [c for c in rehearsal.cells if c.cell.role not in _SAYS_NOTHING]
        found = [f"cell {c.cell.id}" for c in new if verdict_of_cell(c) is Verdict.FAIL]
        found = found or ["the matrix"]
    return found + _others(rehearsal, Verdict.FAIL)


def _also(rehearsal: Rehearsal) -> str:
    """Say that the old stack failed as well, where it did: then the new one may not be to blame."""
    old = [c for c in rehearsal.cells if c.cell.role is Role.REFERENCE]
    names = [f"cell {c.cell.id}" for c in old if verdict_of_cell(c) is Verdict.FAIL]
    if not names:
        return ""
    return (
        f" Today's stack failed as well ({listed(names)}): look there first, it may be the job or "
        "the machine and not the new stack."
    )


def _open(rehearsal: Rehearsal) -> list[str]:
    """Say what keeps an answer away."""
    parts = []
    broken = _broken(rehearsal)
    if broken:
        parts.append(f"{listed(broken)} did not pass, so the judge is not to be believed")
    failed = _cells(rehearsal, Verdict.FAIL)
    if failed:
        parts.append(f"{_named_or_counted(failed)} failed, which decides nothing by itself")
    unknown = _cells(rehearsal, Verdict.INCONCLUSIVE) + _others(rehearsal, Verdict.INCONCLUSIVE)
    if unknown:
        verb = "has" if len(unknown) == 1 else "have"
        parts.append(f"{_named_or_counted(unknown)} {verb} no answer")
    late = sum(each.for_time for each in rehearsal.not_run)
    if late < len(rehearsal.not_run):
        parts.append(f"{len(rehearsal.not_run) - late} more could not be run on this machine")
    if late:
        parts.append(f"{late} more {'was' if late == 1 else 'were'} not begun in this sitting")
    if not rehearsal.drills:
        parts.append("no drill was run")
    if missing := left_out(rehearsal):
        parts.append(f"the plan leaves out the ways back ({listed(missing)})")
    if rehearsal.checkpoint is None:
        parts.append("nobody asked which checkpoint the old stack can read")
    return parts


def _broken(rehearsal: Rehearsal) -> list[str]:
    """Return the controls that say not to believe the judge."""
    return [
        f"control {control.name} ({control.cell})"
        for control in rehearsal.judgement.controls
        if control.verdict not in (Verdict.PASS, Verdict.NOT_RUN)
    ]


def _cells(rehearsal: Rehearsal, verdict: Verdict) -> list[str]:
    """Return the cells with a verdict; those of controls are told as controls."""
    controls = {control.cell for control in rehearsal.judgement.controls}
    return [
        f"cell {each.cell.id}"
        for each in rehearsal.cells
        if verdict_of_cell(each) is verdict and each.cell.id not in controls
    ]


def _others(rehearsal: Rehearsal, verdict: Verdict) -> list[str]:
    """Return the drills with a verdict, and the checkpoint's answer if it has it."""
    found = [f"drill {drill.name}" for drill in rehearsal.drills if drill.verdict is verdict]
    answer = rehearsal.checkpoint
    return found + (["the checkpoint answer"] if answer and answer.verdict is verdict else [])


def _judged(rehearsal: Rehearsal) -> int:
    return sum(cell.state == "judged" for cell in rehearsal.cells)


def _named_or_counted(found: list[str]) -> str:
    """Return up to two things by name, more of them by their number: 3 cells and 1 drill."""
    if len(found) <= 2:
        return listed(found)
    kinds = [each.partition(" ")[0] for each in found if " " in each]
    counts = [_count(kinds.count(kind), kind) for kind in dict.fromkeys(kinds) if kind != "the"]
    return listed([*counts, *(each for each in found if each.startswith("the "))])


def listed(names: list[str]) -> str:
    """Return names as a sentence has them, not all of them where they are many."""
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
