"""Receipts: the signed records of what ran and what was seen."""
