"""``keepstep checkpoint prune``: remove old checkpoints, and none that a rollback needs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from keepstep.checkpoint.ledger import ledger_of
from keepstep.checkpoint.prune import Plan, plan_prune
from keepstep.checkpoint.prune import prune as remove
from keepstep.checkpoint.store import LocalStore, open_store
from keepstep.cli.checkpoint_answer import RootArgument, answered, count_text, size_text
from keepstep.cli.checkpoint_window import due_lines, window_facts, window_line
from keepstep.exit_codes import ExitCode


@answered
def prune(
    root: RootArgument,
    keep: Annotated[
        int | None,
        typer.Option(help="How many of the newest complete ones stay.", show_default=False),
    ] = None,
    copies: Annotated[
        bool, typer.Option("--copies", help="Only copies beside the run that no window needs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go and what stays; change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Remove old checkpoints of a run, but none that is protected."""
    if copies == (keep is not None):
        raise ValueError("prune needs --keep N, or --copies to leave the run itself alone")
    store = open_store(root)
    if not isinstance(store, LocalStore):
        raise ValueError(
            f"{root}: prune removes in local folders only: a store has no way to take many objects "
            "out of sight in one step. is_protected tells a script of your own what must stay"
        )
    plan = plan_prune(store, keep, ledger_of(store).read()) if dry_run else remove(store, keep)
    if as_json:
        facts = asdict(plan)
        facts["window"] = plan.window and window_facts(plan.window)
        print(json.dumps({"root": root, "keep": keep, "dry_run": dry_run, **facts}))
    else:
        print("\n".join(_lines(root, plan, dry_run)))
    return ExitCode.PASS


def _lines(root: str, plan: Plan, dry_run: bool) -> list[str]:
    said = "would remove" if dry_run else "removed"
    what = f"{count_text(len(plan.remove), 'checkpoint')}"
    if plan.copies:
        what += f" and {count_text(len(plan.copies), 'protected copy').replace('copys', 'copies')}"
    lines = [f"{root}: {said} {what}, {size_text(plan.frees)}"]
    lines += [f"  {each.name} ({size_text(each.bytes)})" for each in plan.remove]
    lines += [f"  copy of {each.name} ({size_text(each.bytes)})" for each in plan.copies]
    lines += [f"  stays: {name}: {reason}" for name, reason in plan.stay.items()]
    if plan.window is not None and not plan.stay and not plan.copies:
        lines.append("  what lies beside the run stays: the open window needs it")
    if plan.window is not None:
        lines.append(f"  {window_line(plan.window)}")
        lines += due_lines(root, plan.window)
    return lines
