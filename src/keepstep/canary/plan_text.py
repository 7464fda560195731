"""From the text of a TOML file to a record, with errors that name key, line and what was wanted."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

_Record = TypeVar("_Record", bound=BaseModel)
_Key = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = re.compile(r'"([^"]*)"|\'([^\']*)\'|([A-Za-z0-9_-]+)')
_ASSIGNMENT = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_.-]+)(?:\s*\.\s*[^\s=]+)*)\s*=""")


class PlanError(ValueError):
    """The file is no plan; the text says where, what was seen and what was wanted."""


def parse(text: str, name: str, record: type[_Record]) -> _Record:
    """Return the record that a TOML text describes.

    Args:
        text: The whole file.
        name: Of the file, for errors.
        record: What it must be; unknown keys are refused.

    Raises:
        PlanError: It is not one.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of 5,000 digits, and 5,000 lists
        raise PlanError(f"{name}: not TOML: {error}") from None
    try:
        return record.model_validate(values)
    except ValidationError as error:
        lines = _lines(text)
        said = [_sentence(dict(each), name, lines, record) for each in error.errors()]
        raise PlanError("\n".join(dict.fromkeys(said))) from None


def near(name: str, known: Iterable[str]) -> str:
    """Return a question after the likely meaning of a mistyped name, or nothing."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f". Did you mean {found[0]!r}?" if found else ""


def _sentence(
    error: dict[str, Any], name: str, lines: dict[_Key, int], record: type[BaseModel]
) -> str:
    cause = error.get("ctx", {}).get("error")
    if key := getattr(cause, "key", ""):
        path = (*error["loc"], *(int(part) if part.isdigit() else part for part in _split(key)))
        return _where(name, path, lines) + str(getattr(cause, "text", cause))
    path = tuple(part for part in error["loc"] if part not in _PYDANTIC)
    known = _keys_beside(record, path)
    where = _where(name, path, lines)
    if error["type"] == "extra_forbidden":
        last = str(path[-1])
        return where + f"unknown key; wanted one of {', '.join(sorted(known))}{near(last, known)}"
    if error["type"] == "missing":
        return where + "missing; it is needed (a whole plan: keepstep rehearse --print-plan)"
    if error["type"] == "literal_error":
        wanted = error["ctx"]["expected"]
        choices = re.findall(r"'([^']*)'", wanted)
        return (
            where + f"saw {error['input']!r}; wanted {wanted}{near(str(error['input']), choices)}"
        )
    wanted = error["msg"][0].lower() + error["msg"][1:]
    # Pydantic's own words, "input should be greater than or equal to 3", as the others are.
    wanted = wanted.removeprefix("input should be ")
    return where + f"saw {error['input']!r}; wanted {wanted}"


# What pydantic puts into the path for the members of a union and for the keys of a table.
_PYDANTIC = frozenset({"literal['informative']", "constrained-float", "float", "[key]"})


def _where(name: str, path: _Key, lines: dict[_Key, int]) -> str:
    dotted = ".".join(f'"{part}"' if "." in str(part) else str(part) for part in path)
    for length in range(len(path), 0, -1):
        if line := lines.get(path[:length]):
            return f"{name}, line {line}: {dotted}: "
    return f"{name}: {dotted}: "


def _lines(text: str) -> dict[_Key, int]:
    """Return the line of each key, as far as a look at headers and assignments can tell."""
    found: dict[_Key, int] = {}
    table: _Key = ()
    counts: dict[_Key, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _split(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            found.setdefault(table, number)
        elif assignment := _ASSIGNMENT.match(line):
            found.setdefault((*table, *_split(assignment[1])), number)
    return found


def _split(dotted: str) -> tuple[str, ...]:
    return tuple("".join(groups) for groups in _PART.findall(dotted))


def _keys_beside(record: type[BaseModel], path: _Key) -> list[str]:
    """Return the keys that are allowed where the last one of a path stands."""
    kind: Any = record
    for part in path[:-1]:
        kind = _kind_below(kind, part)
    return list(kind.model_fields) if _is_record(kind) else []


def _kind_below(kind: Any, part: str | int) -> Any:
    if _is_record(kind):
        field = kind.model_fields.get(str(part))
        return field.annotation if field else None
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    if get_origin(kind) is tuple:
        return get_args(kind)[0]
    if get_origin(kind) is UnionType:
        return next((each for each in get_args(kind) if _is_record(each)), None)
    return None


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
