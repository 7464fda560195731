"""The report of a rehearsal: one page, its JSON, and the same on a terminal."""
