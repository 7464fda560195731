"""``keepstep stack diff``: what differs between two stacks, what matters first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

import typer

from keepstep.cli.stack_answer import JsonOption, answered, difference_lines
from keepstep.exit_codes import ExitCode
from keepstep.stack.asked import ask_fingerprint
from keepstep.stack.material import Difference, differences, same_nccl
from keepstep.stack.named import find_stack

OldArgument = Annotated[str, typer.Argument(help="A stack.", metavar="A", show_default=False)]
NewArgument = Annotated[str, typer.Argument(help="Another one.", metavar="B", show_default=False)]


@answered
def diff(old: OldArgument, new: NewArgument, as_json: JsonOption = False) -> ExitCode:
    """Start the interpreters of two stacks and print in what they differ.

    Exit code 0: in nothing that is material; 1: in something.
    """
    stacks = [find_stack(old), find_stack(new)]
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(ask_fingerprint, stacks)
    found, nccl = differences(first, second), same_nccl(first, second)
    if as_json:
        body = {"first": old, "second": new, "differences": [asdict(each) for each in found]}
        print(json.dumps({**body, "same_nccl": nccl or None}))
    else:
        print("\n".join(_lines(old, new, found, nccl, first, second)))
    return ExitCode.FAIL if any(each.material for each in found) else ExitCode.PASS


def _lines(
    old: str,
    new: str,
    found: list[Difference],
    nccl: str,
    first: dict[str, Any],
    second: dict[str, Any],
) -> list[str]:
    matter = [each for each in found if each.material]
    rest = [each for each in found if not each.material]
    lines = [f"{old} -> {new}: {len(matter)} material differences" if matter else _equal(old, new)]
    lines.append(_nccl_line(nccl, first, second))
    lines += difference_lines(matter)
    if rest:
        lines += ["not material:", *difference_lines(rest)]
    return lines


def _equal(old: str, new: str) -> str:
    return f"{old} -> {new}: no material difference"


def _nccl_line(nccl: str, first: dict[str, Any], second: dict[str, Any]) -> str:
    if nccl:
        return f"both ship NCCL {nccl}, the same build: a difference between them is not NCCL's"
    versions = [str((each["nccl"] or {}).get("version", "none")) for each in (first, second)]
    return f"NCCL: {versions[0]} -> {versions[1]}"
