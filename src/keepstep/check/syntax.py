"""Source that this Python refuses: does the Python of the stack, which will run it, accept it?"""

from __future__ import annotations

import platform

from keepstep.check.ask import NoAnswerError, ask
from keepstep.check.finding import Finding, NotLooked
from keepstep.check.question import Question

_CODE = "KS001"
_PATIENCE_S = 30.0


def settle_syntax(
    findings: list[Finding], question: Question
) -> tuple[list[Finding], list[NotLooked]]:
    """Return the findings, without syntax errors that are none for the stack's Python."""
    refused = list(dict.fromkeys(each.file for each in findings if each.code == _CODE))
    if not refused or not question.python:
        return findings, []
    try:
        answer = ask(question.python, "ask_syntax.py", {"files": refused}, _PATIENCE_S)
    except NoAnswerError:
        return findings, []  # the packages of that stack are told as not looked at
    fine = {file for file, ok in zip(refused, answer["accepted"], strict=True) if ok}
    kept = [each for each in findings if each.code != _CODE or each.file not in fine]
    return kept, [
        NotLooked(
            what=file,
            why=f"Python {answer['python']} of the stack accepts it, and this one "
            f"({platform.python_version()}) does not",
            matters=True,
            mend="run keepstep with the Python of the stack",
        )
        for file in sorted(fine)
    ]
