"""Optimizer steps: how long each took, its loss and gradients, and what the model was given."""

from __future__ import annotations

import functools
import math
import struct
import time
import weakref
from typing import TYPE_CHECKING, Any

from keepstep.probe import digests, memory
from keepstep.probe.record import KEPT, SeenStep, guarded

if TYPE_CHECKING:
    from keepstep.probe.groups import Groups
    from keepstep.probe.plants import Plants
    from keepstep.probe.record import Record


class Steps:
    """Follows the optimizers, the backward passes and the forward calls of the job.

    A step ends when the first optimizer that ever stepped has stepped again; others count into the
    gradient norm. The time that the probe itself takes is left out.
    """

    def __init__(self, record: Record, plants: Plants, groups: Groups) -> None:
        self._record, self._plants, self._groups = record, plants, groups
        self._leading: weakref.ref[Any] | None = None
        self._compiles = False
        self._inside: Any = None  # the outermost module whose forward is running
        self._in_backward = False
        self._for_shapes = False  # a pipeline looks what its stages give, and trains nothing
        self._losses: list[Any] = []
        self._squares = 0.0  # of the gradients since the step before
        self._data = digests.Data()
        self._tokens: list[int] = [0]  # of each of the first steps
        self._began: float | None = None
        self._hooks: list[Any] = []

    def watch(self, torch: Any, _: float = 0.0) -> None:
        """Hook into torch, which has just been imported."""
        from torch.nn.modules import module
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        self._hooks = [
            module.register_module_forward_pre_hook(self._before_forward),
            module.register_module_forward_hook(
                self._after_forward, with_kwargs=True, always_call=True
            ),
        ]
        self._watch_backward(torch)
        self._watch_compile(torch)

    def _watch_backward(self, torch: Any) -> None:
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._record.step_count < KEPT and not self._in_backward:
                with guarded(self._record, "loss"):
                    self._note_loss(tensors)
            self._in_backward = True
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._in_backward = False

        torch.autograd.backward = watched

    def _watch_compile(self, torch: Any) -> None:
        """Notice that the job compiles: what is compiled with hooks is so again without them."""
        compile_ = torch.compile

        @functools.wraps(compile_)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._compiles = True
            return compile_(*args, **kwargs)

        torch.compile = watched

    def watch_pipeline(self, stage: Any, _: float = 0.0) -> None:
        """Hook into ``torch.distributed.pipelining.stage``, which has just been imported.

        Since PyTorch 2.14 it runs each stage once to learn the shapes between them: the first on
        real data, the others on memory that nobody has set. That is no part of any step.
        """
        look = getattr(stage.PipelineStage, "_forward_metadata_inference", None)
        if look is None:
            return  # an older one looks with tensors without data

        @functools.wraps(look)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._for_shapes = True
            try:
                return look(*args, **kwargs)
            finally:
                self._for_shapes = False

        stage.PipelineStage._forward_metadata_inference = watched

    def _note_loss(self, tensors: Any) -> None:
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if getattr(first, "numel", lambda: 0)() == 1:
            self._losses.append(digests.local_part(first).clone())

    def _before_forward(self, module: Any, _: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or self._inside is not None or self._in_backward:
            return
        self._inside = module
        if self._began is None:
            self._begin()

    def _after_forward(self, module: Any, args: Any, kwargs: Any, _: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or self._inside is not module:
            return
        self._inside = None
        if not torch.is_grad_enabled() or self._for_shapes:
            return  # an evaluation, or a look at shapes
        with self._record.own_time(), guarded(self._record, "data"):
            self._note_inputs(args, kwargs)

    def _note_inputs(self, args: Any, kwargs: Any) -> None:
        tensor = digests.first_tensor(args, kwargs)
        if tensor is not None and digests.is_without_data(tensor):
            return  # a look at shapes, as a pipeline takes before its first step
        # What requires a gradient is the result of another stage: counted there.
        if tensor is not None and not tensor.requires_grad:
            self._tokens[-1] += tensor.numel()
        if self._record.step_count < KEPT:
            self._data.add(args, kwargs)

    def _begin(self) -> None:
        self._began, self._record.own_s = time.perf_counter(), 0.0

    def _before_step(self, optimizer: Any, _: Any, __: Any) -> None:
        if self._began is None:
            self._begin()
        with self._record.own_time():
            if self._leading is None or self._leading() is None:
                self._leading = weakref.ref(optimizer)
            if self._is_leading(optimizer):
                if self._record.seed is None:
                    with guarded(self._record, "first step"):
                        self._before_first_step(optimizer)
                self._plants.before_step(self._record.step_count, optimizer)
            if self._record.step_count < KEPT:
                with guarded(self._record, "gradient norm"):
                    self._squares += _squares(optimizer)

    def _is_leading(self, optimizer: Any) -> bool:
        return self._leading is not None and self._leading() is optimizer

    def _before_first_step(self, optimizer: Any) -> None:
        import torch

        record = self._record
        self._groups.bind()
        record.memory_before_first_step = memory.used()
        record.seed = torch.initial_seed()
        digest, elements, read = digests.model(_parameters(optimizer))
        record.model_sha256, record.model_parameters = digest, elements
        record.about["model digest"] = read
        record.write()

    def _after_step(self, optimizer: Any, _: Any, __: Any) -> None:
        if not self._is_leading(optimizer) or self._began is None:
            return
        own = self._record.own_s
        seconds = self._plants.slowed(time.perf_counter() - self._began - own)
        with guarded(self._record, "step"):
            self._note_step(seconds)
        self._begin()

    def _note_step(self, seconds: float) -> None:
        record = self._record
        step = SeenStep(self._plants.scaled(seconds))
        if record.step_count < KEPT:
            if self._losses:
                step.loss = math.fsum(each.item() for each in self._losses) / len(self._losses)
            step.gradient_norm = _single(math.sqrt(self._squares))
            if not all(map(math.isfinite, (step.loss or 0.0, step.gradient_norm))):
                record.about.setdefault("not finite in steps", []).append(record.step_count)
            record.data_sha256 = self._data.hexdigest()
            record.memory_peak = memory.peak(record.memory_peak)
        self._losses, self._squares = [], 0.0
        record.add_step(step)
        self._count_tokens()
        record.write_soon()

    def _count_tokens(self) -> None:
        """Count the inputs; stop looking at forward calls once ten steps had equally many."""
        record = self._record
        if self._hooks:
            record.tokens = sum(self._tokens) or None
            equal = len(set(self._tokens)) == 1
            if record.step_count == KEPT and equal and not self._compiles:
                for hook in self._hooks:
                    hook.remove()
                self._hooks = []
                record.about["tokens"] = "ten steps counted, equal; the others taken as equal"
            else:
                self._tokens.append(0)
        elif record.tokens is not None:
            record.tokens += self._tokens[-1]


def _parameters(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _squares(optimizer: Any) -> float:
    """Return the sum of the squares of this rank's gradients.

    In double precision, so that it depends on the gradients and not on the order in which a
    version of torch adds.
    """
    import torch

    by_device: dict[Any, list[Any]] = {}
    with torch.no_grad():
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                local = digests.local_part(parameter.grad)
                local = local.coalesce().values() if local.is_sparse else local
                norm = torch.linalg.vector_norm(local, dtype=_double(local.dtype))
                by_device.setdefault(norm.device, []).append(norm)
        return sum(float(torch.stack(each).square().sum()) for each in by_device.values())


def _double(dtype: Any) -> Any:
    import torch

    return torch.complex128 if dtype.is_complex else torch.float64


def _single(value: float) -> float:
    """Round to single precision: the last bits of a double are noise of the summation."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf
