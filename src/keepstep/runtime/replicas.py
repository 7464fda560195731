"""What has to be equal on all ranks: DistributedDataParallel by generation, the initial state."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from keepstep.runtime.buffers import buffer_of
from keepstep.runtime.mixed_world import mixed_world
from keepstep.runtime.state import Encoded, State, decode, digest_of

if TYPE_CHECKING:
    from keepstep.runtime.job import Job


class DataParallel(torch.nn.Module):
    """A module wrapped in DistributedDataParallel that is made anew when the members change.

    ``find_unused_parameters`` is on unless you turn it off: with it DistributedDataParallel keeps
    the layout of its buckets, without it it arranges them anew after the first step of each
    generation, which changes the order of floating-point sums, and a run with a replaced rank
    would then differ in the last bits from one without.

    DistributedDataParallel takes the mean over ranks. Where ``Job.share`` gave them shares of
    different size, each gradient is scaled before that, so the result is the gradient of the mean
    loss over the global batch, as ``Job.average_gradients`` has it.
    """

    def __init__(self, module: torch.nn.Module, job: Job, options: dict[str, Any]) -> None:
        """Use ``Job.data_parallel`` instead."""
        super().__init__()
        self.module = module
        self._job = job
        self._options = {"find_unused_parameters": True, **options}
        self._wrapped: list[torch.nn.parallel.DistributedDataParallel] = []  # hidden from Module
        self._scaling: list[Any] = []  # handles of hooks, while shares differ

    def rebuild(self) -> None:
        """Wrap the module for the present generation. Every rank must do it together."""
        self._wrapped.clear()
        devices = [self._job.device.index] if self._job.device.type == "cuda" else None
        self._wrapped.append(
            torch.nn.parallel.DistributedDataParallel(
                self.module, device_ids=devices, init_sync=False, **self._options
            )
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapped module's forward."""
        if not self._wrapped:
            raise RuntimeError(
                "this module is wrapped when Job.train begins; call it inside the step, or call "
                "the module itself"
            )
        self._scale_gradients(wanted=self._job.share_weight != 1.0)
        result = self._wrapped[0](*args, **kwargs)
        self._job.note_entry()
        return result

    def _scale_gradients(self, *, wanted: bool) -> None:
        if wanted and not self._scaling:
            parameters = [each for each in self.module.parameters() if each.requires_grad]
            self._scaling = [each.register_hook(self._scaled) for each in parameters]
        elif not wanted:
            for handle in self._scaling:
                handle.remove()
            self._scaling.clear()

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self._job.share_weight


def compare_ranks(start: int) -> None:
    """Check that all ranks begin with one step, and say so if their PyTorch differs.

    Raises:
        RuntimeError: they found different checkpoints.
    """
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (start, torch.__version__))
    steps, versions = ([each[place] for each in found] for place in (0, 1))
    if len(set(steps)) > 1:
        raise RuntimeError(
            f"ranks found checkpoints of different steps ({', '.join(map(str, steps))}, in order "
            "of rank): is it one folder that all hosts share?"
        )
    if len(set(versions)) > 1 and dist.get_rank() == 0:
        print(f"keepstep: {mixed_world(sorted(set(versions)))}", file=sys.stderr, flush=True)


def take_state_of_rank_zero(state: State, device: torch.device) -> None:
    """Give every rank the replicated state of rank 0, if theirs is not equal already."""
    encoded = state.encode_replicated()
    manifest = encoded.manifest()
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest_of(manifest))
    if len(set(digests)) == 1:
        return
    received: list[Any] = [(encoded.tree, [(t.shape, t.dtype) for t in encoded.tensors])]
    dist.broadcast_object_list(received, src=0)
    tree, kinds = received[0]
    tensors = (
        encoded.tensors
        if dist.get_rank() == 0
        else [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
    )
    for tensor in tensors:
        _broadcast(tensor, device)
    state.load_replicated(decode(tree, tensors))


def _broadcast(tensor: torch.Tensor, device: torch.device) -> None:
    data = torch.frombuffer(bytearray(buffer_of(tensor)), dtype=torch.uint8).to(device)
    if data.numel():
        dist.broadcast(data, src=0)
        buffer_of(tensor)[:] = buffer_of(data.cpu())


def payload_parts(encoded: Encoded, manifest: bytes) -> list[bytes | memoryview]:
    """Return a replicated state as one file: length of the manifest, manifest, tensors."""
    head = len(manifest).to_bytes(8, "big")
    return [head, manifest, *(buffer_of(tensor) for tensor in encoded.tensors)]
