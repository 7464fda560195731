"""The top of the page: what was rehearsed, the verdict, what to do next."""

from __future__ import annotations

from keepstep.report.figures import bytes_text, count_text, seconds_text, sentence_text, time_text
from keepstep.report.markup import Markup, joined, tag
from keepstep.report.model import Machine, Rehearsal, StackSummary
from keepstep.report.page_table import section, table
from keepstep.report.signs import CLASS, SIGN
from keepstep.report.steps import MOST, Step, steps
from keepstep.report.summary import sentence, verdict_of


def header(rehearsal: Rehearsal) -> Markup:
    """Return what was rehearsed, when and where."""
    source = tag(
        "p", tag("b", "keepstep rehearse"), " ", tag("span", rehearsal.plan, class_="path")
    )
    began, took = time_text(rehearsal.started), seconds_text(rehearsal.seconds)
    facts = " · ".join((began, f"{took} of work", rehearsal.machine.host))
    return tag("header", source, tag("p", facts, class_="facts"))


def verdict(rehearsal: Rehearsal) -> Markup:
    """Return the verdict in one sentence."""
    found = verdict_of(rehearsal)
    sign = tag("span", SIGN[found], aria_hidden="true")
    return tag(
        "section",
        tag("p", sign, " ", tag("span", found.value, id="word"), class_="word"),
        tag("h1", sentence(rehearsal)),
        class_=f"verdict {CLASS[found]}",
        aria_labelledby="word",
    )


def what_next(rehearsal: Rehearsal) -> Markup:
    """Return what to do next, the most pressing first."""
    found = steps(rehearsal)
    items = [tag("li", _step(step)) for step in found[:MOST]]
    if len(found) > MOST:
        items.append(tag("li", f"and {len(found) - MOST} more, each with its cell or drill"))
    return section("next", "What to do next", tag("ol", items))


def what_ran(rehearsal: Rehearsal) -> Markup:
    """Return the stacks and the machine."""
    heads = ["Stack", "PyTorch", "As its running processes said"]
    rows = [(stack.name, stack.torch, _facts(stack)) for stack in rehearsal.stacks]
    notes = [tag("p", sentence_text(note)) for note in rehearsal.notes]
    return section(
        "ran",
        "What ran",
        table("Stacks", heads, rows),
        _same_nccl(rehearsal),
        tag("p", tag("b", "Machine: "), _machine(rehearsal.machine), class_="machine"),
        notes,
    )


def _facts(stack: StackSummary) -> str:
    """Return what else is known of a stack; the version has a column of its own."""
    facts = {name.removeprefix("torch."): value for name, value in stack.facts.items()}
    return " · ".join(f"{name} {value}" for name, value in facts.items() if name != "version")


def _same_nccl(rehearsal: Rehearsal) -> Markup | None:
    """Say that NCCL was not what was tried, where all stacks have the same."""
    found = {stack.facts.get("nccl", "") for stack in rehearsal.stacks}
    if len(rehearsal.stacks) < 2 or len(found) != 1 or "" in found:
        return None
    (version,) = found
    text = f"All stacks have NCCL {version}: whatever differs, NCCL's version is not the reason."
    return tag("p", text)


def _machine(machine: Machine) -> str:
    parts = [machine.host]
    if machine.processors is not None:
        parts.append(count_text(machine.processors, "processor"))
    if machine.memory_bytes is not None:
        parts.append(f"{bytes_text(machine.memory_bytes)} of memory")
    parts.append(", ".join(machine.gpus) if machine.gpus else "no GPU")
    parts.append(count_text(machine.nodes, "node"))
    return " · ".join(filter(None, (*parts, machine.system)))


def _step(step: Step) -> Markup:
    about = tag("span", f" ({step.about})", class_="soft") if step.about else None
    return joined(sentence_text(step.text), about)
