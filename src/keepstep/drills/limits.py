"""How long the parts of a drill may take. Beyond these everything is killed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds."""

    # Every rank imports torch and builds its group. Two loaded cores took 20 s for three ranks.
    start_s: float = 90.0
    operation_s: float = 5.0  # timeout of the collective that hangs
    late_s: float = 5.0  # by which that timeout may fire later
    job_s: float = 90.0  # one run of a small training job
    # An NCCL rank dumps for up to 6 s after its timeout and waits 15 s more before it aborts
    # (PyTorch 2.15.0 on an H200).
    abort_s: float = 40.0
