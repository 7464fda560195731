"""Ask ``keepstep explain`` about the dumps in tests/data/recorder, and compare with the truth.

python docs/evidence/gpu/diagnosis/answers.py           the table of cases, as Markdown
python docs/evidence/gpu/diagnosis/answers.py --arrival what each backend left by itself
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DUMPS = HERE.parents[3] / "tests" / "data" / "recorder"
EXPLAIN = [sys.executable, "-c", "from keepstep.cli.main import main; main()", "explain", "--json"]


def answer(folder: Path) -> dict[str, Any]:
    """What the command says of one folder."""
    done = subprocess.run([*EXPLAIN, str(folder)], capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(truth: dict[str, Any], told: dict[str, Any]) -> str:
    """Say in a word how an answer relates to the truth."""
    if told["ranks"] == truth["culprits"]:
        if not told["ranks"]:
            return "right" if told["verdict"] == "healthy" else "open"
        return "right" if told["fault"] == truth["fault"] else "rank right, fault not"
    return "not proven" if told["would_decide"] else "wrong"


def table() -> None:
    """One line for each folder of dumps."""
    print("| dumps | what the culprit does | truth | answer | confidence | |")
    print("|---|---|---|---|---|---|")
    count: dict[str, int] = {}
    for name, truth in json.loads((DUMPS / "truth.json").read_text()).items():
        told = answer(DUMPS / name)
        how = compare(truth, told)
        count[how] = count.get(how, 0) + 1
        row = [
            name.removeprefix("h200x2-"),
            truth["what"],
            named(truth["culprits"], truth["fault"]),
            named(told["ranks"], told["fault"]) if told["ranks"] else told["verdict"],
            told["confidence"],
            how,
        ]
        print(f"| {' | '.join(row)} |")
    print(f"\n{', '.join(f'{how}: {number}' for how, number in sorted(count.items()))}")


def named(ranks: Iterable[int], fault: str) -> str:
    """Ranks and fault in few words."""
    return f"{', '.join(map(str, ranks))} {fault}".strip() or "nobody"


def arrival() -> None:
    """Which ranks left a dump by themselves, when, and how the processes ended."""
    print("| spelling | case | built | own dump of rank, s after the step began | ends |")
    print("|---|---|---|---|---|")
    for told in json.loads((HERE / "results.json").read_text()):
        ranks = told["per_rank"]
        dumps = [f"{r['rank']}: {r['own_dump_after_s']}" for r in ranks if r["own_dump_bytes"]]
        ends = [
            f"{r['rank']}: {r['exit']}"
            + (f" at {r['ended_after_s']} s" if r["ended_after_s"] is not None else "")
            for r in ranks
        ]
        came = any(rank["asked_after_s"] is not None for rank in ranks)
        row = [
            told["spelling"],
            f"{told['case']}, {told['ranks']} ranks",
            str(ranks[0]["built"]),
            (", ".join(dumps) or "none") if came else "did not come so far",
            ", ".join(ends),
        ]
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    arrival() if "--arrival" in sys.argv else table()
