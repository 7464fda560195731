"""``keepstep checkpoint release``: close a rollback window without a verdict."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from keepstep.checkpoint.protect import release as close_window
from keepstep.checkpoint.store import open_store
from keepstep.cli.checkpoint_answer import RootArgument, answered
from keepstep.cli.checkpoint_window import closed_lines, window_facts
from keepstep.exit_codes import ExitCode


@answered
def release(
    root: RootArgument,
    because: Annotated[str, typer.Option(help="Why the way back is given up.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Close a rollback window before the new version is accepted; nothing is removed."""
    if not because.strip():
        raise ValueError("--because: wanted the reason, for those who look for a way back later")
    window = close_window(open_store(root), because)
    if as_json:
        print(json.dumps({"root": root, "released": window_facts(window), "because": because}))
    else:
        print("\n".join([f"{root}: released: {because}", *closed_lines(root, window)]))
    return ExitCode.PASS
