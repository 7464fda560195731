"""What can be wrong with a stack or with what was asked of it."""

from __future__ import annotations


class StackError(Exception):
    """The stack cannot be used as asked; the text says what was seen and what to do."""


class UnknownStackError(StackError, ValueError):
    """There is no stack of this name."""


class BadRequestError(StackError, ValueError):
    """What was asked for cannot be meant: a name with a slash, two sources at once."""


class OtherStackError(StackError, ValueError):
    """There is a stack of this name already, and it is another one."""


class NoSpaceError(StackError, OSError):
    """The file system has too little room; nothing was begun."""


class InstallError(StackError, OSError):
    """The installer failed; nothing that could be taken for a stack is left."""


class DamagedStackError(StackError, ValueError):
    """There is a stack of this name, and what says how it was made cannot be read."""
