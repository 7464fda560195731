"""Which ranks leave a recorder dump by themselves after a timeout, where that is known.

The rank that waits in a collective and the rank that never came to it differ, and so do backends
and versions: a drill that did not know it would call a normal day a failure, or a failure a normal
day. ``TABLE`` is the only place where this knowledge lives; each row says where it is from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

VARIABLE = "TORCH_DIST_USE_NCCL2"  # read once, when the name nccl is registered


class Dump(StrEnum):
    """Whether a dump is written by itself."""

    WRITTEN = "written"
    ABSENT = "absent"
    UNKNOWN = "unknown"  # nobody has looked


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a hang leaves on one implementation of a backend."""

    waiting: Dump  # of the ranks that are in the collective
    held: Dump  # of the rank that is not
    end: str  # what becomes of the ranks that wait
    aborts: bool  # they end by a signal
    way: str  # how to get what is not written by itself
    source: str
    records: bool = True  # it has a recorder: a rank that is asked has something to give


_RUN = (
    "ask each rank from outside its main thread, as keepstep run does while a stall is suspected, "
    "or through PyTorch's debug server (torch.distributed.debug.start_debug_server)"
)
_MEASURED = "measured: PyTorch 2.15.0, NCCL 2.30.7, one H200 and two, three ranks"
_LEGACY_END = "SIGABRT about 66 s after the timeout: a dump, then a wait of 60 s"
_RAISES = "the operation raises RuntimeError"

# By implementation; a row counts from its version on, up to the next row of that implementation.
TABLE: Mapping[str, tuple[tuple[tuple[int, int], Expectation], ...]] = {
    "gloo": (
        (
            (2, 0),
            Expectation(
                waiting=Dump.ABSENT,
                held=Dump.ABSENT,
                end=_RAISES,
                aborts=False,
                way=_RUN,
                source="measured: PyTorch 2.14.1 and 2.15.0 on a CPU",
            ),
        ),
    ),
    "nccl2": (
        (
            (2, 13),
            Expectation(
                waiting=Dump.ABSENT,
                held=Dump.ABSENT,
                end="SIGABRT one second after the timeout",
                aborts=True,
                way="use a PyTorch from 2.15 on; keepstep run looks at stacks as well",
                source="measured: PyTorch 2.14.1, NCCL 2.30.7, one H200, three ranks; no recorder "
                "is attached to nccl2 up to 2.14, and both functions that dump give no entry",
                records=False,
            ),
        ),
        (
            (2, 15),
            Expectation(
                waiting=Dump.WRITTEN,
                held=Dump.ABSENT,
                end="SIGABRT 17 to 21 s after the timeout: a dump, then a wait of 15 s",
                aborts=True,
                way=_RUN,
                source=f"{_MEASURED}; pytorch/pytorch#196968",
            ),
        ),
    ),
    "nccl-lazy": (
        (
            (2, 13),
            Expectation(
                waiting=Dump.ABSENT,
                held=Dump.ABSENT,
                end="SIGABRT 16 s after the timeout: a wait of 15 s, and no dump",
                aborts=True,
                way=_RUN,
                source=_MEASURED,
            ),
        ),
    ),
    "nccl-legacy": (
        (
            (2, 0),
            Expectation(
                waiting=Dump.UNKNOWN,
                held=Dump.UNKNOWN,
                end="SIGABRT",
                aborts=True,
                way=_RUN,
                source="not measured before PyTorch 2.11",
            ),
        ),
        (
            (2, 11),
            Expectation(
                waiting=Dump.WRITTEN,
                held=Dump.WRITTEN,
                end=_LEGACY_END,
                aborts=True,
                way=_RUN,
                source="measured: PyTorch 2.11.0, NCCL 2.28.9, two H200, and 2.14.1, NCCL 2.30.7, "
                "one H200, three ranks; not 2.12 and 2.13",
            ),
        ),
        (
            (2, 15),
            Expectation(
                waiting=Dump.WRITTEN,
                held=Dump.WRITTEN,
                end=_LEGACY_END,
                aborts=True,
                way=_RUN,
                source=f"{_MEASURED}: a signal through the store reaches a rank that sleeps in "
                "Python; pytorch/pytorch#196968 saw one that did not dump",
            ),
        ),
    ),
}

CLASSES = {  # by implementation
    "gloo": "ProcessGroupGloo",
    "nccl2": "ProcessGroupNCCL2",
    "nccl-lazy": "ProcessGroupNCCLLazy",
    "nccl-legacy": "ProcessGroupNCCL",
}


def implementation(backend: str, minor: str, variables: Mapping[str, str]) -> str:
    """Return what a backend spelling builds: the name ``nccl`` alone does not say.

    Args:
        backend: The spelling, such as nccl.
        minor: The minor version of PyTorch, such as 2.15.
        variables: Of the ranks.
    """
    if backend != "nccl":
        return backend
    if numbers(minor) >= (2, 15):
        return "nccl-legacy" if variables.get(VARIABLE) == "0" else "nccl2"
    return "nccl2" if variables.get(VARIABLE) == "1" else "nccl-legacy"


def expected(backend: str, minor: str, variables: Mapping[str, str]) -> Expectation:
    """Return what a hang leaves; a backend that nobody has tried leaves what nobody knows."""
    rows = TABLE.get(implementation(backend, minor, variables), ())
    known = [row for since, row in rows if since <= numbers(minor)]
    if known:
        return known[-1]
    return Expectation(
        waiting=Dump.UNKNOWN,
        held=Dump.UNKNOWN,
        end="not known",
        aborts=False,
        way=_RUN,
        source="nobody has tried this backend here",
    )


def numbers(minor: str) -> tuple[int, int]:
    """Return a minor version as numbers, such as (2, 15); (0, 0) for what is none."""
    major, _, rest = minor.partition(".")
    return (int(major), int(rest)) if major.isdigit() and rest.isdigit() else (0, 0)
