"""Incident folders: one fault with all its evidence, written by a run and read by `explain`."""
