"""``keepstep checkpoint finalize``: close a rollback window because the new version is accepted."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from keepstep.checkpoint.protect import Answer
from keepstep.checkpoint.protect import finalize as close_window
from keepstep.checkpoint.store import open_store
from keepstep.cli.checkpoint_answer import RootArgument, answered
from keepstep.cli.checkpoint_window import closed_lines, window_facts
from keepstep.exit_codes import ExitCode


@answered
def finalize(
    root: RootArgument,
    met: Annotated[
        list[str] | None,
        typer.Option(help="A criterion that holds, as NUMBER=EVIDENCE; may be repeated."),
    ] = None,
    waive: Annotated[
        list[str] | None,
        typer.Option(help="A criterion that is dropped, as NUMBER=REASON; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> ExitCode:
    """Close a rollback window: the new version is accepted; nothing is removed."""
    answers = _answers(met or [], waive or [])
    window = close_window(open_store(root), answers)
    if as_json:
        told = {number: asdict(answer) for number, answer in answers.items()}
        print(json.dumps({"root": root, "finalized": window_facts(window), "answers": told}))
    else:
        lines = [f"{root}: finalized: the way back to PyTorch {window.minor} is no longer kept"]
        for number, text in enumerate(window.accept, start=1):
            answer = answers[number]
            lines.append(f"  {number}: {text}: {'met' if answer.met else 'waived'}: {answer.why}")
        print("\n".join([*lines, *closed_lines(root, window)]))
    return ExitCode.PASS


def _answers(met: list[str], waived: list[str]) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    for option, texts in (("--met", met), ("--waive", waived)):
        for text in texts:
            number, _, why = text.partition("=")
            if not number.strip().isdecimal() or not why.strip():
                raise ValueError(f"{option} {text}: wanted NUMBER=TEXT, such as 1='run 77 equal'")
            if int(number) in answers:
                raise ValueError(f"{option} {text}: criterion {int(number)} has two answers")
            answers[int(number)] = Answer(met=option == "--met", why=why.strip())
    return answers
