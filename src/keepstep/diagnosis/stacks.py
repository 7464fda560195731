"""What a stack says: where the user's code is, and what kind of wait that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePosixPath

from keepstep.recorder.model import Frame

LIBRARY = ("/torch/", "/site-packages/", "/dist-packages/", "/lib/python3")


class Waiting(StrEnum):
    """What a main thread is doing, as far as its stack tells."""

    DATA = "the data loader"
    CHECKPOINT = "checkpoint input or output"
    TEARDOWN = "the destruction of a process group"
    COLLECTION = "garbage collection"
    COMPILE = "compilation"
    KERNEL = "the device (a kernel launch or a synchronisation)"
    COLLECTIVE = "a collective"
    SLEEP = "sleep"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Words in a frame's file or function that tell a kind of wait."""

    waiting: Waiting
    files: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


# In the order of trust: a data loader or a checkpoint may itself wait in a queue, a lock or a
# barrier, and says more than those.
_MARKS = (
    _Mark(Waiting.TEARDOWN, functions=("destroy_process_group", "_shutdown_backend")),
    _Mark(
        Waiting.CHECKPOINT,
        files=("checkpoint", "torch/serialization"),
        functions=("save_checkpoint", "load_checkpoint", "async_save", "torch_save"),
    ),
    _Mark(
        Waiting.DATA,
        files=("dataloader", "data_loader", "torch/utils/data", "dataset"),
        functions=("_next_data", "_try_get_data", "next_batch"),
    ),
    _Mark(Waiting.COLLECTION, functions=("gc.collect", "gc_collect")),
    _Mark(Waiting.COMPILE, files=("torch/_inductor", "torch/_dynamo", "triton/compiler")),
    _Mark(
        Waiting.COLLECTIVE,
        files=("torch/distributed/distributed_c10d",),
        functions=("all_reduce", "all_gather", "barrier", "broadcast", "reduce_scatter"),
    ),
    _Mark(
        Waiting.KERNEL,
        files=("torch/cuda", "torch/accelerator"),
        functions=("synchronize", "cudaStreamSynchronize", "cudaLaunchKernel", "item"),
    ),
    _Mark(Waiting.SLEEP, functions=("sleep", "time.sleep")),
)


def kind_of_wait(stack: Iterable[Frame]) -> Waiting:
    """Return what a thread with this stack waits for."""
    frames = tuple(stack)
    for mark in _MARKS:
        for frame in frames:
            if frame.function in mark.functions or any(part in frame.file for part in mark.files):
                return mark.waiting
    return Waiting.UNKNOWN


@lru_cache(maxsize=65536)
def user_frames(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames outside torch and other libraries; all of them if there are no others."""
    own = tuple(f for f in stack if not any(part in f.file for part in LIBRARY))
    return own or stack


def line(frame: Frame) -> str:
    """One frame as a person reads it: ``train.py:31 step``."""
    return f"{PurePosixPath(frame.file).name}:{frame.line} {frame.function}"


def call_site(stack: tuple[Frame, ...], other: tuple[Frame, ...] = ()) -> str:
    """Name the innermost line of the user's code, or the first in which it differs from another."""
    frames = user_frames(stack)
    if not frames:
        return ""
    for frame, theirs in zip(frames, user_frames(other), strict=False):
        if frame != theirs:
            return line(frame)
    return line(frames[0])
