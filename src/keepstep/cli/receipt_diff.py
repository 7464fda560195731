"""``keepstep receipt diff``: what differs between two receipts."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from keepstep.cli.receipt_answer import JsonOption, KeyOption, answered, many, say
from keepstep.exit_codes import ExitCode
from keepstep.receipt.diff import Diff, FactPair, MeasuredPair, Values
from keepstep.receipt.diff import diff as compare
from keepstep.receipt.envelope import check, unwrap
from keepstep.receipt.errors import ReceiptError
from keepstep.receipt.files import read
from keepstep.receipt.keys import PublicKey, trusted_keys
from keepstep.receipt.material import ABSENT
from keepstep.receipt.sealed import Receipt, read_unverified

_LIBRARY = "library."
_SHOWN = 20  # measured values; --json has all


@answered
def diff(
    a: Annotated[Path, typer.Argument(help="A receipt.", metavar="A", show_default=False)],
    b: Annotated[Path, typer.Argument(help="Another one.", metavar="B", show_default=False)],
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Show what differs: what they ran on first, then what was measured.

    Exit code 0: both ran on the same; 1: something material differs; 3: a signature is not
    verified, so that what they say cannot be relied on.
    """
    trusted = trusted_keys(key)
    opened = [_open(path, trusted) for path in (a, b)]
    found = compare(opened[0][0], opened[1][0])
    unverified = [f"{path}: {why}" for path, (_, why) in zip((a, b), opened, strict=True) if why]
    if as_json:
        print(json.dumps({"a": str(a), "b": str(b), "unverified": unverified, **asdict(found)}))
    else:
        say([*(f"not verified: {each}" for each in unverified), *_lines(a, b, found)])
    if unverified:
        return ExitCode.INCONCLUSIVE
    return ExitCode.FAIL if found.material else ExitCode.PASS


def _open(path: Path, trusted: dict[str, PublicKey]) -> tuple[Receipt, str]:
    """Return a receipt, and why it is not verified ("" when it is)."""
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; wanted one of the receipts in it")
    data = read(path)
    try:
        receipt = read_unverified(data)
    except ReceiptError as error:
        raise ReceiptError(f"{path}: {error}") from None
    try:
        check(unwrap(data), trusted)
    except ReceiptError as error:
        return receipt, str(error)
    return receipt, ""


def _lines(a: Path, b: Path, found: Diff) -> list[str]:
    lines = [f"A: {a}", f"B: {b}"]
    lines.append(
        f"{many(len(found.material), 'material fact')} not the same"
        if found.material
        else "both ran on the same: no material fact differs"
    )
    for stack, facts in groupby(found.material, key=lambda each: each.stack):
        lines += [f"  stack {stack}", *_facts(list(facts))]
    lines.append(f"{many(len(found.measured), 'measured value')} not the same")
    lines += [_measured(pair) for pair in found.measured[:_SHOWN]]
    if len(found.measured) > _SHOWN:
        lines.append(f"  and {len(found.measured) - _SHOWN} more: --json")
    return lines


def _facts(facts: list[FactPair]) -> list[str]:
    """Return the facts of one stack; builds of libraries are named, their ids are in --json."""
    builds = [each for each in facts if each.fact.startswith(_LIBRARY) and _both(each)]
    lines = [
        f"    {each.fact}: A {_value(each.a)}, B {_value(each.b)}"
        for each in facts
        if each not in builds
    ]
    if builds:
        names = ", ".join(each.fact.removeprefix(_LIBRARY) for each in builds)
        lines.append(f"    {many(len(builds), 'library', 'libraries')} of another build: {names}")
    return lines


def _both(each: FactPair) -> bool:
    return ABSENT not in (*each.a, *each.b)


def _measured(pair: MeasuredPair) -> str:
    ratio = "" if pair.ratio is None else f"  ({pair.ratio:.3f} times)"
    return f"  {pair.path}: A {_value(pair.a)}, B {_value(pair.b)}{ratio}"


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, float):
        return f"{value:.6g}"
    values: Values = value
    text = " | ".join(values)
    return text if len(text) <= 200 else f"{text[:200]}..."
