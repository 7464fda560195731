"""``keepstep checkpoint verify``: is everything there, and every slice as it was written?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from keepstep.checkpoint.compare import Difference, compare
from keepstep.checkpoint.findings import Verification, Weight
from keepstep.checkpoint.mending import mends
from keepstep.checkpoint.store import open_store
from keepstep.checkpoint.verify import verify as verify_store
from keepstep.cli.checkpoint_answer import PathArgument, answered, count_text, size_text
from keepstep.exit_codes import ExitCode

_SHOWN = 40
_STEPS = 10  # actions that are shown


@answered
def verify(
    path: PathArgument,
    other: Annotated[
        str | None,
        typer.Argument(
            help="Another checkpoint, to compare the tensors with.",
            metavar="[OTHER]",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Check what PyTorch does not: sizes, CRCs, files that do not belong together."""
    store = open_store(path)
    found = verify_store(store)
    compared = None if other is None else compare(store, open_store(other))
    code = _code(found, compared)
    actions = mends(store, found)
    if as_json:
        print(json.dumps(_json(path, other, found, actions, compared, code)))
    else:
        print("\n".join(_lines(path, other, found, actions, compared, code)))
    return code


def _code(found: Verification, compared: tuple[int, list[Difference]] | None) -> ExitCode:
    worst = found.worst()
    differences = compared[1] if compared else []
    if worst is Weight.DAMAGE or any(each.known for each in differences):
        return ExitCode.FAIL
    if worst is Weight.SUSPECT or found.unchecked or differences:
        return ExitCode.INCONCLUSIVE
    return ExitCode.PASS


def _json(
    path: str,
    other: str | None,
    found: Verification,
    actions: list[str],
    compared: tuple[int, list[Difference]] | None,
    code: ExitCode,
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "path": path,
        "verdict": code.name.lower(),
        "findings": [
            {**asdict(finding), "mend": action}
            for finding, action in zip(found.findings, actions, strict=True)
        ],
        "slices_checked": found.checked,
        "slices_not_checked": found.unchecked,
        "bytes_checked": found.bytes,
        "recovery": found.recovery or None,
    }
    if compared is not None:
        equal, differences = compared
        answer["compared"] = {
            "with": other,
            "equal": equal,
            "differences": [asdict(each) for each in differences],
        }
    return answer


def _lines(
    path: str,
    other: str | None,
    found: Verification,
    actions: list[str],
    compared: tuple[int, list[Difference]] | None,
    code: ExitCode,
) -> list[str]:
    words = {
        ExitCode.PASS: "complete, and every slice is as it was written",
        ExitCode.FAIL: "damaged" if found.worst() is Weight.DAMAGE else f"not equal to {other}",
        ExitCode.INCONCLUSIVE: "not proven to be as it was written",
    }
    lines = [f"{path}: {words[code]}"]
    if found.checked or not found.unchecked:
        lines.append(
            f"  CRC right: {count_text(found.checked, 'slice')}, {size_text(found.bytes)} read"
        )
    if found.unchecked:
        lines.append(f"  not checked: {count_text(found.unchecked, 'slice')} {found.why_unchecked}")
    lines += [f"  {each.weight}: {each.file}: {each.text}" for each in found.findings[:_SHOWN]]
    if len(found.findings) > _SHOWN:
        lines.append(f"  ... and {len(found.findings) - _SHOWN} more (all with --json)")
    if compared is not None:
        equal, differences = compared
        lines.append(f"  compared with {other}: {equal} entries equal, {len(differences)} not")
        lines += [f"  {each.name}: {each.text}" for each in differences[:_SHOWN]]
    if found.recovery:
        lines.append(f"every file is complete; recover it: {found.recovery}")
    steps = [each for each in dict.fromkeys(actions) if each != found.recovery]
    lines += [f"next: {step}" for step in steps[:_STEPS]]
    if len(steps) > _STEPS:
        lines.append(f"next: ... and {len(steps) - _STEPS} more (all with --json)")
    return lines
