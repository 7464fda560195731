"""``make soak``: random faults for a long time; every run must end as if nothing had happened.

    python tests/soak.py [--faults N] [--seed S] [--jobs J] [--out FILE.json]

Each run of the real job gets a handful of random faults (two in one step among them, spares and
coordinator too) and must finish with the state of the undisturbed run, with no sample lost or
repeated. Reports survivors, wrong digests and hung runs; the last two must be 0.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.running import BYTELM, Run, inject, run

STEPS = 60
RANKS = 3
SPARES = 3
KINDS = ["kill", "segv", "exit", "raise", "stop", "hang", "gil", "oom", "corrupt"]
BY_NAME = ["spare", "coordinator"]
# A flipped bit is found when replicas are compared: at a snapshot, in a recovery, at the end.
# Nobody can tell if its rank is lost before that, if that rank is the only one left, or if the same
# bit is flipped back: the step that flips a bit is the last one of a plan.
HUNG_AFTER = 600.0  # seconds; an undisturbed run takes a tenth of it


def random_faults(chance: random.Random) -> list[str]:
    """Return a plan: single faults, pairs in one step, one during a recovery, some by name."""
    faults: list[str] = []
    for step in sorted(chance.sample(range(2, STEPS - 4), 4)):
        ranks = chance.sample(range(RANKS), 2 if chance.random() < 0.4 else 1)
        for rank in ranks:
            faults.append(f"{chance.choice(KINDS)}@{step}:{rank}")
        if any(fault.startswith("corrupt") for fault in faults):
            break
    if chance.random() < 0.3:
        faults.append(f"kill@recovery:{chance.randrange(RANKS)}")
    if chance.random() < 0.5:
        faults.append(f"kill@{chance.randrange(2, STEPS - 10)}:{chance.choice(BY_NAME)}")
    return faults


def one_run(number: int, seed: int, wanted: str) -> dict[str, Any]:
    """Return what came of one run."""
    faults = random_faults(random.Random(f"{seed}/{number}"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run_job(Path(folder), faults)
        except subprocess.TimeoutExpired as late:
            tail = (late.output or b"")[-2000:]
            return {"run": number, "faults": faults, "verdict": "hung", "output": str(tail)}
    verdict = judge(found, wanted)
    return {
        "run": number,
        "faults": faults,
        "fired": len(found.summary.get("injections_fired", [])),
        "verdict": verdict,
        "recoveries": len(found.summary.get("recoveries", [])),
        "seconds": round(time.monotonic() - began, 1),
        "output": "" if verdict == "survived" else found.output[-4000:],
    }


def run_job(folder: Path, faults: list[str]) -> Run:
    """Run the job with these faults."""
    options = ("--workers", str(RANKS), "--spares", str(SPARES), "--patience", "3")
    script = (BYTELM, "--steps", str(STEPS))
    return run(folder, *options, *inject(*faults), script=script, limit=HUNG_AFTER)


def judge(found: Run, wanted: str) -> str:
    """Return survived, failed, wrong digest or wrong samples."""
    if found.exit_code != 0:
        return "failed"
    if found.digest != wanted:
        return "wrong digest"
    lost = (found.summary["samples_lost"], found.summary["samples_repeated"])
    return "survived" if lost == (0, 0) else "wrong samples"


def main() -> None:
    """Run until enough faults have happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wanted = run_job(Path(folder), []).digest
    rows: list[dict[str, Any]] = []
    happened = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        due = {pool.submit(one_run, number, options.seed, wanted) for number in range(options.jobs)}
        started = len(due)
        while due:
            done, due = wait(due, return_when=FIRST_COMPLETED)
            for row in (future.result() for future in done):
                rows.append(row)
                happened += row.get("fired", 0)
                print(f"{happened:4d} faults, run {row['run']}: {row['verdict']}", flush=True)
                if row["output"]:
                    print(row["faults"], row["output"], flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(rows, indent=1))
            while happened < options.faults and len(due) < options.jobs:
                due.add(pool.submit(one_run, started, options.seed, wanted))
                started += 1
    verdicts = [row["verdict"] for row in rows]
    counted = {name: verdicts.count(name) for name in sorted(set(verdicts))}
    print(f"{happened} faults in {len(rows)} runs: {counted}")
    sys.exit(0 if set(verdicts) == {"survived"} else 1)


if __name__ == "__main__":
    main()
