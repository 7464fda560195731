"""What became of the checkpoints that a window protects."""

from __future__ import annotations

from dataclasses import dataclass

from keepstep.checkpoint.choice import copy_of, same
from keepstep.checkpoint.copies import copied, copies_folder
from keepstep.checkpoint.errors import NotACheckpointError
from keepstep.checkpoint.record import identify
from keepstep.checkpoint.status import Step, find_status, steps_of
from keepstep.checkpoint.store import LocalStore, Store
from keepstep.checkpoint.testload import refusal
from keepstep.checkpoint.window import Mark, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A mark and what became of it. True: as it was marked; False: written again; None: gone."""

    mark: Mark
    in_run: bool | None
    copy: bool | None


def standings(root: Store, window: Window) -> tuple[Standing, ...]:
    """Say what became of what a window protects; reads the metadata of each."""
    names = {name for _, name in steps_of(root.folders())}
    return tuple(
        Standing(
            mark=mark,
            in_run=same(root.below(mark.name), mark) if mark.name in names else None,
            copy=None if (copy := copy_of(root, mark.name)) is None else same(copy, mark),
        )
        for mark in window.marks
    )


def newest_readable_copy(root: Store, minor: str) -> Step | None:
    """Return the newest copy beside a run that a version can read, if there is one."""
    if not isinstance(root, LocalStore) or not copied(root):
        return None
    names = set(root.folders())

    def refused(copy: Store, minor: str) -> str:
        name = copy.address.rpartition("/")[2]
        why = refusal(copy, minor)
        if not why and name in names and (why := refusal(root.below(name), minor)):
            return why if identify(copy) == identify(root.below(name)) else ""
        return why

    try:
        return find_status(LocalStore(copies_folder(root)), minor, refused).newest_readable
    except NotACheckpointError:
        return None
