"""From dumps, stacks and exits to a verdict. Pure: no file, no clock, no process."""
