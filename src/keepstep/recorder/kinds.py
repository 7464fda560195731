"""The words of dumps. Apart from ``model``, so that a reading process starts fast."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """How far an operation came, in the recorder's own words."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


class Direction(StrEnum):
    """Which half of a point-to-point pair an operation is."""

    SEND = "send"
    RECEIVE = "recv"


class Backend(StrEnum):
    """Which recorder wrote a dump; the same field means different things in each."""

    NCCL_LEGACY = "nccl-legacy"
    NCCL2 = "nccl2"
    NCCL_LAZY = "nccl-lazy"
    GLOO = "gloo"
    TORCHCOMMS = "torchcomms"
    OTHER = "other"
    UNKNOWN = "unknown"  # no entry says


class Severity(StrEnum):
    """How much a finding weighs."""

    ERROR = "error"  # the file could not be used
    WARNING = "warning"  # it was used, with care
    NOTE = "note"
