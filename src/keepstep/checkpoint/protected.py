"""What a trainer's own retention can ask before it removes a checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.ledger import ledger_of
from keepstep.checkpoint.store import open_store
from keepstep.checkpoint.window import window_of

_LOG = logging.getLogger(__name__)


def is_protected(path: str | Path) -> bool:
    """Return whether an open rollback window protects a checkpoint, by the ledger beside its run.

    Reads one small file, so it can be asked before every removal. Where the ledger cannot be read
    the answer is yes, and a warning is logged: what is kept too long can be removed later.

    Args:
        path: Folder or address of the checkpoint, such as ``run/step-100``.

    Example:
        torchtitan from its main branch, where ``folder`` is the checkpoints' folder::

            purge_exempt = lambda step: is_protected(f"{folder}/step-{step}")
    """
    run, slash, name = str(path).rstrip("/").rpartition("/")
    try:
        window = window_of(ledger_of(open_store(run or slash or ".")).read())
    except (CheckpointError, OSError) as error:
        _LOG.warning("keepstep: %s is kept: it is not known what is protected: %s", path, error)
        return True
    return window is not None and name in window.names
