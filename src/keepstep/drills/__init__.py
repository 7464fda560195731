"""Rehearsed faults, each with a proof that the fault really happened."""
