"""``keepstep checkpoint status``: which checkpoint of a run a rollback could use."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from keepstep.checkpoint.eras import minor_of
from keepstep.checkpoint.status import Status, find_status
from keepstep.checkpoint.store import open_store
from keepstep.checkpoint.testload import Proof, last_proof
from keepstep.cli.checkpoint_answer import answered, count_text
from keepstep.exit_codes import ExitCode

_SHOWN = 10


@answered
def status(
    root: Annotated[
        str,
        typer.Argument(
            help="Folder or address that holds the checkpoints of a run.",
            metavar="ROOT",
            show_default=False,
        ),
    ],
    wanted: Annotated[
        str, typer.Option("--for", help="The PyTorch to go back to.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Say which is the newest checkpoint that an older PyTorch can read."""
    minor = minor_of(wanted)
    store = open_store(root)
    found = find_status(store, minor)
    readable = found.newest_readable
    proof = None if readable is None else last_proof(store.below(readable.name), minor)
    if as_json:
        facts = {"behind": found.behind, "test_load": proof and _proof_json(proof)}
        print(json.dumps({"root": root, "for": minor, **asdict(found), **facts}))
    else:
        print("\n".join(_lines(root, minor, found, proof)))
    if found.newest_readable is not None:
        return ExitCode.PASS
    return ExitCode.FAIL if found.newest is not None else ExitCode.INCONCLUSIVE


def _proof_json(proof: Proof) -> dict[str, Any]:
    record = asdict(proof.record)
    told = ("environment", "python", "when", "verdict", "level", "error")
    return {**{name: record[name] for name in told}, "stale": proof.stale}


def _proof_lines(where: str, minor: str, proof: Proof | None) -> list[str]:
    command = f"keepstep checkpoint test-load {where} --python EXE"
    if proof is None:
        return [f"  never test-loaded with PyTorch {minor}: {command}"]
    record = proof.record
    lines = [
        f"  last test-loaded with PyTorch {record.torch} ({record.python}) at {record.when}: "
        + record.verdict
    ]
    if proof.stale:
        lines += [f"  stale: {reason}" for reason in proof.stale]
        lines.append(f"  prove it again: {command}")
    return lines


def _lines(root: str, minor: str, found: Status, proof: Proof | None) -> list[str]:
    readable, newest = found.newest_readable, found.newest
    if readable is not None:
        first = f"{root}: PyTorch {minor} can go back to {readable.name}"
        first += f", {count_text(found.behind, 'step')} behind" if found.behind else ", the newest"
    elif newest is not None:
        first = f"{root}: PyTorch {minor} can read none of the checkpoints"
    else:
        first = f"{root}: there is no complete checkpoint"
    lines = [first]
    if newest is not None and found.behind != 0:
        lines.append(f"  the newest is {newest.name}")
    lines.append(f"  {count_text(found.steps, 'folder')}, {found.looked_at} looked at")
    if readable is not None:
        lines += _proof_lines(f"{root.rstrip('/')}/{readable.name}", minor, proof)
    if found.incomplete:
        lines.append(f"  without metadata: {_some(found.incomplete)}")
    lines += [f"  not judged: {text}" for text in found.unreadable[:_SHOWN]]
    if newest is not None and found.behind != 0:
        where = f"{root.rstrip('/')}/{newest.name}"
        lines.append(f"next: keepstep checkpoint downgrade {where} --for {minor} --dry-run")
    return lines


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
