"""``keepstep receipt show``: what receipts say."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from keepstep.canary.verdict import CellVerdict, SoftResult
from keepstep.cli.receipt_answer import JsonOption, KeyOption, PathsArgument, answered, many, say
from keepstep.drills.record import DrillRecord
from keepstep.exit_codes import ExitCode
from keepstep.receipt.envelope import check, unwrap
from keepstep.receipt.errors import ReceiptError
from keepstep.receipt.files import find, read
from keepstep.receipt.keys import PublicKey, trusted_keys
from keepstep.receipt.material import Difference, differences
from keepstep.receipt.sealed import Receipt, read_unverified
from keepstep.receipt.statement import time_text
from keepstep.report.model import Rehearsal
from keepstep.report.records import CellRecords, read_records
from keepstep.report.summary import sentence, verdict_of

_LIBRARY = "library."


@answered
def show(paths: PathsArgument, key: KeyOption = None, as_json: JsonOption = False) -> ExitCode:
    """Print what receipts say; what differs between the ranks of one comes first.

    Exit code 0: all could be read, and their signatures are verified; 1: not so.
    """
    trusted, files = trusted_keys(key), find(paths)
    bodies: list[dict[str, Any]] = []
    lines: list[str] = []
    for path in files:
        data = read(path)
        try:
            receipt = read_unverified(data)
        except ReceiptError as error:
            bodies.append({"path": str(path), "problem": str(error)})
            lines += [f"{path}: {error}", ""]
            continue
        wrong = _signature(data, trusted)
        bodies.append({"path": str(path), "problem": wrong, **_json(receipt)})
        lines += [*_lines(str(path), receipt, wrong), ""]
    if as_json:
        print(json.dumps(bodies, indent=2))
    else:
        say(lines[:-1] or ["no receipt is there"])
    if not files:
        return ExitCode.INCONCLUSIVE
    return ExitCode.FAIL if any(body["problem"] for body in bodies) else ExitCode.PASS


def _signature(data: bytes, trusted: dict[str, PublicKey]) -> str:
    try:
        check(unwrap(data), trusted)
    except ReceiptError as error:
        return str(error)
    return ""


def _json(receipt: Receipt) -> dict[str, Any]:
    return {
        "kind": receipt.kind.value,
        "sha256": receipt.sha256,
        "key": receipt.key_id,
        "issued": time_text(receipt.issued),
        "expires": time_text(receipt.expires),
        "keepstep": receipt.keepstep,
        "host": receipt.host,
        "differences": [
            {"stack": each.stack, "fact": each.fact, "values": each.values}
            for each in differences(receipt.material)
        ],
        "subjects": receipt.subjects,
        "material": receipt.material,
        "records": receipt.records,
    }


def _lines(path: str, receipt: Receipt, wrong: str) -> list[str]:
    expired = " (expired)" if datetime.now(UTC) >= receipt.expires else ""
    lines = [f"{path}: {receipt.kind.value}"]
    lines += [f"  NOT VERIFIED: {wrong}"] if wrong else []
    lines += [line for each in differences(receipt.material) for line in _difference(each)]
    lines += [f"  {line}" for line in _records(receipt)]
    lines += [
        f"  issued {time_text(receipt.issued)}, valid until {time_text(receipt.expires)}{expired}",
        f"  on {receipt.host}, by keepstep {receipt.keepstep}, with the key {receipt.key_id[:16]}",
        f"  digest {receipt.sha256}",
        *(f"  about {name}, sha256 {digest}" for name, digest in receipt.subjects.items()),
    ]
    for stack, processes in receipt.material.items():
        lines.append(
            f"  ran on the stack {stack} ({many(len(processes), 'process', 'processes')}):"
        )
        lines += _facts(_common(processes))
    return lines


def _facts(facts: dict[str, str]) -> list[str]:
    """Return what all processes said; builds of libraries are counted, their ids are in --json."""
    builds = [fact for fact in facts if fact.startswith(_LIBRARY)]
    lines = [f"    {fact}: {value}" for fact, value in facts.items() if fact not in builds]
    if builds:
        count = many(len(builds), "library", "libraries")
        lines.append(f"    {count}, each with the id of its build: --json")
    return lines


def _difference(each: Difference) -> list[str]:
    """Return what disagrees, the odd ones in plain sight."""
    return [f"  RANKS DIFFER in {each.fact} (stack {each.stack}):"] + [
        f"    {value}: {', '.join(processes)}" for value, processes in each.values.items()
    ]


def _common(processes: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the facts that all processes share."""
    sets = [set(facts.items()) for facts in processes.values()]
    return dict(sorted(set.intersection(*sets))) if sets else {}


def _records(receipt: Receipt) -> list[str]:
    try:
        found = read_records(receipt.kind, receipt.records)
    except ValidationError:
        return ["its records are not as this version of keepstep writes them: --json shows them"]
    if isinstance(found, CellRecords):
        return _cell(found.verdict)
    if isinstance(found, DrillRecord):
        return _drill(found)
    assert isinstance(found, Rehearsal), "the third of three kinds"
    return [
        f"rehearsal of {found.plan}: {verdict_of(found).value}: {sentence(found)}",
        f"{many(len(found.cells), 'cell')}, {many(len(found.drills), 'drill')}, "
        f"{many(len(found.receipts))} of them",
    ]


def _cell(verdict: CellVerdict) -> list[str]:
    return [
        f"{verdict.cell}: {verdict.verdict.value}, {many(verdict.runs, 'run')}: {verdict.reason}",
        *(
            f"  {gate.gate}: {gate.verdict.value}: seen {gate.seen}; wanted {gate.wanted}"
            for gate in verdict.gates
        ),
        *(
            f"  {soft.metric}: {soft.verdict.value if soft.judged else 'informative'}: "
            f"{_ratio(soft)}, {many(soft.pairs, 'pair')}"
            for soft in verdict.soft
        ),
    ]


def _ratio(soft: SoftResult) -> str:
    if soft.ratio is None:
        return soft.reason or "no ratio"
    bounds = [f"{bound:.3f}" for bound in (soft.lower, soft.upper) if bound is not None]
    return f"{soft.ratio:.3f} times ({' to '.join(bounds)})"


def _drill(record: DrillRecord) -> list[str]:
    return [
        f"{record.name}: {record.verdict.value}: {record.reason}",
        *(
            f"  {proof.verdict.value}: {proof.what}: seen {proof.seen}; wanted {proof.wanted}"
            for proof in record.proofs
        ),
    ]
