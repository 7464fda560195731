"""What a receipt is bound to, against a stack as it is now."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.receipt.material import ABSENT, Facts
from keepstep.receipt.sealed import Receipt


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
    compared: int = 0  # facts that both can say
    changed: tuple[Changed, ...] = ()
    unknown: str = ""  # why it cannot be said


def compare(receipt: Receipt, stack: str, live: Facts) -> Drift | None:
    """Return how a stack differs from what a receipt is bound to; None if it is not about it.

    Args:
        receipt: What was seen.
        stack: The name of the stack.
        live: What an idle process of it says now. It has no process groups, and what only a
            running job shows cannot be compared; such facts are left out.
    """
    processes = receipt.material.get(stack)
    if processes is None:
        return None
    changed: dict[tuple[str, str], Changed] = {}
    compared: set[str] = set()
    for facts in processes.values():
        for fact in facts.keys() & live.keys():
            compared.add(fact)
            then, now = facts.get(fact, ABSENT), live.get(fact, ABSENT)
            if then != now:
                changed[fact, then] = Changed(fact=fact, then=then, now=now)
    if not compared:
        why = f"the receipt says nothing of the stack {stack} that can be compared"
        return Drift(stack=stack, unknown=why)
    return Drift(
        stack=stack,
        compared=len(compared),
        changed=tuple(changed[key] for key in sorted(changed)),
    )
