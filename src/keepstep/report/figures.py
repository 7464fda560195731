"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

PER = 1000  # useful steps that a cost is given for


def seconds_text(seconds: float) -> str:
    """Return a duration: ``41 ms``, ``4.2 s``, ``12 min 11 s``, ``2 h 5 min``."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def value_text(value: float | None, unit: str) -> str:
    """Return a measured value with its unit."""
    if value is None:
        return "not known"
    if unit in ("s", "seconds"):
        return seconds_text(value)
    if unit in ("bytes", "B"):
        return bytes_text(value)
    digits = ",.0f" if abs(value) >= 1e4 else ",.4g"
    return f"{value:{digits}} {unit}".rstrip()


def bytes_text(count: float) -> str:
    """Return an amount of memory: ``412 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio as a change: ``+1.3 %``; a factor where it is large."""
    if ratio is None:
        return "not known"
    if ratio >= 2:
        return f"{ratio:.3g} times"
    return f"{(ratio - 1) * 100:+.1f} %"


def margin_text(margin: float) -> str:
    """Return a margin: ``5 %``."""
    return f"{margin * 100:.3g} %"


def cost_text(hours: float | None) -> str:
    """Return the hours that a thousand useful steps cost."""
    return "not known" if hours is None else f"{hours * PER:.3g}"


def time_text(iso: str) -> str:
    """Return a time of a record as people read it: ``2026-11-30 08:31 UTC``."""
    try:
        time = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if time.tzinfo else iso


def sentence_text(text: str) -> str:
    """Return text as a sentence; a name or a command at its beginning stays as it is."""
    first, _, _ = text.partition(" ")
    begun = text if first == "keepstep" or not first.isalpha() else f"{text[:1].upper()}{text[1:]}"
    return begun if begun.endswith((".", "!", "?")) or not begun else f"{begun}."


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 cell``, ``2 cells``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
