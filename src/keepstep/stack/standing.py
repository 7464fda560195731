"""How a stack stands: is it still what was made, and does it start?"""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.stack.asked import ask_fingerprint
from keepstep.stack.errors import StackError
from keepstep.stack.material import Difference, packages_drift
from keepstep.stack.named import Stack, at_creation


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A stack, and what has changed in it."""

    stack: Stack
    drift: tuple[Difference, ...] = ()
    error: str = ""  # why it does not start
    looked_at: bool = True

    @property
    def sound(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.drift and not self.error


def standing_of(stack: Stack) -> Standing:
    """Compare a stack's packages with those it was made with: starts Python, not PyTorch.

    What is behind a prefix is not looked at: starting a container takes its time.
    """
    then = at_creation(stack)
    if stack.prefix or then is None:
        return Standing(stack=stack, looked_at=False)
    try:
        now = ask_fingerprint(stack, without_torch=True)
    except StackError as error:
        return Standing(stack=stack, error=str(error))
    return Standing(stack=stack, drift=tuple(packages_drift(then, now)))
