"""A file of results: written whole after each trial, so that a crash loses nothing."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Records of trials, and what they were made with.

    Attributes:
        made_with: versions, machine and settings; results made with others do not mix.
    """

    path: Path
    made_with: Mapping[str, Any]
    records: list[dict[str, Any]]

    @classmethod
    def open(cls, path: Path, made_with: Mapping[str, Any]) -> Results:
        """Return the results in ``path`` to be continued; empty ones where there is no such file.

        Raises:
            ValueError: they were made with something else.
        """
        if not path.exists():
            return cls(path=path, made_with=made_with, records=[])
        found = json.loads(path.read_text())
        if found["made_with"] != made_with:
            raise ValueError(
                f"{path} was made with {found['made_with']}, this run with {dict(made_with)}; "
                "choose another file with --out"
            )
        return cls(path=path, made_with=made_with, records=found["records"])

    def add(self, record: dict[str, Any]) -> None:
        """Add a record and write all, whole or not at all."""
        self.records.append(record)
        text = json.dumps({"made_with": self.made_with, "records": self.records}, indent=1)
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text(text + "\n")
        temporary.rename(self.path)


def machine() -> dict[str, Any]:
    """Return what numbers depend on besides settings."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def say(text: str) -> None:
    """Tell about progress; standard output is for the report alone."""
    print(text, file=sys.stderr, flush=True)
