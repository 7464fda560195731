"""Stacks: the named environments in which jobs run, and what they really contain."""
