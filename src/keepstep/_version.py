"""The version, in one place: the package, its metadata and the command read it here."""

__version__ = "0.1.0.dev0"
