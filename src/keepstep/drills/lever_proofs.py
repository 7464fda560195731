"""Is a lever pulled, on every rank, and is one that is pulled on some ranks only noticed?"""

from __future__ import annotations

from collections.abc import Sequence

from keepstep.drills.expected import VARIABLE
from keepstep.drills.job_runs import RANKS
from keepstep.drills.levers import Lever
from keepstep.drills.notebook import Notebook
from keepstep.drills.resolutions import DIFFER, Resolutions

OLD_BACKEND, OLD_BUILDER = "ProcessGroupNCCL", "_create_nccl_process_group"
TYPES = {"variable": "NCCL", "spelling": "CUSTOM", "stack": "NCCL"}  # of the group, by lever


def prove_resolution(notebook: Notebook, lever: Lever, found: Resolutions) -> None:
    """Write down what the name resolves to on every rank with the lever."""
    builders, kinds = found.values("builder"), found.values("type")
    wanted_type = TYPES[lever.name]
    # A stack from before the names were registered has no function to ask for: its name nccl can
    # only mean the old backend.
    old = {None, OLD_BUILDER} if lever.name == "stack" else {OLD_BUILDER}
    notebook.prove(
        f"{lever.what}: every rank resolves {lever.backend or 'nccl'} to the old backend",
        old.issuperset(builders) and set(kinds) == {wanted_type} if found.complete else None,
        seen=_by_rank(builders, kinds) if found.complete else f"no answer: {found.tail.strip()}",
        wanted=f"{OLD_BUILDER}, type {wanted_type}, on {RANKS} ranks",
        evidence=f"{lever.name}-on-every-rank/resolved-0.json",
    )
    if lever.variables:
        notebook.prove(
            f"{VARIABLE} was read when the name was registered, and not after",
            all(found.values("read_once")) if found.complete else None,
            seen="changing it in the process changed nothing"
            if all(found.values("read_once"))
            else "changing it in the process changed what the name means",
            wanted="a change in the process that changes nothing",
            evidence=f"{lever.name}-on-every-rank/resolved-0.json",
        )


def prove_partly(
    notebook: Notebook, lever: Lever, found: Resolutions, fact: str, pulled: object
) -> None:
    """Write down that a lever on rank 0 alone was set so, and was caught before any collective."""
    values = found.values(fact)
    happened = found.complete and values[:1] == [pulled] and pulled not in values[1:]
    notebook.prove(
        f"{lever.what} was pulled on rank 0 only",
        happened,
        seen=", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values)) or "nothing",
        wanted=f"{pulled} on rank 0, something else on the others",
        fault=True,
    )
    caught = all(code == DIFFER for code in found.codes) and bool(found.differs)
    early = all(count == 0 for count in found.values("collectives_before"))
    notebook.prove(
        f"{lever.what} on rank 0 only is caught before the first collective",
        caught and early if found.complete else None,
        seen="; ".join(found.differs) or f"exit codes {found.codes}: {found.tail.strip()}",
        wanted="every rank refuses, and says in what they differ",
        evidence=f"{lever.name}-on-rank-0-only/resolved-0.json",
    )


def _by_rank(builders: Sequence[object], kinds: Sequence[object]) -> str:
    both = [
        f"{builder or 'no registered function'}, type {kind}"
        for builder, kind in zip(builders, kinds, strict=True)
    ]
    if len(set(both)) == 1:
        return f"{both[0]}, on {len(both)} ranks"
    return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(both))


def prove_class(notebook: Notebook, lever: Lever, found: Resolutions) -> None:
    """Write down what every rank has really built."""
    built = found.values("built")
    refusals = [text for text in found.values("refusal") if text]
    notebook.prove(
        f"{lever.what}: every rank builds the old class",
        set(built) == {OLD_BACKEND} if found.complete else None,
        seen=", ".join(refusals) or ", ".join(map(str, built)),
        wanted=f"{OLD_BACKEND} on {RANKS} ranks",
        evidence=f"{lever.name}-on-every-rank/resolved-0.json",
    )
