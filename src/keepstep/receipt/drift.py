"""What a receipt is bound to, against a stack as it is now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keepstep.receipt.material import ABSENT, Facts
from keepstep.receipt.sealed import Receipt
from keepstep.stack.asked import ask_fingerprint
from keepstep.stack.errors import StackError
from keepstep.stack.material import material
from keepstep.stack.named import Stack

_GROUP = "group."  # of a running job: an idle process has none
_VARIABLE = "variable."
_SAYS_SOMETHING = "torch.version"  # a process that ended too soon says nothing of what it ran on


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """One fact that is not what it was."""

    fact: str
    then: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A receipt against one stack."""

    stack: str
    compared: int = 0  # facts
    changed: tuple[Changed, ...] = ()
    unknown: str = ""  # why it cannot be said


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What an idle process of a stack says now."""

    stack: str  # as a plan calls it, and so the receipts of its cells
    facts: Facts
    name: str = ""  # as `keepstep stack list` calls it, and so the receipts of drills
    unknown: str = ""  # why it says nothing


def ask(stack: Stack, label: str) -> Live:
    """Start the interpreter of a stack once and return what it says.

    The variables of this process count as well: a job that is started here would get them.

    Args:
        stack: Which one.
        label: What receipts call it: a plan may have its own name for it.
    """
    try:
        return Live(stack=label, name=stack.name, facts=material(ask_fingerprint(stack)))
    except StackError as error:
        return Live(stack=label, name=stack.name, facts={}, unknown=str(error))


def compare(receipt: Receipt, live: Live) -> Drift | None:
    """Return how a stack differs from what a receipt is bound to; None if it is not about it."""
    names = dict.fromkeys((live.stack, live.name))
    stacks = [receipt.material[name] for name in names if name in receipt.material]
    if not stacks:
        return None
    if live.unknown:
        return Drift(stack=live.stack, unknown=live.unknown)
    told = [f for processes in stacks for f in processes.values() if f.get(_SAYS_SOMETHING)]
    if not told:
        return Drift(stack=live.stack, unknown="no process said what it ran on")
    changed = {
        (fact, facts.get(fact)): Changed(
            fact=fact, then=facts.get(fact, ABSENT), now=live.facts.get(fact, ABSENT)
        )
        for facts in told
        for fact in _comparable(facts, live.facts)
        if facts.get(fact) != live.facts.get(fact)
    }
    compared = {fact for facts in told for fact in _comparable(facts, live.facts)}
    return Drift(stack=live.stack, compared=len(compared), changed=tuple(changed.values()))


def _comparable(then: Facts, now: Facts) -> Iterator[str]:
    """Yield the facts that an idle process can be asked about.

    A variable that only the receipt has was set by the launcher of its cell, such as a way back.
    One that only the stack has now would change the next job: it counts.
    """
    for fact in sorted(then.keys() | now.keys()):
        if fact.startswith(_GROUP) or (fact.startswith(_VARIABLE) and fact not in now):
            continue
        yield fact
