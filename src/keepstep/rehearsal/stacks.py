"""The stacks of a plan: found, or made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from keepstep.canary.plan import Plan
from keepstep.stack.asked import ask_fingerprint
from keepstep.stack.create import create
from keepstep.stack.errors import StackError, UnknownStackError
from keepstep.stack.material import material
from keepstep.stack.named import Stack, find_stack

_VERSION = re.compile(r"\d+\.\d+\.\d+")


def prepare(plan: Plan, say: Callable[[str], None]) -> dict[str, Stack]:
    """Return the stack of each name in the plan; one that is a version of PyTorch is made.

    Raises:
        UnknownStackError: A name that is no version, and no stack has it.
        StackError: It could not be made.
    """
    found = {}
    for name, wanted in plan.stacks.items():
        try:
            found[name] = find_stack(wanted)
        except UnknownStackError:
            if not _VERSION.fullmatch(wanted):
                raise
            say(f"making the stack {wanted}")
            found[name] = create(wanted, torch=wanted)
    return found


def live_facts(stacks: Mapping[str, Stack]) -> dict[str, dict[str, str]]:
    """Return what each stack is now, as its own interpreter says: the material facts.

    A stack that does not start is left out; what was to be bound to it is then bound to nothing,
    which whoever verifies is told.
    """
    found = {}
    for name, stack in stacks.items():
        try:
            found[name] = material(ask_fingerprint(stack))
        except StackError:
            continue
    return found
