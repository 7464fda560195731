"""Reads the fingerprint that a rank recorded: what is not there is empty, never an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keepstep.canary.record import RankRecord
from keepstep.stack.material import material

# Variables that differ between ranks, between runs, or between the places of two stacks.
OF_A_RANK = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURMD_NODENAME",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "NCCL_HOSTID",
        "HOSTNAME",
    }
)
OF_A_RUN = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_STEP_ID",
        "SLURM_JOB_ID",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_FR_DUMP_TEMP_FILE",
    }
)
OF_A_PLACE = frozenset(
    {
        "PATH",
        "PYTHONPATH",
        "LD_LIBRARY_PATH",
        "HOME",
        "TMPDIR",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CUDA_HOME",
    }
)
LOST = frozenset({"ignored", "renamed", "removed"})  # statuses of a variable that does nothing


def environment(rank: RankRecord) -> dict[str, str]:
    """Return the variables that the process had, of those that its fingerprint may hold."""
    return {name: str(_of(facts, "value")) for name, facts in _table(rank, "environment").items()}


def lost_variables(rank: RankRecord) -> dict[str, str]:
    """Return the variables that have no effect in the process, and why."""
    return {
        name: f"{_of(facts, 'status')}: {_of(facts, 'note')}".rstrip(": ")
        for name, facts in _table(rank, "environment").items()
        if _of(facts, "status") in LOST
    }


def duplicates(rank: RankRecord) -> tuple[str, ...]:
    """Return the libraries that were loaded more than once."""
    found = rank.fingerprint.get("duplicates")
    return tuple(map(_twice, found)) if isinstance(found, list | tuple) else ()


def has(rank: RankRecord, key: str) -> bool:
    """Tell whether the fingerprint says anything about a key."""
    return rank.fingerprint.get(key) is not None


def gpu_names(rank: RankRecord) -> list[str]:
    """Return the unique names of the GPUs that the process sees, by index."""
    found = rank.fingerprint.get("gpus")
    gpus = found if isinstance(found, list | tuple) else ()
    return [str(_of(gpu, "uuid") or "") for gpu in gpus]


def of_the_job(rank: RankRecord) -> dict[str, str] | None:
    """Return what must be the same in every process of a job; None: the fingerprint is damaged."""
    try:
        facts = material(rank.fingerprint)
    except (AttributeError, KeyError, TypeError):
        return None
    facts |= {f"variable.{name}": value for name, value in environment(rank).items()}
    return {name: text for name, text in facts.items() if name.split(".")[-1] not in OF_A_RANK}


def _twice(facts: object) -> str:
    paths = _of(facts, "paths")
    where = " and ".join(map(str, paths)) if isinstance(paths, list | tuple) else ""
    return f"{_of(facts, 'name') or facts} is loaded from {where}" if where else str(facts)


def _table(rank: RankRecord, key: str) -> Mapping[str, Any]:
    found = rank.fingerprint.get(key)
    return found if isinstance(found, Mapping) else {}


def _of(facts: object, key: str) -> object:
    return (facts.get(key) or "") if isinstance(facts, Mapping) else ""
