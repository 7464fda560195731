"""Checkpoints that older versions can read, written by PyTorch 2.15.

The only difference is the state of TensorProperties: six fields in 2.15, five before. How a class
is pickled is said with ``copyreg``, as Python offers it; torch itself is not changed, and the data
files are the same. Where the fields are five, all of this changes nothing.
"""

from __future__ import annotations

import copyreg
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as ShardProperties
from torch.distributed.checkpoint import FileSystemWriter, StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties
from torch.distributed.checkpoint.storage import WriteResult

_OLD_FIELDS = 5  # of TensorProperties, up to PyTorch 2.14
_PROTOCOL = 2  # the first that builds an object as all later ones do


class _Scope(threading.local):
    """Whether this thread is writing for an older version."""

    active = False


_scope = _Scope()
_everywhere = False


def writer(target: str | os.PathLike[str] | StorageWriter, **options: Any) -> StorageWriter:
    """Return a storage writer whose checkpoints PyTorch 2.4 to 2.14 can read, and 2.15 as well.

    ``dcp.save(state, storage_writer=writer("run/step-100"))``. It works in ``dcp.save`` and
    ``dcp.async_save``, in a thread as in a process.

    Args:
        target: Where to write: a folder, an address that fsspec understands, or a writer of your
            own, which is used as it is but for the metadata that it writes in ``finish``.
        options: For the writer that is made, such as ``thread_count``.

    Raises:
        TypeError: Options for a writer that exists already.
    """
    if isinstance(target, StorageWriter):
        if options:
            raise TypeError(f"the writer exists already: it cannot take {', '.join(options)}")
        made: StorageWriter = target
    elif "://" in os.fspath(target):
        made = _remote().FsspecWriter(target, **options)
    else:
        made = FileSystemWriter(target, **options)
    # On this one object: it keeps its class, which torch looks at, and can still be pickled, which
    # an asynchronous save in a process needs.
    made.finish = partial(_finish, made)  # type: ignore[method-assign]
    return made


def write_old_format(on: bool = True) -> None:
    """Let everything that this process pickles from now on be readable by PyTorch 2.4 to 2.14.

    For trainers whose writers are out of reach. It covers what ``writer`` does not: the plans that
    ranks exchange while saving, so that ranks of 2.14 and 2.15 can save together, and
    ShardedTensors inside of pickled objects. It does not reach the process of an asynchronous save
    (``AsyncCheckpointerType.PROCESS``): use ``writer`` there.

    Args:
        on: False goes back to the form of the installed version.
    """
    global _everywhere
    _everywhere = on


def _remote() -> Any:
    """Return the module for addresses, which is private up to 2.14."""
    home = "torch.distributed.checkpoint."
    try:
        return import_module(home + "fsspec_filesystem")
    except ModuleNotFoundError:
        return import_module(home + "_fsspec_filesystem")


def _finish(made: StorageWriter, metadata: Metadata, results: list[list[WriteResult]]) -> None:
    """Let a writer write its metadata in the old form."""
    with _old_form():
        type(made).finish(made, metadata, results)


@contextmanager
def _old_form() -> Iterator[None]:
    before, _scope.active = _scope.active, True
    try:
        yield
    finally:
        _scope.active = before


def _reduce(properties: Any) -> tuple[Any, ...]:
    """Return what Python returns by itself, but for the number of fields."""
    made_by: Any = object.__reduce_ex__(properties, _PROTOCOL)
    function, arguments, state = made_by[:3]
    old = _everywhere or _scope.active
    return function, arguments, state[:_OLD_FIELDS] if old else state


for _kind in (TensorProperties, ShardProperties):
    copyreg.pickle(_kind, _reduce)
