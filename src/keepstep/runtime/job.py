"""The Python API of a training script: ``join`` and ``Job``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from keepstep.runtime.checkpoint_plan import Checkpoint
from keepstep.runtime.config import WorkerConfig
from keepstep.runtime.group import GradientAverager, Groups
from keepstep.runtime.progress import Phase, Slot
from keepstep.runtime.replicas import DataParallel, compare_ranks, take_state_of_rank_zero
from keepstep.runtime.sampler import Sampler
from keepstep.runtime.state import State
from keepstep.runtime.worker import Supervision

if TYPE_CHECKING:
    from keepstep.runtime.checkpoints import Checkpoints, Outcome

Step = Callable[[int], None]


_joined: list[bool] = []


def join() -> Job:
    """Take this process into the job and return it.

    Under ``keepstep run`` the process gets its rank when ``Job.train`` is called; a spare waits
    there until one is free. Under torchrun, or started alone, the job runs unsupervised and says
    so on standard error.

    Raises:
        RuntimeError: this process has joined already.
        SystemExit: this PyTorch cannot change the members of a process group.
    """
    if _joined:
        raise RuntimeError(
            "keepstep.join() was called a second time: a process joins one job, once"
        )
    _joined.append(True)
    config = WorkerConfig.from_environment()
    if config is None:
        return Job(_join_unsupervised(), None)
    if not hasattr(dist, "_reconfigure"):
        sys.stderr.write(
            f"keepstep: torch {torch.__version__} cannot change the members of a process group; "
            "`keepstep run` needs torch 2.15 or newer. The same script runs unsupervised with: "
            f"torchrun --nproc-per-node {config.world_size} {sys.argv[0]}\n"
        )
        sys.exit(2)
    supervision = Supervision(config)
    return Job(supervision.groups, supervision)


def _join_unsupervised() -> Groups:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    bound = device if device.type == "cuda" else None
    if "RANK" in os.environ:
        dist.init_process_group(backend, device_id=bound)
    else:
        store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=bound)
    if dist.get_rank() == 0:
        sys.stderr.write(
            "keepstep: unsupervised: a lost rank ends this job. Start it with `keepstep run` to "
            "survive one.\n"
        )
    return Groups(backend=backend, device=device, store=None, wid=dist.get_rank())


class Job:
    """A training job as one of its processes sees it; made by ``join``.

    Attributes:
        device: where this process computes.
        supervised: whether ``keepstep run`` watches over it.
    """

    def __init__(self, groups: Groups, supervision: Supervision | None) -> None:
        """Use ``join`` instead."""
        self._groups, self._supervision = groups, supervision
        self._averager = GradientAverager()
        self.share_weight = 1.0  # samples of this rank in a step over the mean of all ranks
        self._parallel: list[DataParallel] = []
        self._callbacks: list[Callable[[], None]] = []
        self._has_trained = False
        self.device = groups.device
        self.supervised = supervision is not None

    @property
    def rank(self) -> int:
        """Rank in the current generation; before ``train``, a spare's lies beyond the ranks."""
        return dist.get_rank() if self.generation else int(os.environ["RANK"])

    @property
    def world_size(self) -> int:
        """Number of ranks of the current generation."""
        if self._supervision is not None and not self.generation:
            return self._supervision.config.world_size
        return dist.get_world_size()

    @property
    def generation(self) -> int:
        """Number of the current generation; 0 for a process that has no rank yet."""
        return self._supervision.entered if self._supervision is not None else 1

    @property
    def local_rank(self) -> int:
        """Place of this process on its host."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    # --- parts of a step -----------------------------------------------------------------------

    def share(self, sampler: Sampler, step: int) -> list[int]:
        """Return the numbers of the samples that this rank uses in ``step``.

        Together the ranks use each sample of the step's global batch exactly once, whatever their
        number. The share is also noted, so that the run's summary can prove it.

        Raises:
            RuntimeError: this process has no rank: a spare, outside the step.
        """
        if self.rank >= self.world_size:
            raise RuntimeError(
                f"Job.share: this process is a spare (rank {self.rank} of {self.world_size}) and "
                "has no share of a step yet. Call it in the step, or in load_state_dict of a "
                "per-rank object, where the rank is known"
            )
        positions = sampler.positions(step, self.rank, self.world_size)
        self.share_weight = len(positions) * self.world_size / sampler.global_batch
        if self._supervision is not None:
            self._supervision.note_samples(step, positions, sampler.global_batch)
        return sampler.share(step, self.rank, self.world_size)

    def average_gradients(self, *modules: torch.nn.Module) -> None:
        """Replace the gradients of ``modules`` by their mean over all ranks.

        Ranks that got shares of different size from ``share`` count accordingly, so the result is
        the gradient of the mean loss over the global batch.
        """
        parameters = [parameter for module in modules for parameter in module.parameters()]
        if self._supervision is None:
            self._averager.average(parameters, self.share_weight)
            return
        if self._supervision.has_noted_entry:
            # What an earlier collective of the step left holds no more: it must not be found
            # should this rank die while the others complete the step.
            with self.collective():
                self._averager.average(parameters, self.share_weight)
            return
        # The processor is free while others are waited for; what is left of this rank then comes a
        # tenth of a millisecond after it has entered. Should it die in between, its state is not
        # known, and the job goes back to a snapshot.
        self._supervision.enter_collective()
        try:
            self._averager.average(parameters, self.share_weight, self._supervision.note_entry)
            self._supervision.leave_collective()
        except Exception as error:
            self._supervision.note_failure(error)
            raise

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Mark a communication of your own as such.

        Time in it counts as waiting for others, not as this rank's own; and the per-rank state at
        its beginning stands in for a rank that is lost before the step's end. ``average_gradients``
        does this itself.
        """
        if self._supervision is None:
            yield
            return
        self._supervision.note_entry()
        self._supervision.enter_collective()
        try:
            yield
            self._supervision.leave_collective()
        except Exception as error:
            self._supervision.note_failure(error)
            raise

    def note_entry(self) -> None:
        """Leave this rank's per-rank state with its agent, as ``collective`` does on entry."""
        if self._supervision is not None:
            self._supervision.note_entry()

    def data_parallel(self, module: torch.nn.Module, **options: Any) -> DataParallel:
        """Return ``module`` wrapped in DistributedDataParallel, anew in each generation.

        Call the result in place of the module; keep ``module`` itself in ``State``. ``options`` go
        to ``torch.nn.parallel.DistributedDataParallel``.
        """
        wrapped = DataParallel(module, self, options)
        self._parallel.append(wrapped)
        return wrapped

    def new_group(self, ranks: Sequence[int]) -> Any:
        """Return a process group over ``ranks`` that survives replacements.

        Every process calls it in the same order, spares included, before ``train``; collectives on
        it are possible inside the step. Ranks that do not exist in a shrunken job are left out.
        """
        if self._supervision is None:
            return dist.new_group(list(ranks))
        return self._groups.new_group(ranks)

    def on_generation(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called in every process of each new generation, before its first step.

        For what depends on the members: a device mesh, for example. May be used as a decorator.
        """
        self._callbacks.append(callback)
        return callback

    @contextlib.contextmanager
    def expect(self, seconds: float) -> Iterator[None]:
        """Announce a long operation (evaluation, checkpoint) that is no stall for ``seconds``."""
        if self._supervision is None:
            yield
            return
        progress = self._supervision.progress
        progress[Slot.ALLOWED_UNTIL] = time.monotonic_ns() + int(seconds * 1e9)
        try:
            yield
        finally:
            progress[Slot.ALLOWED_UNTIL] = 0
            progress.enter(Phase(progress[Slot.PHASE]))

    # --- the loop -----------------------------------------------------------------------------

    def train(
        self,
        step: Step,
        state: State,
        steps: int,
        warm_up: Callable[[], None] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Run ``step(0)`` to ``step(steps - 1)`` so that each takes effect exactly once.

        A step may be repeated: when it raises, or when a rank is lost during it. It must change
        nothing but what ``state`` names. Returns when every rank has committed the last step; a
        spare that was never needed ends its process here.

        ``warm_up`` is called once in every process, before it gets its rank: one forward and
        backward on made-up data, without communication, saves a replacement the cost of its first
        step. It must leave the replicated state as it is.

        With ``checkpoint`` the state is saved while the training goes on, and the job begins with
        the newest of its checkpoints that is complete and undamaged.

        Raises:
            ValueError: ``steps`` is negative.
            RuntimeError: it was called before.
            TypeError: ``checkpoint`` is no ``keepstep.Checkpoint``.
            CannotResumeError: there are checkpoints, and the job cannot go on from them.
            Exception: unsupervised, whatever the step raises.
        """
        if self._has_trained:
            raise RuntimeError(
                "Job.train was called a second time: a job is trained once. Run both parts in one "
                "call, with the number of steps of both"
            )
        self._has_trained = True
        if steps < 0:
            raise ValueError(f"train(steps={steps}): a number of steps is wanted")
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"train(checkpoint={checkpoint!r}): keepstep.Checkpoint(path, every=N) is wanted"
            )
        if self._supervision is None:
            self._train_unsupervised(step, state, steps, checkpoint)
        else:
            begin = self._begin_generation
            self._supervision.train(step, state, steps, begin, warm_up, checkpoint)

    def _begin_generation(self) -> None:
        for wrapped in self._parallel:
            wrapped.rebuild()
        for callback in self._callbacks:
            callback()

    def _train_unsupervised(
        self, step: Step, state: State, steps: int, checkpoint: Checkpoint | None
    ) -> None:
        rank, members = self.rank, list(range(self.world_size))
        saved = _checkpoints(checkpoint, state, steps)
        start = saved.resume(rank) if saved else 0
        compare_ranks(start)
        take_state_of_rank_zero(state, self.device)
        if saved:
            attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
            saved.begin(attempt + 1, rank, members, start)
        self._begin_generation()
        for number in range(start, steps):
            step(number)
            if saved:
                saved.committed(number + 1, state.capture_rank)
        if saved:
            saved.finish(state.capture_rank, lambda: None)


def _checkpoints(plan: Checkpoint | None, state: State, steps: int) -> Checkpoints | None:
    if plan is None:
        return None
    from keepstep.runtime.checkpoints import Checkpoints  # takes a second to import

    return Checkpoints(plan, state, steps, _print_outcome)


def _print_outcome(outcome: Outcome) -> None:
    if outcome.why:
        sys.stderr.write(f"keepstep: no checkpoint of step {outcome.step}: {outcome.why}\n")
