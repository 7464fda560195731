"""What can be wrong with a checkpoint or with what was asked of it."""

from __future__ import annotations


class CheckpointError(Exception):
    """The checkpoint cannot be used as asked; the text says what was seen and what to do."""


class NotACheckpointError(CheckpointError):
    """There is nothing at the address that PyTorch's distributed checkpoint could load."""


class NoSuchFolderError(NotACheckpointError):
    """There is no such folder: what was asked for was mistyped."""


class UnsafeMetadataError(CheckpointError):
    """The metadata is damaged, or holds what no checkpoint needs: it was not read further."""


class CannotConvertError(CheckpointError):
    """The checkpoint cannot be made readable for the version asked for."""
