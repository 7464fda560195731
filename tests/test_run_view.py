"""What `keepstep run` says: a sentence for every event, the live view, the closing table."""

from __future__ import annotations

import ast
import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from keepstep.cli.run_live import Picture, Rate, WorkerTerminal, draw, header, printable
from keepstep.cli.run_sentences import SENTENCES, Fact, sentence
from keepstep.cli.run_summary import render_summary, table
from keepstep.cli.run_view import QUIET, Narrator, RunView
from keepstep.runtime.board import Board, Condition, Row

WHO = {"worker": 1, "rank": 1, "pid": 8123, "host": "127.0.0.1", "generation": 1}
AGENT = {"agent": "a7", "host": "10.0.0.2", "generation": 1}

SAVED = {"worker": 0, "step": 50, "folder": "/r/step-000050", "seconds": 1.24, "held_s": 0.0042}

TWO_RANKS = {
    "event": "live", "generation": 1, "world_size": 2, "step": 0, "steps": 40, "spares": 1,
}  # fmt: skip
TOLD: list[tuple[Fact, str]] = [
    (
        {"event": "checkpoint_saved", "generation": 1, **SAVED},
        "checkpoint /r/step-000050 after 1.2 s; training was held for 4 ms",
    ),
    (
        {"event": "checkpoint_left_out", "generation": 1, **SAVED, "why": "OSError: disk full"},
        "no checkpoint of step 50: OSError: disk full",
    ),
    (
        {"event": "from_checkpoint", "generation": 0, "step": 50},
        "the job goes on from a checkpoint of step 50",
    ),
    (
        {"event": "torch_versions_differ", **WHO, "found": ["2.15.0", "2.14.1"]},
        "ranks run different versions of PyTorch (2.15.0, 2.14.1): results may differ in the last "
        "bits, and 2.15 and older cannot save one checkpoint together (dcp.save ends with 'too "
        "many values to unpack') unless every rank of 2.15 calls "
        "keepstep.checkpoint.write_old_format() first; seen at rank 1 (worker 1, pid 8123)",
    ),
    (
        {"event": "incident", "incident": "j-generation-0001-kill-rank-1", "folder": "/i/j/a7"},
        "evidence of the fault is in /i/j/a7",
    ),
    (
        {"event": "events_lost", "why": "/e/events.jsonl: No space left on device"},
        "events cannot be written: /e/events.jsonl: No space left on device; training goes on",
    ),
    (
        {"event": "incident_lost", "incident": "j-generation-0001-kill-rank-1", "why": "disk full"},
        "the evidence of j-generation-0001-kill-rank-1 could not be written: disk full",
    ),
    (
        {"event": "unjudged", "incident": "j-generation-0001-kill-rank-1", "folder": "/i/j/a7"},
        "no verdict on j-generation-0001-kill-rank-1; try: keepstep explain /i/j/a7",
    ),
    (
        {
            "event": "verdict",
            "generation": 2,
            "incident": "j-generation-0001-stop-rank-2",
            "folder": "/i/j/a7",
            "verdict": "culprit",
            "ranks": [2],
            "fault": "stalled",
            "headline": "rank 2 did not enter all_reduce 16; ranks 0 and 1 wait for it",
            "after_s": 0.6,
        },
        "diagnosis (stalled): rank 2 did not enter all_reduce 16; ranks 0 and 1 wait for it; "
        "more: keepstep explain /i/j/a7",
    ),
    (
        {"event": "agent_joined", **AGENT, "workers": 3, "spares": 1},
        "host 10.0.0.2 (agent a7) joined with 3 workers and 1 spare; they are starting",
    ),
    (
        {"event": "agent_back", **AGENT},
        "host 10.0.0.2 (agent a7) is in contact with the coordinator again",
    ),
    (
        {"event": "agent_lost_contact", **AGENT, "lease_s": 3.0},
        "no contact with host 10.0.0.2 (agent a7): its workers may go on for 3.0 s, then they are "
        "fenced and replaced",
    ),
    (
        {"event": "agent_gone", **AGENT, "why": "no news for 3.5 s"},
        "host 10.0.0.2 (agent a7) is down or cut off: no news for 3.5 s; its workers are fenced, "
        "its ranks replaced",
    ),
    ({"event": "agent_gone", **AGENT, "why": "it said goodbye"}, "host 10.0.0.2 (agent a7) left"),
    (
        {"event": "worker_joined", **WHO, "torch": "2.15.0"},
        "rank 1 (worker 1, pid 8123) called keepstep.join() with torch 2.15.0",
    ),
    (
        {"event": "worker_ready", **WHO, "rank": None, "after_s": 12.34},
        "worker 1 (pid 8123) is a warm spare, 12.3 s after its start",
    ),
    (
        {"event": "fault_injected", **WHO, "step": 40, "injection": 0, "spec": "kill@40:1"},
        "injected on purpose: kill@40:1 strikes rank 1 (worker 1, pid 8123) at step 40",
    ),
    (
        {"event": "fault_injected", "generation": 1, "target": "coordinator", "step": 30},
        "injected on purpose: the coordinator is killed at step 30",
    ),
    (
        {"event": "worker_exited", **WHO, "code": -9, "step": 40, "spares": [3], "fenced": None},
        "rank 1 (worker 1, pid 8123) was killed by SIGKILL during step 40; replacing it with spare "
        "worker 3",
    ),
    (
        {"event": "worker_exited", **WHO, "host": "10.0.0.2", "code": -11, "step": 4, "spares": []},
        "rank 1 (worker 1, pid 8123, host 10.0.0.2) was killed by SIGSEGV, a segmentation fault "
        "during step 4; no spare is ready, so the job waits for the next one",
    ),
    (
        {"event": "worker_exited", **WHO, "code": 7, "step": 4, "spares": [], "on_loss": "shrink"},
        "rank 1 (worker 1, pid 8123) ended with exit code 7 during step 4; no spare is ready, so "
        "the job goes on with fewer ranks",
    ),
    (
        {"event": "worker_exited", **WHO, "code": -9, "step": 4, "spares": [3], "fenced": "hang"},
        "rank 1 (worker 1, pid 8123) is fenced: its process is gone; replacing it with spare "
        "worker 3",
    ),
    (
        {"event": "worker_exited", **WHO, "rank": None, "code": -9, "ready": True},
        "spare worker 1 (pid 8123) was killed by SIGKILL; starting another one",
    ),
    (
        {"event": "worker_exited", **WHO, "rank": None, "code": 1, "ready": False},
        "worker 1 (pid 8123) ended with exit code 1 before it reached Job.train",
    ),
    (
        {"event": "member_formed", **WHO, "generation": 2, "step": 20, "state_s": 0.0776},
        "rank 1 (worker 1, pid 8123) entered generation 2 (state 0.08 s)",
    ),
    (
        {
            "event": "members_formed",
            "generation": 2,
            "step": 20,
            "count": 512,
            "slowest": [
                {"worker": 7, "rank": 7, "step": 20, "reconfigure_s": 0.5, "state_s": 0.0776},
                {"worker": 9, "rank": 9, "step": 20, "reconfigure_s": 0.5},
            ],
        },
        "512 ranks entered generation 2; the slowest: rank 7 (reconfigure 0.50 s, state 0.08 s), "
        "rank 9 (reconfigure 0.50 s)",
    ),
    (
        {"event": "form_failed", **WHO, "error": "RuntimeError: a peer\nvanished"},
        "rank 1 (worker 1, pid 8123) could not enter generation 1: RuntimeError: a peer vanished; "
        "trying again with a new generation",
    ),
    (
        {
            "event": "form",
            "generation": 2,
            "start_step": 20,
            "members": [0, 3, 2],
            "receivers": [3],
            "lost_steps": 1,
            "why": "nobody could compare it",
        },
        "generation 2 begins at step 20 with workers 0, 3 and 2; state goes to worker 3; 1 step to "
        "repeat: nobody could compare it",
    ),
    (
        {
            "event": "live",
            "generation": 1,
            "world_size": 3,
            "wanted": 3,
            "step": 0,
            "steps": 40,
            "spares": 0,
            "starting": 1,
        },
        "generation 1 is in step: 3 ranks, 0 spares ready, 1 starting, from step 0 of 40",
    ),
    (
        {
            **TWO_RANKS,
            "processes": [
                {"rank": 0, "worker": 0, "pid": 70, "host": "127.0.0.1"},
                {"rank": 1, "worker": 1, "pid": 71, "host": "127.0.0.1"},
            ],
        },
        "generation 1 is in step: 2 ranks, 1 spare ready, from step 0 of 40; rank by rank: pids 70 "
        "and 71",
    ),
    (
        {
            **TWO_RANKS,
            "processes": [
                {"rank": 0, "worker": 0, "pid": 70, "host": "10.0.0.1"},
                {"rank": 1, "worker": 1, "pid": 70, "host": "10.0.0.2"},
            ],
        },
        "generation 1 is in step: 2 ranks, 1 spare ready, from step 0 of 40",
    ),
    (
        {
            "event": "live",
            "generation": 2,
            "world_size": 2,
            "wanted": 3,
            "step": 9,
            "steps": 40,
            "spares": 1,
        },
        "generation 2 is formed: 2 of 3 ranks, 1 spare ready, from step 9 of 40",
    ),
    (
        {
            "event": "resumed",
            "generation": 2,
            "step": 41,
            "after_s": 0.4667,
            "since_s": 0.5613,
            "lost_steps": 0,
            "replaced": [[1, 3]],
            "world_size": 3,
            "wanted": 3,
        },
        "generation 2 is in step again: step 40 committed 0.56 s after the loss (noticed after "
        "0.09 s), 0 steps lost; rank 1 is now worker 3",
    ),
    (
        {
            "event": "resumed",
            "generation": 2,
            "step": 41,
            "after_s": 0.5,
            "since_s": 0.5,
            "lost_steps": 1,
            "why": "nobody could compare it",
            "replaced": [],
            "world_size": 2,
            "wanted": 3,
        },
        "generation 2 is in step again: step 40 committed 0.50 s after the fault (noticed after "
        "0.00 s), 1 step lost (nobody could compare it); 2 of 3 ranks",
    ),
    (
        {"event": "replicas_differ", "generation": 1, "step": 40, "outvoted": [5], "ranks": [1]},
        "the replicas differ after 40 steps: the majority contradicts rank 1, which will be "
        "replaced; nobody's live state is used, the job goes back to a snapshot on which all "
        "agreed",
    ),
    (
        {"event": "replicas_differ", "generation": 1, "step": 40, "outvoted": [], "ranks": []},
        "the replicas differ after 40 steps, and no majority says which is right; nobody's live "
        "state is used, the job goes back to a snapshot on which all agreed",
    ),
    (
        {
            "event": "replicas_differ",
            "generation": 2,
            "step": 8,
            "outvoted": [],
            "ranks": [],
            "repeated": "step 8 was repeated and ended in another state",
        },
        "the replicas differ after 8 steps: step 8 was repeated and ended in another state; "
        "nobody's live state is used, the job goes back to a snapshot on which all agreed",
    ),
    (
        {"event": "changed_late", **WHO, "step": 9},
        "rank 1 (worker 1, pid 8123) changed its per-rank state after the last collective of step "
        "9: if a rank is lost there from now on, the job goes back to a snapshot",
    ),
    (
        {
            "event": "snapshot_left_out",
            **WHO,
            "step": 10,
            "folder": "/dev/shm/x",
            "why": "No space left on device",
        },
        "rank 1 (worker 1, pid 8123) could not keep a snapshot after 10 steps in /dev/shm/x: No "
        "space left on device; training goes on without new ones, and a loss that needs one goes "
        "back further or ends the job. In a container: more --shm-size",
    ),
    ({"event": "interrupted"}, "interrupted: all processes of the job are being ended"),
    (
        {"event": "proven", "generation": 2, "step": 8},
        "the state after 8 steps is proven: the repetition ended in that of the rank that alone "
        "had got there",
    ),
    (
        {"event": "back_to_snapshot", "generation": 2, "step": 30, "why": "no rank is clean"},
        "going back to the snapshot taken after 30 steps: no rank is clean; the steps since then "
        "are repeated",
    ),
    (
        {"event": "step_failed", **WHO, "step": 4, "error": "ValueError: x", "action": "retry"},
        "rank 1 (worker 1, pid 8123) raised in step 4: ValueError: x; repeating the step on all "
        "ranks",
    ),
    (
        {
            "event": "step_failed",
            **WHO,
            "step": 4,
            "error": "out of memory",
            "origin": "memory",
            "action": "replace",
        },
        "rank 1 (worker 1, pid 8123) ran out of memory in step 4: out of memory; replacing the "
        "process",
    ),
    (
        {
            "event": "stall",
            **WHO,
            "step": 4,
            "fault": "hang",
            "age_s": 1.94,
            "evidence": "it sleeps",
        },
        "rank 1 (worker 1, pid 8123) hangs in step 4, without progress for 1.9 s: it sleeps; "
        "fencing it",
    ),
    (
        {"event": "stall", "generation": 1, "step": 4, "fault": "unknown", "evidence": "all wait"},
        "the job stalls in step 4 and no rank can be named: all wait; repeating the step with a "
        "new generation",
    ),
    (
        {
            "event": "straggler",
            **WHO,
            "score": 3.14,
            "gain_per_step_s": 0.42,
            "steps_left": 60,
            "cost_s": 0.6,
        },
        "rank 1 (worker 1, pid 8123) is slow: its own part of a step takes 3.1 times the others', "
        "which costs 0.42 s a step for 60 steps to come; a spare takes its place at a step "
        "boundary, for about 0.6 s",
    ),
    (
        {"event": "blamed", **WHO, "incident": "x", "why": "rank 1 never completed all_reduce 6"},
        "the diagnosis names rank 1 (worker 1, pid 8123); a spare takes its place at a step "
        "boundary, as soon as one is ready",
    ),
    (
        {"event": "fence", **WHO, "why": "did not leave its step within 4.0 s"},
        "fencing rank 1 (worker 1, pid 8123): did not leave its step within 4.0 s",
    ),
    (
        {"event": "halt", "generation": 1, "why": "connections broke"},
        "leaving generation 1: connections broke",
    ),
    (
        {"event": "waiting_for_spare", "generation": 2, "starting": [4, 5]},
        "no spare is ready: waiting for workers 4 and 5, starting now",
    ),
    (
        {"event": "waiting_for_spare", "generation": 2, "starting": []},
        "no spare is ready and none is starting: waiting for another host",
    ),
    (
        {"event": "growing", "generation": 2, "ready": [4]},
        "worker 4 ready: empty ranks are filled at a step boundary",
    ),
    (
        {"event": "finish", "generation": 2, "steps": 40, "state_sha256": "b758937eac8e95f7876ce"},
        "all 40 steps are done and every replica agrees (state sha256 b758937eac8e)",
    ),
    (
        {"event": "abort", "generation": 2, "why": "a rank was lost", "code": 1},
        "giving up: a rank was lost",
    ),
    (
        {"event": "refused", "agent": "a9", "why": "wrong secret"},
        "refused a connection of agent a9: wrong secret",
    ),
    (
        {"event": "cut_off", **AGENT, "why": "no contact for a whole lease"},
        "host 10.0.0.2 (agent a7) is cut off: no contact for a whole lease",
    ),
    (
        {
            "event": "coordinator_sought",
            **AGENT,
            "address": "10.0.0.1:29400",
            "why": "Connection refused",
            "after_s": 32.4,
        },
        "no coordinator answers at 10.0.0.1:29400 for 32 s (Connection refused); still trying. Is "
        "keepstep run up on the first host, with --port and --host of that address?",
    ),
    (
        {"event": "went_on", **AGENT, "after_s": 0.1},
        "host 10.0.0.2 (agent a7) is still part of the job: its workers go on",
    ),
    (
        {"event": "open_for_hosts", "address": "10.0.0.1:29400", "hosts": 2},
        "waiting for 2 hosts in all; the others join with the same KEEPSTEP_SECRET and --join "
        "10.0.0.1:29400",
    ),
    (
        {"event": "held_up", **AGENT, "seconds": 12.34},
        "host 10.0.0.2 (agent a7) did not run for 12.3 s (suspended, or starved of processors); "
        "its workers go on when the coordinator says that they are still part of the job",
    ),
    (
        {"event": "coordinator_away", **AGENT, "lease_s": 3.0},
        "lost contact with the coordinator; the workers of this host go on, for 3.0 s if the "
        "coordinator's host does not answer either",
    ),
    (
        {"event": "coordinator_back", **AGENT, "after_s": 0.634},
        "in contact with the coordinator again after 0.63 s",
    ),
    (
        {"event": "coordinator_exited", "pid": 99, "code": -9, "lease_s": 3.0},
        "the coordinator (pid 99) was killed by SIGKILL; training goes on while another one starts",
    ),
    (
        {"event": "coordinator_exited", "pid": 99, "code": -9, "stopped_s": 1.04, "lease_s": 3.0},
        "the coordinator (pid 99) had been stopped for 1.0 s (SIGSTOP) and was killed for it; "
        "training goes on while another one starts",
    ),
    (
        {"event": "store_exited", "pid": 98, "code": -9},
        "the job's store (pid 98) was killed by SIGKILL; training goes on, but processes that run "
        "now cannot reach its successor: the next loss costs the way back to a snapshot",
    ),
    (
        {"event": "job_joined", **AGENT, "coordinator": "10.0.0.1:29400"},
        "joined the job of the coordinator at 10.0.0.1:29400; what happens is told on the host "
        "that was started first",
    ),
    (
        {"event": "metrics", "url": "http://127.0.0.1:9464/metrics"},
        "metrics for Prometheus: http://127.0.0.1:9464/metrics",
    ),
]


@pytest.mark.parametrize(("fact", "text"), TOLD, ids=[f"{f['event']}" for f, _ in TOLD])
def test_an_event_in_words(fact: Fact, text: str) -> None:
    assert sentence(fact) == text


def emitted(package: Path) -> Iterator[str]:
    """Every name that the source gives to an event."""
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr in ("_event", "event", "_tell", "tell") and node.args:
                    yield from _texts(node.args[0])
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield from _texts(value)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_every_event_of_the_source_has_a_sentence_and_an_example(checkout: Path) -> None:
    names = set(emitted(checkout / "src" / "keepstep" / "runtime"))
    assert len(names) > 25
    assert names - set(SENTENCES) == set()
    assert set(SENTENCES) - names == set(), "sentences for events that nobody emits"
    assert {fact["event"] for fact, _ in TOLD} == set(SENTENCES)
    assert names >= QUIET


def test_an_unknown_event_or_one_without_its_facts_is_told_as_facts() -> None:
    assert sentence({"event": "novelty", "time": 1.0, "worker": 3, "why": None}) == (
        "novelty worker=3"
    )
    assert sentence({"event": "finish", "generation": 2}) == "finish generation=2"


# --- what is left out -----------------------------------------------------------------------------


def tell(*facts: Fact, narrator: Narrator | None = None) -> list[str]:
    narrator = narrator or Narrator()
    told = (narrator.tell({"time": 0.0, "generation": 1, **fact}) for fact in facts)
    return [line.split(" ", 1)[1] for line in told if line is not None]


EXIT = {"event": "worker_exited", **WHO, "code": -9, "step": 40, "spares": [3]}
RESUMED = {"event": "resumed", "step": 41, "after_s": 0.5, "generation": 2}
LIVE = {"event": "live", "generation": 2, "world_size": 3, "step": 4, "steps": 9, "spares": 0}


def test_a_rank_that_was_lost_twice_in_a_recovery_has_one_successor() -> None:
    text = "".join(tell({**RESUMED, "replaced": [[1, 4], [1, 4], [0, 3]]}))
    assert text.count("is now worker") == 2


def test_a_recovery_is_two_lines() -> None:
    lines = tell(
        EXIT,
        {"event": "halt", "why": "worker 1 is gone"},
        {"event": "form", "start_step": 40, "members": [0, 3], "receivers": [], "lost_steps": 0},
        {"event": "member_formed", **WHO},
        LIVE,
        RESUMED,
    )
    assert len(lines) == 2
    assert lines[0].startswith("rank 1 (worker 1, pid 8123) was killed by SIGKILL during step 40")
    assert lines[1].startswith("generation 2 is in step again")


def test_a_change_without_a_fault_is_told_when_it_is_formed() -> None:
    assert tell(RESUMED, LIVE)[1].startswith("generation 2 is formed")


def test_a_halt_is_told_when_nothing_else_explains_it() -> None:
    assert tell({"event": "halt", "why": "connections broke"}) == [
        "leaving generation 1: connections broke"
    ]


def test_a_fence_is_told_once() -> None:
    stall = {"event": "stall", **WHO, "step": 4, "fault": "hang", "age_s": 1.0, "evidence": "x"}
    fence = {"event": "fence", **WHO, "why": "hang: x"}
    assert len(tell(stall, fence)) == 1
    assert len(tell(fence)) == 1


def test_a_spare_is_told_once_and_not_after_the_end() -> None:
    ready = {"event": "worker_ready", **WHO, "rank": None, "after_s": 3.0}
    assert len(tell(ready, ready)) == 1
    assert tell({**ready, "generation": 0}) == []
    assert tell({"event": "finish", "steps": 4, "state_sha256": "ab"}, ready)[1:] == []
    assert tell({**EXIT, "rank": None, "ready": True}, ready)[1:] == []


def test_agents_that_come_back_without_having_been_lost_are_no_news() -> None:
    back = {"event": "agent_back", **AGENT}
    assert tell(back) == []
    assert len(tell({"event": "agent_lost_contact", **AGENT, "lease_s": 3.0}, back)) == 2


def test_the_host_of_the_coordinator_tells_its_exit_and_the_others_the_lost_contact() -> None:
    away = {"event": "coordinator_away", **AGENT, "lease_s": 3.0}
    assert tell(away) == []
    assert len(tell(away, narrator=Narrator(owns_coordinator=False))) == 1


def test_lines_carry_name_and_clock() -> None:
    stream = io.StringIO()
    view = RunView(stream, Narrator())
    view.show({"time": time.time(), "event": "abort", "why": "enough", "code": 1})
    view.close()
    name, clock, rest = stream.getvalue().split(" ", 2)
    assert (name, len(clock), rest) == ("keepstep", 8, "giving up: enough\n")


def test_a_reader_who_does_not_read_stops_nobody() -> None:
    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            threading.Event().wait(30)
            return len(text)

    view = RunView(Stuck(), Narrator())
    began = time.monotonic()
    for _ in range(1000):
        view.show({"time": 0.0, "event": "abort", "why": "enough", "code": 1})
    assert time.monotonic() - began < 1.0


# --- the live view --------------------------------------------------------------------------------


def row(rank: int | None, condition: Condition = Condition.STEP, **facts: Any) -> Row:
    given: dict[str, Any] = {
        "wid": 100 + rank if rank is not None else 7,
        "rank": rank,
        "host": "10.0.0.1",
        "pid": 4000 + (rank or 0),
        "condition": condition,
        "step": 40,
        "committed": 40,
        "generation": 2,
        "step_seconds": 0.5,
        "busy_seconds": 0.04,
        "age": 0.1,
    }
    return Row(**{**given, **facts})


def board(*rows: Row, **facts: Any) -> Board:
    given: dict[str, Any] = {
        "host": "10.0.0.1",
        "generation": 2,
        "world_size": len(rows),
        "committed": 40,
        "steps": 100,
        "median_step": 0.5,
        "spares_ready": 1,
        "recoveries": (("kill", "replace", 1), ("hang", "replace", 2)),
        "exits": (("kill", 1),),
        "coordinator_up": True,
        "lease_left": 2.5,
        "rows": rows,
    }
    return Board(**{**given, **facts})


def seen(picture: Picture, width: int = 100) -> list[str]:
    """The picture as a terminal shows it."""
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system=None).print(picture)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert "\n".join(lines).rstrip() == str(picture).rstrip()
    return lines


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_the_view_has_a_row_for_each_rank_and_spare() -> None:
    picture = draw(
        board(
            row(0, Condition.COLLECTIVE, waits_for=(1,), age=1.04),
            row(1),
            row(None, Condition.SPARE),
        ),
        ["12:03:41 rank 1 hangs"],
        rate=1.9,
        width=100,
        height=30,
    )
    lines = seen(picture)
    assert lines[0] == "keepstep generation 2 · step 40 of 100 · median step 0.50 s · 1.90 steps/s"
    assert lines[1].strip() == "1 spare ready · 3 recoveries · coordinator up"
    heads = ["rank", "worker", "host", "pid", "state", "step", "own", "step time", "progress"]
    assert cells(lines[2]) == heads
    same = ["40.0 ms", "0.50 s"]
    assert cells(lines[3]) == [
        "0",
        "100",
        "10.0.0.1",
        "4000",
        "waits for rank 1",
        "40",
        *same,
        "1.0 s",
    ]
    assert cells(lines[4]) == ["1", "101", "10.0.0.1", "4001", "in step", "40", *same, "0.1 s"]
    assert cells(lines[5]) == ["-", "7", "10.0.0.1", "4000", "warm spare", *same]
    assert lines[7] == "12:03:41 rank 1 hangs"


def test_columns_keep_their_places() -> None:
    short = draw(board(row(0, busy_seconds=0.0)), [], rate=0, width=100, height=30)
    long = draw(board(row(0, Condition.COLLECTIVE)), [], rate=0, width=100, height=30)
    assert seen(short)[2] == seen(long)[2]


def test_many_ranks_are_folded_and_the_trouble_stays_visible() -> None:
    rows = [row(rank, Condition.COLLECTIVE, waits_for=(3, 9), age=2.0) for rank in range(128)]
    rows[3] = row(3, Condition.STEP, age=2.5)
    rows[9] = row(9, Condition.LOST)
    rows += [row(None, Condition.SPARE, wid=wid) for wid in range(500, 516)]
    lines = seen(draw(board(*rows), [], rate=0, width=110, height=30), width=110)
    assert len(lines) <= 8
    assert lines[3].split()[:2] == ["3", "103"]
    assert "lost" in lines[4]
    assert lines[5].split()[:4] == ["0-2,4-8,10-127", "126", "of", "them"]
    assert "waits in a collective, for ranks 3 and 9" in lines[5]
    assert "16 of them" in lines[6]


@pytest.mark.parametrize("ranks", [2, 20, 33, 500])
@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (40, 12)])
def test_the_view_fits_the_terminal(ranks: int, width: int, height: int) -> None:
    events = [f"12:00:{number:02} " + "what happened is a long story " * 6 for number in range(20)]
    rows = [row(rank) for rank in range(ranks)]
    picture = draw(board(*rows), events, rate=1.0, width=width, height=height)
    assert len(picture.lines) < height
    assert max(len(text) for text, _ in picture.lines) < width
    assert any("12:00:19" in text for text, _ in picture.lines), "the newest event is shown"


def test_the_header_says_when_nobody_coordinates() -> None:
    _, means = header(board(coordinator_up=False), 0.0)
    assert means.endswith("coordinator away, lease 2.5 s")
    starting = board(row(None, Condition.STARTING), spares_ready=0, recoveries=(("kill", "r", 1),))
    assert header(starting, 0.0)[1].startswith("0 spares ready, 1 starting · 1 recovery")


def test_the_rate_counts_pauses_and_forgets_what_was_undone() -> None:
    rate = Rate()
    assert rate.add(0.0, 10) == 0.0
    assert rate.add(4.0, 18) == pytest.approx(2.0)
    assert rate.add(8.0, 18) == pytest.approx(1.0)
    assert rate.add(9.0, 5) == 0.0


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain\r", "plain"),
        ("10%\r50%\r100%", "100%"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("up\x1b[A\x1b[2Kgone", "upgone"),
        ("bell\x07", "bell"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_output_of_workers_cannot_move_the_cursor(raw: str, shown: str) -> None:
    assert printable(raw) == shown


def test_output_of_workers_comes_in_whole_lines_and_complete() -> None:
    terminal = WorkerTerminal(io.StringIO())
    script = "import sys; print(sys.stdout.isatty()); print('half', end='', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=terminal.slave
    )
    taken = ""
    deadline = time.monotonic() + 20
    while "True" not in taken and time.monotonic() < deadline:
        taken += terminal.take()
        time.sleep(0.01)
    assert taken == "True\n"
    child.communicate(b"\n")
    terminal.finish()
    assert terminal.take(everything=True) == "half\n"
    assert terminal.take(everything=True) == ""


# --- the end --------------------------------------------------------------------------------------

SUMMARY: dict[str, Any] = {
    "outcome": "completed",
    "why": "",
    "steps": 40,
    "world_size": 3,
    "generations": 2,
    "state_sha256": "b758937eac8e95f7876ce",
    "samples_lost": 0,
    "samples_repeated": 0,
    "median_step_s": 0.3832,
    "coordinator_restarts": 1,
    "spares_lost": 0,
    "recoveries": [
        {
            "fault": "kill",
            "rank": 1,
            "worker": 1,
            "step": 20,
            "action": "replace",
            "state_from": "live",
            "detected_after_s": 0.0946,
            "next_step_after_s": 0.5613,
            "full_strength_after_s": None,
            "lost_steps": 0,
        }
    ],
}


def test_the_closing_table() -> None:
    assert render_summary(SUMMARY, 0, "").splitlines() == [
        "keepstep: completed: 40 steps on 3 ranks, 2 generations, median step 0.383 s",
        "  fault  rank  step  action   detected after  next step after  full strength after  "
        "steps lost",
        "  kill      1    20  replace          0.09 s           0.56 s                never  "
        "         0",
        "keepstep: also: 1 restart of the coordinator",
        "keepstep: proven: 0 samples lost, 0 repeated; the replicas agree on the final state "
        "(sha256 b758937eac8e)",
    ]


def test_a_failure_says_why_and_what_to_do() -> None:
    failed = {**SUMMARY, "outcome": "failed", "state_sha256": "", "why": "step 20 failed 3 times"}
    lines = render_summary(failed, 1, "").splitlines()
    assert lines[0].startswith("keepstep: failed (exit code 1): 40 steps")
    assert lines[1] == "keepstep: why: step 20 failed 3 times"
    assert lines[-2].endswith("no final state was agreed on")
    assert lines[-1].startswith("keepstep: next: SIGKILL comes from outside the process")


def test_a_run_without_faults_and_one_without_a_summary() -> None:
    assert "keepstep: no fault" in render_summary({**SUMMARY, "recoveries": []}, 0, "")
    assert render_summary(None, 130, "interrupted") == (
        "keepstep: ended with exit code 130: interrupted\n"
    )
    nothing = {**SUMMARY, "steps": 0, "samples_lost": None, "outcome": "failed", "recoveries": []}
    assert "proven: nothing: no step was committed" in render_summary(nothing, 1, "x")
    unnamed = {**SUMMARY["recoveries"][0], "rank": None}
    assert "unknown" in render_summary({**SUMMARY, "recoveries": [unnamed] * 60}, 0, "")


def test_a_fault_that_did_not_happen_is_not_passed_over() -> None:
    fired = {**SUMMARY, "injections_fired": [0]}
    assert "never happened: stop@9:2\n" in render_summary(fired, 0, "", ["kill@20:1", "stop@9:2"])
    assert "never happened" not in render_summary(fired, 0, "", ["kill@20:1"])


def test_columns_of_numbers_lean_right() -> None:
    assert table(("a", "name"), [("10", "x"), ("never", "yy")]) == [
        "      a  name",
        "     10  x",
        "  never  yy",
    ]


# --- for real: a script that ends before it joins needs no torch ----------------------------------

RUN = [sys.executable, "-c", "from keepstep.cli.main import main; main()", "run", "--workers", "1"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text("print('hello from the script'); raise SystemExit(3)\n")
    return path


def test_a_pipe_gets_lines(script: Path) -> None:
    ended = subprocess.run([*RUN, str(script)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "hello from the script\n" in ended.stdout
    lines = ended.stderr.splitlines()
    assert "metrics for Prometheus: http://127.0.0.1:" in lines[0]
    assert any("ended with exit code 3 before it reached Job.train" in line for line in lines)
    assert lines[-1].startswith("keepstep: next: ")
    assert not [line for line in lines if not line.startswith(("keepstep", "  "))]
    assert "\x1b" not in ended.stderr


def left_on_screen(text: str) -> list[str]:
    """What a tall terminal shows in the end: knows line feeds, cursor up and erase line."""
    lines, place = [""], 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\n":
            place += 1
            lines += [""] * (place == len(lines))
        elif part == "\x1b[2K":
            lines[place] = ""
        elif re.fullmatch(r"\x1b\[\d+A", part):
            place -= int(part[2:-1])
        elif part != "\r" and not part.startswith("\x1b"):
            lines[place] += part
    return [line.rstrip() for line in lines if line.strip()]


def test_a_terminal_keeps_output_lines_and_table_but_not_the_view(script: Path) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen([*RUN, str(script)], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    text = b""
    try:
        while data := os.read(master, 1 << 16):
            text += data
    except OSError:
        pass
    os.close(master)
    assert process.wait(60) == 1
    lines = left_on_screen(text.decode())
    assert "hello from the script" in lines
    assert len([line for line in lines if "giving up" in line]) == 1
    assert lines[-1].startswith("keepstep: next: ")
    assert not [line for line in lines if line.startswith(("keepstep starting", "rank  worker"))]
    assert text.rpartition(b"\x1b[?25")[2].startswith(b"h"), "the cursor is visible again"
