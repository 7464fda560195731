"""What a recovery of a large job costs the coordinator; see ``__main__``."""
