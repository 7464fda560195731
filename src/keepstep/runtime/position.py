"""Where a worker is in its job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Position:
    """Changed by the training thread alone: by the step loop and when a generation begins."""

    generation: int = 0  # 0: no member yet
    entered: int = (
        0  # newest generation in whose groups it has a rank; it may not hold its state yet
    )
    committed: int = 0  # steps whose changes are complete
    first_commit: int = 0  # what ``committed`` is after the first commit of the generation
    prove: bool = False  # the first commit has to be told with the digest of the state
    hides_failure: bool = False  # a collective of the step failed, and the step may go on
    told_late: bool = False  # the coordinator knows that per-rank state changes late
    step: int = -1  # the one that is being computed, or was computed last
    torn: bool = False  # it holds neither its own state nor that of its donors
