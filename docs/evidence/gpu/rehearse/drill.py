"""Do one drill of a plan in the folder of its rehearsal, so that several can be done side by side.

    python drill.py PLAN OUT NAME       NAME as the rehearsal calls it; no name: print all names
    python drill.py PLAN OUT NAME SECONDS   beside the rehearsal: wait so long for an abort

A drill is not timed, so it loses nothing by its neighbours; `keepstep rehearse PLAN --out OUT` then
finds its record and goes on with the rest. Stacks must exist.
"""

from __future__ import annotations

import sys
from pathlib import Path

from keepstep.canary.plan import read_plan
from keepstep.drills.hang import hang
from keepstep.drills.limits import Limits
from keepstep.rehearsal.drilling import Tools, drills_of
from keepstep.rehearsal.folder import Folder
from keepstep.rehearsal.scripts import script_of
from keepstep.stack.named import find_stack


def main() -> None:
    """Do it."""
    plan, folder, wanted = read_plan(Path(sys.argv[1])), Folder(Path(sys.argv[2])), sys.argv[3:]
    stacks = {name: find_stack(stack) for name, stack in plan.stacks.items()}
    scripts = {name: script_of(plan, name) for name in plan.jobs}
    if len(wanted) == 2:
        _, stack, asked = wanted[0].split("/")
        spelling, *levers = asked.split("+")
        record = hang(
            stacks[stack],
            spelling,
            folder=folder.path,
            limits=Limits(abort_s=float(wanted[1])),
            variables=dict(lever.split("=", 1) for lever in levers),
            name=f"{wanted[0]}/long",
        )
        (folder.path / "record.json").write_text(record.model_dump_json(indent=1))
        print(f"{record.name}: {record.verdict} in {record.seconds:.0f} s: {record.reason}")
        return
    tools = Tools(stacks=stacks, scripts=scripts, say=lambda text: print(text, flush=True))
    for drill in drills_of(plan):
        if not wanted:
            print(drill.name)
        elif drill.name == wanted[0]:
            folder.path.mkdir(parents=True, exist_ok=True)
            record = drill.work(tools, folder.drill_folder(drill.name))
            folder.write_drill(record)
            print(f"{record.name}: {record.verdict} in {record.seconds:.0f} s: {record.reason}")


if __name__ == "__main__":
    main()
