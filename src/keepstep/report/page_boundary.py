"""What stays open on the page: ways back, checkpoints, costs, differences, what was not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keepstep.report.figures import PER, cost_text, ratio_text, sentence_text
from keepstep.report.markup import Child, Markup, joined, tag
from keepstep.report.model import BoundaryRow, Cost, OpenDifference, Rehearsal
from keepstep.report.page_table import section, soft_text, table, verdict_mark
from keepstep.report.summary import gaps

MOST_WAYS = 4  # that fit beside each other on a page in A4


def boundary(rehearsal: Rehearsal) -> Markup:
    """Return what can be switched back, until when, and what cannot: a column for each way."""
    ways = rehearsal.boundary
    several = [ways[at : at + MOST_WAYS] for at in range(0, len(ways), MOST_WAYS)]
    return section(
        "boundary",
        "The boundary: what can be switched back, and until when",
        [_ways(each) for each in several] or soft_text("No way back was looked at."),
    )


def checkpoint(rehearsal: Rehearsal) -> Markup:
    """Return the answer about checkpoints."""
    answer = rehearsal.checkpoint
    if answer is None:
        text = "Nobody asked which checkpoint the old stack can read: a way back is not proven."
        return section(
            "checkpoint", "The newest checkpoint that the old stack can read", tag("p", text)
        )
    return section(
        "checkpoint",
        answer.question,
        tag("p", verdict_mark(answer.verdict), " ", sentence_text(answer.answer), class_="answer"),
        tag("ul", [tag("li", line) for line in answer.evidence]) if answer.evidence else None,
        tag("p", tag("b", "Next: "), answer.next) if answer.next else None,
    )


def costs(rehearsal: Rehearsal) -> Markup | None:
    """Return what a useful step costs on each stack."""
    if not rehearsal.costs:
        return None
    heads = ["Job", "Variant", f"Per {PER:,} useful steps", "Against the first"]
    rows = [row for cost in rehearsal.costs for row in _cost(cost)]
    notes = dict.fromkeys(cost.note for cost in rehearsal.costs if cost.note)
    return section(
        "costs",
        "What a useful step costs",
        table("Costs, all ranks together", heads, rows, kind="costs"),
        [soft_text(sentence_text(note)) for note in notes],
    )


def differences(rehearsal: Rehearsal) -> Markup:
    """Return what is not the same and unexplained."""
    heads = ["Where", "What", "Values", "What it may mean"]
    found: Child = table("Differences", heads, map(_difference, rehearsal.differences))
    if not rehearsal.differences:
        found = soft_text("None: the ranks of every cell ran on the same thing.")
    return section("differences", "Open differences", found)


def not_run(rehearsal: Rehearsal) -> Markup:
    """Return what was not run, and what no machine of this kind can prove."""
    rows = [
        (gap.proves, tag("span", ", ".join(gap.what), class_="path"), gap.why)
        for gap in gaps(rehearsal)
    ]
    heads = ["What was to be proven", "Cells and drills", "Why it was not run"]
    judged_open = [tag("li", line) for line in rehearsal.judgement.open]
    never = [tag("li", line) for line in rehearsal.unprovable]
    return section(
        "not-run",
        "What was not run",
        table("Not run", heads, rows, kind="not-run")
        if rows
        else soft_text("Every cell and drill of the plan was begun."),
        joined(tag("h3", "Open after the matrix"), tag("ul", judged_open)) if judged_open else None,
        joined(tag("h3", "What no machine of this kind can prove"), tag("ul", never))
        if never
        else None,
    )


def _ways(ways: Sequence[BoundaryRow]) -> Markup:
    rows: list[Sequence[Child]] = [
        ("Undoes", *(way.undoes for way in ways)),
        ("How", *(way.how for way in ways)),
        ("Until", *(way.until for way in ways)),
        ("Checkpoints saved since", *(way.keeps_checkpoints for way in ways)),
        ("Cannot undo", *(way.cannot_undo for way in ways)),
        ("Proven here", *(_proven(way) for way in ways)),
    ]
    heads = ["Way back", *(way.lever for way in ways)]
    return table("What can be switched back", heads, rows, kind="boundary")


def _proven(way: BoundaryRow) -> Markup:
    proof = [tag("span", part, class_="soft reason") for part in (way.proof, way.receipt) if part]
    return joined(verdict_mark(way.proven), proof)


def _cost(cost: Cost) -> Iterator[tuple[Child, ...]]:
    first = next(iter(cost.per_step.values()), None)
    for number, (variant, hours) in enumerate(cost.per_step.items()):
        against = "" if number == 0 or not first or hours is None else ratio_text(hours / first)
        yield (
            cost.what if number == 0 else tag("span", cost.what, class_="unseen"),
            variant,
            f"{cost_text(hours)} {cost.unit}" if hours is not None else "not known",
            against,
        )


def _difference(each: OpenDifference) -> tuple[Child, ...]:
    values = [(tag("b", f"{place}: "), value, tag("br")) for place, value in each.values.items()]
    return (each.where, each.what, joined(*values), each.note)
