"""Which PyTorch versions can load what which version wrote: a table, and the evidence for it.

The forms of the metadata have changed three times, each time so that older versions cannot read the
newer form. Newer versions read every older one.
"""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.checkpoint.names import SHARDED
from keepstep.checkpoint.peek import Peek

MINORS = tuple(f"2.{minor}" for minor in range(16))  # every PyTorch 2, oldest first

# Versions that were installed: each read what each of them wrote. All others are derived from
# their sources (metadata.py, filesystem.py), which differ from a neighbour in nothing that matters.
RUN = {"2.2": "2.2.2", "2.3": "2.3.1", "2.4": "2.4.1", "2.14": "2.14.1", "2.15": "2.15.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """Versions that write the same form of metadata."""

    name: str
    first: str  # the oldest version that writes this form, and the oldest that reads it
    last: str
    mark: str  # how it is recognised
    older: str  # why older versions fail, in the words of their exception


ERAS = {
    era.name: era
    for era in (
        Era(
            name="A",
            first="2.0",
            last="2.2",
            mark="TensorProperties live in torch.distributed._shard.sharded_tensor.metadata",
            older="",
        ),
        Era(
            name="B",
            first="2.3",
            last="2.3",
            mark="TensorProperties live in torch.distributed.checkpoint.metadata, no StorageMeta",
            older="Can't get attribute '_MEM_FORMAT_ENCODING'",
        ),
        Era(
            name="C",
            first="2.4",
            last="2.14",
            mark="a StorageMeta, and TensorProperties of five fields",
            older="Can't get attribute 'StorageMeta'",
        ),
        Era(
            name="D",
            first="2.15",
            last="2.15",
            mark="TensorProperties of six fields: the sixth are strides",
            older="too many values to unpack (expected 5)",
        ),
    )
}


def minor_of(version: str) -> str:
    """Return the minor version that a user means: 2.14 for 2.14, 2.14.1 or 2.14.1+cu130.

    Raises:
        ValueError: No PyTorch 2 that this table knows.
    """
    minor = ".".join(version.split("+")[0].split(".")[:2])
    if minor not in MINORS:
        raise ValueError(f"saw PyTorch {version!r}; wanted one of {', '.join(MINORS)}")
    return minor


def not_older(minor: str, floor: str) -> bool:
    """Return whether ``minor`` is ``floor`` or newer."""
    return MINORS.index(minor) >= MINORS.index(floor)


def era_of(seen: Peek) -> Era | None:
    """Return the era of the writer; None where nothing tells (no tensor, no StorageMeta)."""
    if seen.properties_fields == 6:
        return ERAS["D"]
    if seen.properties_module == SHARDED:
        return ERAS["A"]
    if seen.storage_meta:
        return ERAS["C"]  # without a tensor it may be D, and reads like C all the same
    return ERAS["B"] if seen.properties_module else None


def evidence_for(minor: str) -> str:
    """Return how it is known what ``minor`` reads."""
    return f"run with PyTorch {RUN[minor]}" if minor in RUN else "derived from its source"
