"""Keep of the folders that ``make_dumps.py`` wrote what the tests and the tables need.

    python docs/evidence/gpu/diagnosis/keep.py OUT [OUT ...]

A case of a later OUT replaces that of an earlier one. Copies dumps to tests/data/recorder, one
folder for each case and way in which its dumps came about; writes the truth of each folder to
tests/data/recorder/truth.json and what happened to each rank to results.json beside this file.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[3] / "tests" / "data" / "recorder"
NAMES = {"nccl": "nccl2", "nccl-without-nccl2": "use-nccl2-0"}
SAME_AS_LEGACY = "nccl-without-nccl2"  # its dumps are made by the same code: two cases will do
TWO_CASES = ("stall-4", "cascade-4")


def ways(case: Path) -> list[str]:
    """Which folders of dumps of a case are kept."""
    spelling = case.parent.name
    if spelling == SAME_AS_LEGACY and case.name not in TWO_CASES:
        return []
    found = ["own"] if dumps(case / "own") else []
    if spelling == "nccl-lazy":
        whole = len(dumps(case / "asked-stacks")) == len(dumps(case / "asked"))
        return [*found, "asked-stacks" if whole else "asked"]
    return [*found, "asked"] if spelling == "nccl" or not found else found


def dumps(folder: Path) -> list[Path]:
    """The dumps below a folder."""
    return sorted(path for path in folder.rglob("comm_lib_trace_rank_*") if path.is_file())


def keep(case: Path, way: str) -> tuple[str, dict[str, Any]]:
    """Copy one folder of dumps; return its name and what is known of it."""
    truth = json.loads((case / "truth.json").read_text())
    spelling = NAMES.get(case.parent.name, case.parent.name)
    name = f"h200x2-{truth['ranks']}rank-{spelling}-{truth['case']}"
    name += "" if way == "own" else "-asked"
    shutil.rmtree(TESTS / name, ignore_errors=True)
    entries: dict[str, int] = {}
    recorders: set[str] = set()
    for path in dumps(case / way):
        inside = path.relative_to(case / way)
        recorder = inside.parts[0] if len(inside.parts) > 1 and spelling == "nccl-lazy" else ""
        target = TESTS / name / recorder / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        content = pickle.loads(path.read_bytes())  # ours, and fresh from the machine
        rank = path.name.rpartition("_")[2]
        entries[rank] = entries.get(rank, 0) + len(content["entries"])
        recorders.update(e["profiling_name"].partition(":")[0] for e in content["entries"])
    known = {**truth, "dumps": way, "entries": entries, "recorders": sorted(recorders)}
    return name, known


def main() -> None:
    """Copy and write."""
    cases: dict[tuple[str, str], Path] = {}
    for out in sys.argv[1:]:
        for path in sorted(Path(out).glob("*/*/ranks.json")):
            cases[path.parent.parent.name, path.parent.name] = path.parent
    truths: dict[str, Any] = {}
    results = []
    for _, case in sorted(cases.items()):
        told = json.loads((case / "ranks.json").read_text())
        results.append(told)
        if any(rank["asked_after_s"] is None for rank in told["per_rank"]):
            continue  # it did not come as far as the step that goes wrong
        for way in ways(case):
            name, known = keep(case, way)
            truths[name] = known
    (TESTS / "truth.json").write_text(json.dumps(truths, indent=1, sort_keys=True) + "\n")
    lines = ",\n".join(json.dumps(each) for each in results)
    (HERE / "results.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
