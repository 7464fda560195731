"""``keepstep stack list``: the stacks there are, and whether they are still what was made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from keepstep.cli.checkpoint_answer import count_text, size_text
from keepstep.cli.stack_answer import ORIGINS, JsonOption, answered
from keepstep.exit_codes import ExitCode
from keepstep.stack.named import Stack, all_stacks, to_json, unfinished_stacks
from keepstep.stack.standing import Standing, standing_of

_NAMED = 3  # of the packages that have changed


@answered
def list(as_json: JsonOption = False) -> ExitCode:
    """Show every stack; its packages are compared with those it was made with.

    Exit code 1: one has changed, or does not start.
    """
    with ThreadPoolExecutor() as pool:
        found = tuple(pool.map(standing_of, all_stacks()))
    unfinished = unfinished_stacks()
    if as_json:
        print(json.dumps({"stacks": [*map(_json, found)], "unfinished": unfinished}))
    else:
        print("\n".join(_lines(found, unfinished)))
    return ExitCode.PASS if all(each.sound for each in found) else ExitCode.FAIL


def _json(found: Standing) -> dict[str, Any]:
    return {
        **to_json(found.stack),
        "looked_at": found.looked_at,
        "error": found.error or None,
        "drift": [asdict(each) for each in found.drift],
    }


def _lines(found: Sequence[Standing], unfinished: Sequence[str]) -> tuple[str, ...]:
    if not found and not unfinished:
        return ("there is no stack; make one: keepstep stack create 2.15.0 --torch 2.15.0",)
    width = max((len(each.stack.name) for each in found), default=0)
    half_made = (
        f"{name}  never finished; make it again, or: keepstep stack remove {name}"
        for name in unfinished
    )
    own = size_text(sum(each.stack.own_bytes for each in found))
    return (
        *(f"{each.stack.name:<{width}}  {_line(each)}" for each in found),
        *half_made,
        f"{count_text(len(found), 'stack')}, {own} of their own",
    )


def _line(found: Standing) -> str:
    stack = found.stack
    return f"PyTorch {stack.torch}, {ORIGINS[stack.origin]}, {_disk(stack)}: {_standing(found)}"


def _standing(found: Standing) -> str:
    if not found.looked_at:
        return "not looked at (keepstep stack show starts it)"
    if found.error:
        return f"it does not start: {found.error}"
    if not found.drift:
        return "as it was made"
    names = ", ".join(each.field.removeprefix("package.") for each in found.drift[:_NAMED])
    more = len(found.drift) - _NAMED
    return f"changed since it was made: {names}{f' and {more} more' if more > 0 else ''}"


def _disk(stack: Stack) -> str:
    return size_text(stack.own_bytes) if stack.bytes else "no disk of keepstep's"
