"""What the operator of ``keepstep run`` sees: one line a fact, and a summary at the end."""

from __future__ import annotations

from typing import Any, TextIO

_QUIET = {"member_formed", "worker_joined", "worker_ready", "form"}


class RunView:
    """Prints events as lines."""

    def __init__(self, stream: TextIO) -> None:
        """Print to ``stream``."""
        self._stream = stream

    def show(self, fact: dict[str, Any]) -> None:
        """Print one event if it matters to a person."""
        if fact["event"] in _QUIET:
            return
        hidden = ("time", "event")
        parts = [f"{k}={v}" for k, v in fact.items() if k not in hidden and v is not None]
        self._stream.write(f"keepstep: {fact['event']} {' '.join(parts)}\n")
        self._stream.flush()


def render_summary(summary: dict[str, Any] | None, exit_code: int, why: str) -> str:
    """Return the closing lines of a run."""
    if summary is None:
        return f"keepstep: ended with exit code {exit_code}: {why}\n"
    lines = [
        f"keepstep: {summary['outcome']}: {summary['steps']} steps on {summary['world_size']} ranks, "
        f"{summary['generations']} generations, median step {summary['median_step_s']:.3f} s"
    ]
    if why:
        lines.append(f"keepstep: {why}")
    for entry in summary["recoveries"]:
        lines.append(
            f"keepstep:   {entry['fault']} of rank {entry['rank']} at step {entry['step']}: "
            f"{entry['action']}, detected after {entry['detected_after_s']} s, next step after "
            f"{entry['next_step_after_s']} s, {entry['lost_steps']} steps lost"
        )
    return "\n".join(lines) + "\n"
