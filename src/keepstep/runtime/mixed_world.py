"""What to say when ranks of one job run different versions of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence


def mixed_world(versions: Sequence[str]) -> str:
    """Return a warning for ranks that run ``versions``."""
    return (
        f"ranks run different versions of PyTorch ({', '.join(versions)}): results may differ in "
        "the last bits, and 2.15 and older cannot save one checkpoint together (dcp.save ends "
        "with 'too many values to unpack') unless every rank of 2.15 calls "
        "keepstep.checkpoint.write_old_format() first"
    )
