"""A verdict in JSON and in plain text."""

from __future__ import annotations

import json

import pytest

from keepstep.diagnosis.evidence import Evidence
from keepstep.diagnosis.verdict import Belief, Confidence, Fault, Outcome, Verdict, Victim
from keepstep.incident.answer import printable, ranks_text, to_json, to_text
from keepstep.incident.gather import Arrival, Gathered
from keepstep.incident.manifest import DUMP
from keepstep.recorder.model import Finding, Severity

VERDICT = Verdict(
    outcome=Outcome.CULPRIT,
    ranks=(2,),
    fault=Fault.STALLED,
    faults=((2, Fault.STALLED),),
    confidence=Confidence.MEDIUM,
    headline="rank 2 did not enter all_reduce 6",
    evidence=("No dump of rank 2.",),
    victims=(Victim(0, (2,), "default_pg", "all_reduce 6"),),
    beliefs=(
        Belief(0, "default_pg", "all_reduce 5", "all_reduce 6", "train.py:31 step"),
        Belief(1, "default_pg", "all_reduce 5", "all_reduce 6", "train.py:31 step"),
        Belief(3, "default_pg", "", "", ""),
    ),
    would_decide=("The stack of rank 2.",),
    next_steps=("Restart rank 2.",),
)
GATHERED = Gathered(
    attempt="run_1",
    evidence=Evidence(findings=(Finding("truncated", "/x/rank_9", "it ends", Severity.ERROR),)),
    arrivals=(
        Arrival(0, DUMP, "/x/rank_0", ""),
        Arrival(2, DUMP, "", "stopped"),
        Arrival(4, DUMP, "", "stopped"),
        Arrival(5, DUMP, "", "stopped"),
    ),
)


def test_the_machine_form_has_every_part_of_the_answer() -> None:
    body = json.loads(json.dumps(to_json(GATHERED, VERDICT)))
    assert body == {
        "attempt": "run_1",
        "incident": None,
        "verdict": "culprit",
        "ranks": [2],
        "fault": "stalled",
        "faults": {"2": "stalled"},
        "confidence": "medium",
        "headline": "rank 2 did not enter all_reduce 6",
        "evidence": ["No dump of rank 2."],
        "victims": [
            {"rank": 0, "waits_for": [2], "group": "default_pg", "operation": "all_reduce 6"}
        ],
        "would_decide": ["The stack of rank 2."],
        "next_steps": ["Restart rank 2."],
        "beliefs": [
            {
                "rank": rank,
                "group": "default_pg",
                "last_completed": done,
                "pending": waits,
                "call_site": site,
            }
            for rank, done, waits, site in (
                (0, "all_reduce 5", "all_reduce 6", "train.py:31 step"),
                (1, "all_reduce 5", "all_reduce 6", "train.py:31 step"),
                (3, "", "", ""),
            )
        ],
        "artifacts": [
            {"rank": 0, "kind": DUMP, "file": "/x/rank_0", "reason": ""},
            {"rank": 2, "kind": DUMP, "file": "", "reason": "stopped"},
            {"rank": 4, "kind": DUMP, "file": "", "reason": "stopped"},
            {"rank": 5, "kind": DUMP, "file": "", "reason": "stopped"},
        ],
        "findings": [
            {"code": "truncated", "severity": "error", "path": "/x/rank_9", "text": "it ends"}
        ],
    }


@pytest.mark.parametrize(
    ("outcome", "value", "words"),
    [
        (Outcome.CULPRIT, "culprit", "CULPRIT (medium confidence): "),
        (Outcome.NO_RANK, "no_rank", "NO RANK IS TO BLAME: "),
        (Outcome.HEALTHY, "healthy", "HEALTHY: "),
        (Outcome.SLOW, "slow", "SLOW, NOT HUNG: "),
        (Outcome.UNKNOWN, "unknown", "UNKNOWN: "),
    ],
)
def test_every_outcome_has_a_word(outcome: Outcome, value: str, words: str) -> None:
    verdict = Verdict(outcome=outcome, confidence=Confidence.MEDIUM, headline="so it is")
    assert to_json(GATHERED, verdict)["verdict"] == value
    assert to_text(GATHERED, verdict).splitlines()[0] == f"{words}so it is"


def test_the_text_for_a_person() -> None:
    assert to_text(GATHERED, VERDICT) == (
        "CULPRIT (medium confidence): rank 2 did not enter all_reduce 6\n"
        "\n"
        "evidence:\n"
        "  - No dump of rank 2.\n"
        "\n"
        "this would decide:\n"
        "  - The stack of rank 2.\n"
        "\n"
        "next:\n"
        "  - Restart rank 2.\n"
        "\n"
        "what each rank believed:\n"
        "  group       ranks  last completed  waits in      called at\n"
        "  default_pg  0-1    all_reduce 5    all_reduce 6  train.py:31 step\n"
        "  default_pg  3      -               -\n"
        "\n"
        "not there:\n"
        "  - recorder dump of ranks 2, 4-5: stopped\n"
        "\n"
        "files:\n"
        "  - /x/rank_9: it ends\n"
    )


def test_files_of_which_the_same_was_found_share_a_line() -> None:
    found = tuple(Finding("x", f"/x/rank_{rank}", "it ends") for rank in range(512))
    evidence = Evidence(findings=(*found, Finding("x", "/x/other", "it is odd")))
    gathered = Gathered(attempt="", evidence=evidence, arrivals=())
    text = to_text(gathered, Verdict(outcome=Outcome.HEALTHY))
    assert text.splitlines()[-2:] == [
        "  - /x/rank_0 and 511 more: it ends",
        "  - /x/other: it is odd",
    ]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([3], "rank 3"), ([1, 0, 1, 2], "ranks 0-2"), ([0, 2, 3, 7], "ranks 0, 2-3, 7")],
)
def test_ranks_are_written_as_runs(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text
    assert ranks_text(ranks, word=False) == text.split(" ", 1)[1]


def test_what_a_file_says_cannot_steer_a_terminal() -> None:
    assert printable("rank é 3") == "rank é 3"
    assert printable("\x1b[2J\nCULPRIT\ud800") == "\\x1b[2J\\nCULPRIT\\ud800"
    evil = "x\x1b]0;y\x07\nUNKNOWN: z\ud800"
    verdict = Verdict(
        outcome=Outcome.UNKNOWN,
        headline=evil,
        evidence=(evil,),
        beliefs=(Belief(0, evil, evil, evil, evil),),
    )
    gathered = Gathered(attempt="", evidence=Evidence(), arrivals=(Arrival(0, evil, "", evil),))
    text = to_text(gathered, verdict)
    assert "\x1b" not in text
    assert text.encode().count(b"\nUNKNOWN") == 0
