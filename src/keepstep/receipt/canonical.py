"""JSON in the one form that is signed (RFC 8785): one value, one sequence of bytes.

Reading is as strict as writing: what is not exactly the bytes that would be written again is
refused. So nothing can be added to a receipt or changed in it that a reader would not see, not even
a space, and two readers cannot understand the same bytes differently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import rfc8785

# One rank of one run takes 15 to 20 kB: this is 5 runs of 1,400 ranks, which are read in a minute.
MOST_BYTES = 128 << 20
_EXACT = (1 << 53) - 1  # the largest integer that every reader of JSON keeps exactly


def to_canonical(value: Any) -> bytes:
    """Return the bytes of a value of JSON types.

    What was seen is never lost to the form: integers beyond 2^53 become text, since readers of JSON
    keep them as floats (a seed may be such a number); so do NaN and the infinities. Half
    surrogates, which undecodable output leaves in text, become U+FFFD.

    Raises:
        ValueError: It holds what JSON cannot say, such as an object or a key that is no text, or
            it is nested too deeply.
    """
    try:
        return rfc8785.dumps(_portable(value))
    except RecursionError:
        raise ValueError("it is nested too deeply to be signed") from None


def from_canonical(data: bytes) -> Any:
    """Return the value of bytes that ``to_canonical`` wrote.

    Raises:
        ValueError: These are other bytes, and which rule they break.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data)} bytes; a receipt has at most {MOST_BYTES}")
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse_constant,
            parse_int=_number,
        )
        again = rfc8785.dumps(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos}") from None
    if again != data:
        at = next((i for i, (a, b) in enumerate(zip(again, data, strict=False)) if a != b), -1)
        where = f"byte {at}" if at >= 0 else "its end"
        raise ValueError(f"it is not in canonical form (RFC 8785) at {where}")
    return value


def _portable(value: Any) -> Any:
    if isinstance(value, str):
        return str(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_portable(key): _portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_portable(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _number(text: str) -> int | float:
    # Floats up to 1e21 are written without a fraction. Whether it is one shows when it is written
    # again; the text of a receipt's own integers is never longer than 17 characters.
    short = int(text) if len(text) <= 17 else _EXACT + 1
    return short if abs(short) <= _EXACT else float(text)
