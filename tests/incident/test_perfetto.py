"""The trace of an incident: what viewers need of it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from keepstep.cli.main import execute
from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence
from keepstep.incident import perfetto
from keepstep.incident.gather import Gathered, gather
from keepstep.incident.perfetto import to_trace
from tests.diagnosis.test_scale import big_job

CASES = (
    "h200-4rank-nccl-legacy-extra",
    "h200-4rank-nccl-legacy-p2p",
    "h200-4rank-nccl2-dead",
    "h200-4rank-nccl2-healthy",
    "h200-4rank-nccl2-kernel",
)

Event = dict[str, Any]


def trace_of(gathered: Gathered) -> dict[str, Any]:
    """The whole trace, parsed."""
    text = "".join(to_trace(gathered, diagnose(gathered.evidence), "a folder"))
    parsed = json.loads(text)
    assert isinstance(parsed, dict)
    return parsed


def recorded(checkout: Path, name: str) -> dict[str, Any]:
    """The trace of a real job."""
    (gathered,) = gather(checkout / "tests" / "data" / "recorder" / name)
    return trace_of(gathered)


def tracks(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Slices by process and track."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "XB":
            found[event["pid"], event["tid"]].append(event)
    return found


@pytest.mark.parametrize("name", CASES)
def test_slices_of_a_track_follow_each_other(checkout: Path, name: str) -> None:
    """Viewers drop slices that overlap without lying in each other."""
    trace = recorded(checkout, name)
    for slices in tracks(trace["traceEvents"]).values():
        free = 0
        for each in slices:
            begin = round(each["ts"] * 1000)
            assert begin >= free or each["tid"] == perfetto.WAITED_FOR
            if each["ph"] == "X":
                assert each["dur"] >= 0
                free = begin + round(each["dur"] * 1000)


@pytest.mark.parametrize("name", CASES)
def test_every_arrow_goes_from_a_slice_to_a_slice(checkout: Path, name: str) -> None:
    events = recorded(checkout, name)["traceEvents"]
    slices = tracks(events)
    ends: dict[int, list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event["ph"])
            still_open = [each for each in slices[event["pid"], event["tid"]] if each["ph"] == "B"]
            assert any(each["ts"] <= event["ts"] for each in still_open)
    assert all(pair == ["s", "f"] for pair in ends.values())
    assert ends


def test_pending_operations_stay_open_and_say_so(checkout: Path) -> None:
    events = recorded(checkout, "h200-4rank-nccl2-kernel")["traceEvents"]
    names = {
        (e["pid"] - 1, e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    still_open = sorted(
        (e["pid"] - 1, names[e["pid"] - 1, e["tid"]], e["name"])
        for e in events
        if e["ph"] == "B" and e["tid"] != perfetto.WAITED_FOR
    )
    assert (2, "tp [2, 3]", "all_reduce 6 (pending)") in still_open
    assert (0, "default_pg", "all_reduce 6 (pending)") in still_open
    assert not [each for each in still_open if each[0] == 0 and each[1].startswith("tp")]


def test_a_rank_without_a_dump_is_a_process_that_others_point_to(checkout: Path) -> None:
    events = recorded(checkout, "h200-4rank-nccl2-dead")["traceEvents"]
    own = [event for event in events if event["pid"] == 2]
    assert "rank 1, blamed" in [e["args"]["name"] for e in own if e["name"] == "process_name"]
    slices = [event["name"] for event in own if event["ph"] == "B"]
    assert slices[0] == "no dump: no file of this rank is there"
    assert slices[1] == "all_reduce 6 of default_pg: awaited by ranks 0, 2 and 3"
    assert sum(event["ph"] == "f" for event in own) == 3


def test_hosts_are_aligned_on_their_last_events_and_the_metadata_says_it() -> None:
    dumps = big_job(4, 30, stalled=2)
    trace = trace_of(Gathered(attempt="", evidence=Evidence(dumps=dumps), arrivals=()))
    assert "last event of every host" in trace["metadata"]["times"]
    last: dict[int, float] = {}
    for event in trace["traceEvents"]:
        if event["ph"] in "XB" and event["tid"] != perfetto.WAITED_FOR:
            last[event["pid"]] = max(last.get(event["pid"], 0), event["ts"])
    assert len(last) == 4
    assert len(set(last.values())) == 1


def test_a_large_trace_keeps_the_newest_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "SLICES", 8 * 40)
    gathered = Gathered(attempt="", evidence=Evidence(dumps=big_job(8, 90, stalled=5)), arrivals=())
    trace = trace_of(gathered)
    slices = [
        e for e in trace["traceEvents"] if e["ph"] in "XB" and e["tid"] != perfetto.WAITED_FOR
    ]
    assert len(slices) == 8 * 40
    assert trace["metadata"]["operations left out"] == 8 * 90 - 1 - 8 * 40


def test_what_a_rank_waits_in_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "SLICES", 8 * 40)
    dumps = big_job(8, 90, stalled=-1, pending=60)
    trace = trace_of(Gathered(attempt="", evidence=Evidence(dumps=dumps), arrivals=()))
    records = [
        event["args"]["record"]
        for event in trace["traceEvents"]
        if event["ph"] in "XB" and event["pid"] == 1 and event["tid"] != perfetto.WAITED_FOR
    ]
    assert records[:4] == [10**6 + at for at in (30, 31, 32, 50)]


def test_the_command_writes_it(checkout: Path, tmp_path: Path) -> None:
    folder = checkout / "tests" / "data" / "recorder" / "h200-4rank-nccl2-dead"
    target = tmp_path / "trace.json"
    assert execute(["explain", str(folder), "--perfetto", str(target)]) == 0
    assert json.loads(target.read_text())["metadata"]["source"] == str(folder)
