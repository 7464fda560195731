"""What has been seen so far, and the file that says so: the JSON of a canary's ``RankRecord``.

The file is written when the probe starts and again as the job goes on, whole each time, so that a
rank that is killed leaves the last state with ``end: running``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEPT = 10  # steps whose loss, gradient norm and data are kept, as canary.record says
_MOST_STEPS = 10_000  # the newest that are kept beside the first ten
_PAUSE = 1.0  # seconds between two writes once the first steps are over


@dataclass(slots=True)
class SeenStep:
    """One optimizer step."""

    seconds: float
    loss: float | None = None
    gradient_norm: float | None = None


@dataclass(slots=True)
class SeenGroup:
    """One process group."""

    name: str
    ranks: list[int]
    asked: str
    classes: dict[str, str]
    device: str | None
    timeout_s: float | None
    options: dict[str, Any]
    create_s: float
    memory_bytes: int | None
    calls: int = 0


@dataclass(slots=True)
class Record:
    """Everything that goes into the file. The fields are those of ``RankRecord``."""

    path: Path
    script: str
    arguments: list[str]
    pid: int = field(default_factory=os.getpid)
    began: float = field(default_factory=time.time)
    end: str = "running"
    exit_code: int | None = None
    error: str = ""
    fingerprint: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)  # of the probe itself: what it planted
    seed: int | None = None
    model_sha256: str | None = None
    model_parameters: int | None = None
    data_sha256: str | None = None
    import_s: float | None = None
    init_s: float | None = None
    first_collective_s: float | None = None
    shutdown_s: float | None = None
    memory_before_first_step: int | None = None
    memory_peak: int | None = None
    groups: list[SeenGroup] = field(default_factory=list)
    latencies: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    latency_calls: dict[tuple[str, int], int] = field(default_factory=dict)
    steps: list[SeenStep] = field(default_factory=list)
    step_count: int = 0
    tokens: int | None = None
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    warnings: dict[tuple[str, str], int] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    own_s: float = 0.0  # that the probe itself took since the last step ended
    _written: float = 0.0

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Count what happens inside as the probe's own time, not as the job's."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.own_s += time.perf_counter() - began

    def add_step(self, step: SeenStep) -> None:
        """Add a step; of a long job the first ten and the newest are kept."""
        self.step_count += 1
        self.steps.append(step)
        if len(self.steps) > KEPT + _MOST_STEPS:
            del self.steps[KEPT]

    def add_latency(self, operation: str, size: int, seconds: float, most: int = 256) -> None:
        """Add one call; the first ``most`` of an operation and size decide their median."""
        key = (operation, size)
        self.latency_calls[key] = self.latency_calls.get(key, 0) + 1
        seen = self.latencies.setdefault(key, [])
        if len(seen) < most:
            seen.append(seconds)

    def add_warning(self, category: str, text: str) -> None:
        """Count a warning whose text is already normal."""
        key = (category, text)
        self.warnings[key] = self.warnings.get(key, 0) + 1

    def write_soon(self) -> None:
        """Write unless it was written a moment ago; the first steps are always written."""
        if self.step_count <= KEPT or time.monotonic() - self._written > _PAUSE:
            self.write()

    def write(self, *, final: bool = False) -> None:
        """Write the file whole: under another name, then in its place.

        Args:
            final: Also make sure that it is on the disk, which takes milliseconds.
        """
        if os.getpid() != self.pid:
            return  # a child that was forked has all this too, and is not the rank
        partial = self.path.with_name(f".{self.path.name}.{self.pid}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.to_json())  # ten times as fast as to dump into the file
            with open(partial, "w", encoding="utf-8") as file:
                file.write(text)
                if final:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(partial, self.path)
        except OSError as error:  # the job is not to suffer from it; the missing file tells
            self.about["not written"] = str(error)
        self._written = time.monotonic()

    def to_json(self) -> dict[str, Any]:
        """Return the fields of ``RankRecord``."""
        return {
            "format": 1,
            "rank": _number("RANK", 0),
            "local_rank": _number("LOCAL_RANK", 0),
            "world_size": _number("WORLD_SIZE", 1),
            "host": os.uname().nodename,
            "pid": self.pid,
            "end": self.end,
            "exit_code": self.exit_code,
            "error": self.error,
            "fingerprint": {**self.fingerprint, "probe": self.about},
            "script_sha256": _digest_of(self.script),
            "arguments": self.arguments,
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            "groups": [
                {name: getattr(group, name) for name in group.__slots__} for group in self.groups
            ],
            "latencies": [
                {
                    "operation": operation,
                    "bytes": size,
                    "median_s": median(seen),
                    "calls": self.latency_calls[operation, size],
                }
                for (operation, size), seen in self.latencies.items()
            ],
            "steps": [
                {
                    "seconds": step.seconds,
                    "loss": _finite(step.loss),
                    "gradient_norm": _finite(step.gradient_norm),
                }
                for step in self.steps
            ],
            "warnings": [
                {"category": category, "text": text, "times": times}
                for (category, text), times in self.warnings.items()
            ],
        }


_AS_THEY_ARE = (
    *("seed", "model_sha256", "model_parameters", "data_sha256", "import_s", "init_s"),
    *("first_collective_s", "shutdown_s", "memory_before_first_step", "memory_peak", "tokens"),
    *("checkpoints", "artifacts", "left_behind"),
)


def median(values: list[float]) -> float:
    """Return the middle value; of an even number the mean of the middle two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _finite(value: float | None) -> float | None:
    # JSON has no infinity; a loss of one is no number to compare either, and about says so.
    return value if value is not None and math.isfinite(value) else None


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise


_digests: dict[str, str] = {}


def _digest_of(script: str) -> str:
    if script not in _digests:
        try:
            _digests[script] = hashlib.sha256(Path(script).read_bytes()).hexdigest()
        except OSError:
            _digests[script] = ""
    return _digests[script]


@contextmanager
def guarded(record: Record, what: str) -> Iterator[None]:
    """Note an error of the probe instead of raising it inside the job."""
    try:
        yield
    except Exception:
        note_failure(record, what)


def note_failure(record: Record, what: str) -> None:
    """Note that a part of the probe could not do its work; the job goes on."""
    kind, error, _ = sys.exc_info()
    name = kind.__name__ if kind else ""
    record.about.setdefault("failures", {})[what] = f"{name}: {error}"
