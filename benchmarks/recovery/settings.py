"""What is the same for all systems. Used inside the training processes: standard library only."""

from __future__ import annotations

WORLD_SIZE = 3
VICTIM = 1  # the rank that is killed or stopped
SEED = 0

# Faults strike in steps 30 to 39 in turn. torchrun's checkpoint is made every 10 steps, so the
# work that it loses takes every value from none to a whole interval equally often.
FIRST_FAULT_STEP = 30
CHECKPOINT_EVERY = 10
CHECKED_STEP = 60  # the model's state after it is compared with that of an unfaulted run

# gloo under torchrun notices a stopped rank by this timeout alone. Its default is 30 minutes.
GLOO_TIMEOUT = 10.0

STEPS = 1_000_000  # more than any run reaches: the benchmark ends the job
LIMIT = 180.0  # seconds after the fault; what has not happened by then counts as never
