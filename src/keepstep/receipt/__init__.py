"""Receipts: the signed records of what ran and what was seen."""

from keepstep.receipt.errors import ReceiptError
from keepstep.receipt.keys import SigningKey, default_key, trusted_keys
from keepstep.receipt.material import by_rank
from keepstep.receipt.sealed import Receipt, open_receipt, seal
from keepstep.receipt.statement import Kind

__all__ = [
    "Kind",
    "Receipt",
    "ReceiptError",
    "SigningKey",
    "by_rank",
    "default_key",
    "open_receipt",
    "seal",
    "trusted_keys",
]
