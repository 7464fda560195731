"""The canary: which jobs run on which stacks, and what may be concluded from what was measured."""
