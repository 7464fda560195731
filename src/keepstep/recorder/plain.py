"""From the bytes of a file to plain data, without executing anything that the file says.

A pickle can name any function of Python and call it. A dump never does: it holds dictionaries,
lists, tuples, numbers and texts. So every request for a name is refused and reported.

What a file can still do is ask for much memory or time; that is why dumps are read in a process of
their own (``child``), and why ``load`` is not called on a stranger's file anywhere else.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from keepstep.recorder import limits
from keepstep.recorder.kinds import Severity

_PICKLE = 0x80  # the PROTO opcode; PyTorch and Python write it first since protocol 2
# A log that begins with "[rank0]" is none.
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{\s*[\"}]|\[\s*[\[{\]])")
_KNOWN_FORMATS = (
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"\x7fELF", "a program"),
    (b"SQLite", "a database"),
    (b"#!", "a script"),
)


class RefusedError(Exception):
    """Why a file is not used: a code of ``model.Finding`` and one sentence."""

    def __init__(self, code: str, text: str, severity: Severity = Severity.ERROR) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.severity = severity


def too_large(size: int) -> RefusedError:
    """Return the refusal of a file of ``size`` bytes."""
    most = limits.FILE_BYTES
    return RefusedError("too-large", f"{size} bytes or more, at most {most} are read")


class _PlainUnpickler(pickle.Unpickler):
    """Loads plain data only; whatever a pickle wants to import is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedError("hostile", f"the pickle wants to load {shown(f'{module}.{name}')}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise RefusedError("hostile", f"the pickle refers to an outside object {shown(pid)}")


def may_be_dump(head: bytes) -> bool:
    """Tell from its first bytes whether a file must be read to its end."""
    return head[:1] == bytes([_PICKLE]) or _JSON.match(head) is not None


def shown(value: object) -> str:
    """Return a short text of a value that came from a file, safe to print."""
    if isinstance(value, str):
        text = ascii(value[:120])
        return text if len(value) <= 120 else f"{text}... ({len(value)} characters)"
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() < 128 else "a number of more than 127 bits"
    return f"a {type(value).__name__}"


def load(data: bytes) -> tuple[Any, int]:
    """Return the plain data in ``data`` and how many bytes follow it.

    Raises:
        RefusedError: the data are no dump, incomplete, or ask for something to be executed.
    """
    if not data:
        raise RefusedError("empty", "the file has no bytes: its writer was ended before it wrote")
    if data[0] == _PICKLE:
        return _load_pickle(data)
    if _JSON.match(data):
        return _load_json(data), 0
    if not data.strip(b"\0"):
        raise RefusedError("truncated", f"all {len(data)} bytes are zero: nothing was written")
    kind = next((kind for magic, kind in _KNOWN_FORMATS if data.startswith(magic)), None)
    if kind is None:
        kind = "unknown data" if b"\0" in data[:4096] else "text"
    raise RefusedError("foreign", f"this is {kind}, not a dump (a pickle or JSON)")


def _load_pickle(data: bytes) -> tuple[Any, int]:
    # A buffer as large as the data: the unpickler then parses it in one piece.
    reader = io.BufferedReader(io.BytesIO(data), max(len(data), 1 << 17))
    try:
        loaded = _PlainUnpickler(reader).load()
    except RefusedError:
        raise
    except MemoryError:
        raise RefusedError("too-large", "the pickle asks for more memory than allowed") from None
    except Exception as error:
        raise _pickle_fault(error, data) from None
    return loaded, len(data) - reader.tell()


def _pickle_fault(error: Exception, data: bytes) -> RefusedError:
    reason = shown(f"{type(error).__name__}: {error}")
    if isinstance(error, EOFError) or "truncated" in str(error) or data.endswith(b"\0" * 64):
        return RefusedError("truncated", f"the pickle ends after {len(data)} bytes without its end")
    return RefusedError("malformed", f"the pickle cannot be decoded ({reason})")


def _load_json(data: bytes) -> Any:
    import json  # most dumps are pickles, and a reading process should start fast

    try:
        text = data.decode("utf-8-sig")
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            raise RefusedError(
                "truncated", f"the JSON ends after {len(data)} bytes without its last bracket"
            ) from None
        raise RefusedError("malformed", f"the JSON cannot be decoded ({error})") from None
    except UnicodeDecodeError as error:
        if error.end >= len(data):
            raise RefusedError("truncated", "the JSON ends inside a character") from None
        raise RefusedError("malformed", "the JSON is not UTF-8") from None
    except MemoryError:
        raise RefusedError("too-large", "the JSON asks for more memory than allowed") from None
    except (RecursionError, ValueError) as error:  # too deep; a number of too many digits
        reason = shown(f"{type(error).__name__}: {error}")
        raise RefusedError("malformed", f"the JSON cannot be decoded ({reason})") from None
