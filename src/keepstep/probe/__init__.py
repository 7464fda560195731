"""Measures an unchanged training script from inside: standard library and torch only."""
