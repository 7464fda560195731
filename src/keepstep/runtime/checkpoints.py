"""Checkpoints of ``Job.train``: when one is saved, by whom, and what becomes of it.

The training thread copies (``saving.take_share``); a thread of its own writes. Ranks agree without
talking: all save the same steps, and rank 0 opens a save by making its folder. While a save is
under way the next one that falls due is left out: training never waits for the disk, but at its end
for the last checkpoint. A rank that is lost before it has written its part takes the save with it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from keepstep.checkpoint.eras import minor_of
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.prune import prune
from keepstep.checkpoint.readers import GLOBAL, find_readers
from keepstep.checkpoint.store import LocalStore
from keepstep.runtime import saving
from keepstep.runtime import step_folders as folders
from keepstep.runtime.checkpoint_plan import Checkpoint
from keepstep.runtime.resuming import CannotResumeError, resume
from keepstep.runtime.saving import GivenUpError, Share, Stage
from keepstep.runtime.state import State

OPENED_WITHIN = 60.0  # seconds until a folder that rank 0 makes must be seen by all
WRITTEN_WITHIN = 1800.0  # seconds that rank 0 waits for the others when its own part is written
LOOK = 0.05  # seconds between two looks for a file of another rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a save ended. ``why``: why there is no checkpoint, "" if there is."""

    step: int
    folder: str
    seconds: float  # from the copy to the final name
    held: float  # of them, during which the training thread was held
    why: str = ""


@dataclass(slots=True)
class _Save:
    """A save of this rank under way."""

    share: Share
    members: list[int]
    held: float
    began: float
    opened: bool = False  # rank 0 has made the folder: from now on this rank writes
    stop: str = ""  # why it must end without a checkpoint
    lost: set[int] = field(default_factory=set)  # ranks that cannot finish their parts any more


class Checkpoints:
    """The checkpoints of one job as one of its processes sees them."""

    def __init__(
        self, plan: Checkpoint, state: State, steps: int, tell: Callable[[Outcome], None]
    ) -> None:
        """``tell`` is called by a side thread of rank 0 at the end of each save."""
        self._plan, self._state, self._steps, self._tell = plan, state, steps, tell
        self._root = Path(plan.path).absolute()
        self._stage = Stage()
        self._lock = threading.Lock()
        self._save: _Save | None = None
        self._generation, self._rank, self._members = 0, 0, [0]
        self._declined: list[Path] = []  # folders of saves that this rank has left out
        self._failed = ""

    def resume(self, rank: int) -> int:
        """Load the newest usable checkpoint; return how many steps it has committed.

        Raises:
            CannotResumeError: there are checkpoints, and none can be used.
            OSError: the folder cannot be made.
        """
        if rank == 0:
            self._root.mkdir(parents=True, exist_ok=True)  # better refused now than at a save
        step = resume(self._state, self._root, rank, _say if rank == 0 else lambda _: None)
        if step > self._steps:
            raise CannotResumeError(
                f"{self._root}: its newest checkpoint is of step {step}, train(steps={self._steps})"
                " ends before; ask for more steps, or give Checkpoint another folder"
            )
        if step and rank == 0:
            _say(f"going on from {folders.step_folder(self._root, step)}")
        return step

    def begin(self, generation: int, rank: int, members: list[int], start: int) -> None:
        """Take up a generation: what is under way and cannot end is given up.

        Args:
            generation: its number; no two have the same.
            rank: of this process.
            members: who has each rank, by numbers that are never used again.
            start: the step count from which it goes on.
        """
        with self._lock:
            save = self._save
            if save is not None and save.members != members:
                save.lost |= {r for r, wid in enumerate(save.members) if wid not in members}
            if save is not None and save.share.step > start:
                save.stop = f"the job went back to step {start}"
            self._generation, self._rank, self._members = generation, rank, list(members)
            if rank == 0:
                self._root.mkdir(parents=True, exist_ok=True)
                for aside in folders.set_aside(self._root, after=start):
                    _say(f"the job goes on from step {start}; what was saved later is now {aside}")
        if rank == 0:
            self._clean()

    def committed(self, count: int, record: Callable[[], bytes]) -> None:
        """Save, if it is due, the state after ``count`` steps; ``record`` returns this rank's own.

        To be called in the training thread, on every rank.
        """
        if count % self._plan.every == 0 and count != self._steps:
            self._start(count, record)

    def finish(self, record: Callable[[], bytes], check: Callable[[], None]) -> None:
        """Save the last step and wait until this rank has done its part, rank 0 for all.

        ``check`` is called while waiting; what it raises ends the waiting.

        Raises:
            OSError: rank 0 could not save it.
        """
        folder = folders.saving_folder(self._root, self._steps, self._generation)
        if self._exists(self._steps):
            return self._wait(check)
        if self._rank == 0:
            folder.mkdir(parents=True, exist_ok=True)  # others need not wait for an earlier save
        self._drop_unopened()
        self._wait(check)
        self._failed = ""
        self._start(self._steps, record)
        self._wait(check)
        if self._failed and self._rank == 0:
            raise OSError(f"the last checkpoint could not be saved: {self._failed}")
        return None

    def _exists(self, step: int) -> bool:
        return (folders.step_folder(self._root, step) / GLOBAL).exists()

    def _wait(self, check: Callable[[], None]) -> None:
        while self._save is not None:
            check()
            time.sleep(LOOK)

    # --- the training thread ----------------------------------------------------------------------

    def _start(self, count: int, record: Callable[[], bytes]) -> None:
        began = time.monotonic()
        folder = folders.saving_folder(self._root, count, self._generation)
        self._drop_unopened()
        with self._lock:
            busy = self._save
            if busy is not None and self._rank != 0:
                self._declined.append(folder)
        if busy is not None:
            if self._rank == 0:
                self._tell(self._outcome(count, began, 0.0, _busy(busy.share.step)))
            return
        try:
            share = saving.take_share(
                self._state.replicated_values(),
                record(),
                self._stage,
                step=count,
                rank=self._rank,
                world_size=len(self._members),
                folder=folder,
            )
        except Exception as error:  # training goes on: what is lost is this checkpoint
            self._fail(count, began, error)
            return
        save = _Save(share, self._members, time.monotonic() - began, began)
        self._save = save
        threading.Thread(
            target=self._run, args=(save,), name="keepstep-checkpoint", daemon=True
        ).start()

    def _drop_unopened(self) -> None:
        """Forget a save that rank 0 has not opened: it was left out, most likely."""
        save = self._save
        if save is None or save.share.rank == 0 or save.share.folder.exists():
            return
        with self._lock:
            if not save.opened:
                save.stop = f"had begun with a later step before step {save.share.step} was opened"
                self._save = None

    def _fail(self, count: int, began: float, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        folder = folders.saving_folder(self._root, count, self._generation)
        if self._rank == 0:
            self._failed = why
            self._tell(self._outcome(count, began, 0.0, why))
        else:
            _try_to_say(folder, self._rank, why)

    def _outcome(self, count: int, began: float, held: float, why: str = "") -> Outcome:
        folder = str(folders.step_folder(self._root, count))
        seconds = time.monotonic() - began
        return Outcome(step=count, folder=folder, seconds=seconds, held=held, why=why)

    # --- the thread of one save -------------------------------------------------------------------

    def _run(self, save: _Save) -> None:
        why = ""
        try:
            with torch.no_grad():
                self._write(save)
        except GivenUpError as error:
            why = str(error)
        except Exception as error:  # a full disk, say
            why = f"{type(error).__name__}: {error}"
        if save.share.rank != 0:
            if why:
                _try_to_say(save.share.folder, save.share.rank, why)
        else:
            self._failed = why
            self._tell(self._outcome(save.share.step, save.began, save.held, why))
            if why:
                self._clean(finished=save)
        with self._lock:
            if self._save is save:
                self._save = None
        self._decline(f"was still writing step {save.share.step}")

    def _write(self, save: _Save) -> None:
        share = save.share
        if share.rank == 0:
            share.folder.mkdir(parents=True, exist_ok=True)
            save.opened = True
            self._clean()
            saving.write_share(share)
            self._gather(save)
            return
        deadline = time.monotonic() + OPENED_WITHIN
        while not share.folder.exists():
            if time.monotonic() > deadline or self._exists(share.step):
                return  # rank 0 has left it out, or it is there already
            time.sleep(LOOK)
        with self._lock:
            save.opened = not save.stop
        if not save.opened:
            raise GivenUpError(save.stop)
        (share.folder / f"writing-{share.rank}").touch()
        saving.write_share(share)

    def _gather(self, save: _Save) -> None:
        """Wait for the parts of all ranks, then make them a checkpoint. Only in rank 0."""
        share = save.share
        final = folders.step_folder(self._root, share.step)
        began = time.monotonic()
        missing = set(range(share.world_size))
        while missing := {
            rank for rank in missing if not saving.part_path(share.folder, rank).exists()
        }:
            if save.stop or missing & save.lost:
                lost = ", ".join(map(str, sorted(missing & save.lost)))
                raise GivenUpError(save.stop or f"rank {lost} was lost before it had written")
            silent = [r for r in missing if not (share.folder / f"writing-{r}").exists()]
            waited = time.monotonic() - began
            if waited > WRITTEN_WITHIN:
                raise GivenUpError(f"rank {min(missing)} was not ready after {waited:.0f} s")
            if silent and waited > OPENED_WITHIN:
                raise GivenUpError(
                    f"rank {silent[0]} wrote nothing below {self._root} within {OPENED_WITHIN:.0f} "
                    "s: is it one folder that all hosts share?"
                )
            time.sleep(LOOK)
        for rank in range(1, share.world_size):
            (share.folder / f"writing-{rank}").unlink(missing_ok=True)
        plan = self._plan
        saving.complete(share, final, plan.readable_by, old_form=plan.old_form)
        if plan.readable_by is not None:
            readers = find_readers(LocalStore(share.folder)).readers
            if not readers[minor_of(plan.readable_by)]:
                raise GivenUpError(f"what was written cannot be read by {plan.readable_by}")
        LocalStore(share.folder).sync()
        with self._lock:  # not while the job goes back to an earlier step
            if save.stop:
                raise GivenUpError(save.stop)
            share.folder.rename(final)
        LocalStore(self._root).sync()
        if plan.keep is not None:
            self._prune(plan.keep)

    def _prune(self, keep: int) -> None:
        try:
            prune(LocalStore(self._root), keep)
        except (CheckpointError, OSError) as error:  # the new checkpoint is there all the same
            _say(f"no old checkpoint was removed: {error}")

    def _decline(self, why: str) -> None:
        """Tell rank 0 that it need not wait for the part of a save that this rank left out."""
        with self._lock:
            declined, self._declined = self._declined, []
        for folder in declined:
            _try_to_say(folder, self._rank, why)

    def _clean(self, finished: _Save | None = None) -> None:
        """Remove what cut-off saves have left, but nothing that may still be under way."""
        under_way = self._save if self._save is not finished else None
        last = folders.saving_folder(self._root, self._steps, self._generation)
        but = {last.name}
        if under_way is not None:
            but.add(under_way.share.folder.name)
        folders.remove_cut_off(self._root, but=but)


def _busy(step: int) -> str:
    return (
        f"step {step} was still being written; save less often (Checkpoint(every=...)) or to a "
        "faster disk"
    )


def _try_to_say(folder: Path, rank: int, why: str) -> None:
    if folder.exists():
        try:
            saving.say(folder, rank, {"failed": why})
        except OSError as error:
            _say(f"rank {rank} can write nothing into {folder}: {error}")


def _say(text: str) -> None:
    print(f"keepstep: {text}", file=sys.stderr, flush=True)
