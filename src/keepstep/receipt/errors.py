"""What can be wrong with a receipt or with a key."""

from __future__ import annotations


class ReceiptError(Exception):
    """A receipt that proves nothing; the text says why."""


class NotAReceiptError(ReceiptError):
    """It is not, byte for byte, what this program writes."""


class BadSignatureError(ReceiptError):
    """What it says is not what was signed."""


class UntrustedKeyError(ReceiptError):
    """The key that it names is not one that is trusted here."""


class KeyFileError(ReceiptError):
    """A file that was to hold a key and cannot be used as one."""
