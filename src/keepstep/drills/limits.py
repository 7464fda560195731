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
    # For an NCCL rank to dump or to abort. It needed up to 14 s for a dump, seconds of which are
    # its first look at call sites (PyTorch 2.11 and 2.15.0 on H200s).
    abort_s: float = 40.0
    # Once all ranks that wait have dumped: nccl2 aborts 15 s after its dump. The legacy backend
    # stands for 60 s, which nobody waits for; the rank that is held dumps within 7 s.
    after_dump_s: float = 20.0
