"""The coordinator's journal: what is on disk gives the same job, whenever its writer died."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import journal
from keepstep.runtime.journal import DamagedJournalError, Journal
from keepstep.runtime.membership import Membership
from keepstep.runtime.recoveries import Recoveries, Recovery
from keepstep.runtime.settings import Settings
from tests.runtime.test_simulated_job import SimulatedJob, several_hosts


def as_json(job: Membership) -> Any:
    """Return what is to be found again, without the count of restarts."""
    record = json.loads(json.dumps(journal.to_record(job)))
    del record["plain"]["coordinator_restarts"]
    return record


def written_at_each_fault(path: Path) -> tuple[SimulatedJob, list[tuple[int, Any]]]:
    """Return a job with faults, and size and content of its journal after each change."""
    sim = several_hosts(hosts=3, workers=2, spares=1, snapshots_every=4, steps=60)
    found, states = Journal(path), []
    for step in range(2, 40, 4):
        sim.until_step(step)
        if step % 8 == 2:
            sim.kill(sim.job.members[step % 6])
            sim.rounds(3)
        found.write(sim.job)
        states.append((path.stat().st_size, as_json(sim.job)))
    found.close()
    return sim, states


def test_changes_are_appended_and_give_the_job_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sim, states = written_at_each_fault(path)
    assert len(path.read_bytes().splitlines()) > 4
    again = journal.load(path, sim.now)
    assert as_json(again) == states[-1][1]
    assert again.recoveries.coordinator_restarts == 1


def test_nothing_is_written_when_nothing_has_changed(tmp_path: Path) -> None:
    sim = several_hosts(hosts=2)
    sim.until_step(3)
    found = Journal(tmp_path / "journal")
    found.write(sim.job)
    size = (tmp_path / "journal").stat().st_size
    found.write(sim.job)
    assert (tmp_path / "journal").stat().st_size == size
    found.close()


def test_a_line_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sim, states = written_at_each_fault(path)
    content = path.read_bytes()
    for (size, state), (following, _) in itertools.pairwise(states):
        for cut in {size, (size + following) // 2, max(size, following - 1)}:
            path.write_bytes(content[:cut])
            assert as_json(journal.load(path, sim.now)) == state


def test_a_last_line_with_garbage_at_its_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sim, states = written_at_each_fault(path)
    path.write_bytes(path.read_bytes()[: states[-2][0]] + bytes(100) + b"\n")
    assert as_json(journal.load(path, sim.now)) == states[-2][1]


@pytest.mark.parametrize("line", [0, 2])
def test_damage_before_the_last_line_is_an_error(tmp_path: Path, line: int) -> None:
    path = tmp_path / "journal"
    sim, _ = written_at_each_fault(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"e", b"E", 1)
    path.write_bytes(b"".join(lines))
    with pytest.raises(DamagedJournalError, match=f"line {line + 1}"):
        journal.load(path, sim.now)


def test_the_next_coordinator_writes_the_whole_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sim, states = written_at_each_fault(path)
    path.write_bytes(path.read_bytes()[:-10])
    known = [state for size, state in states if size <= path.stat().st_size][-1]
    again = journal.load(path, sim.now)
    found = Journal(path)
    found.write(again)
    found.close()
    assert len(path.read_bytes().splitlines()) == 1
    assert as_json(journal.load(path, sim.now)) == known


def test_many_changes_are_made_one_when_the_job_is_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LARGE", 10)
    path = tmp_path / "journal"
    job = Membership(settings=Settings(workers=1, spares=0), store="store:1")
    found = Journal(path)
    for step in range(5):
        job.start_step = step
        found.write(job)
    assert len(path.read_bytes().splitlines()) == 5
    found.shorten()
    assert len(path.read_bytes().splitlines()) == 1
    job.start_step = 9
    found.write(job)
    found.close()
    assert journal.load(path, 0.0).start_step == 9


def test_an_agent_that_went_and_came_back_is_the_last_of_the_ring(tmp_path: Path) -> None:
    sim = several_hosts(hosts=3)
    sim.until_step(3)
    found = Journal(tmp_path / "journal")
    found.write(sim.job)
    sim.job.agents["host0"] = sim.job.agents.pop("host0")
    found.write(sim.job)
    found.close()
    assert list(journal.load(tmp_path / "journal", sim.now).agents) == ["host1", "host2", "host0"]


times = st.floats(0.0, 1e6)
entries = st.builds(
    Recovery,
    st.sampled_from(["kill", "hang", "corrupt"]),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
    st.integers(0, 99),
    st.sampled_from(["replace", "shrink", "retry"]),
    times,
    times,
    resumed=st.none() | times,
    full=st.none() | times,
    lost_steps=st.integers(0, 9),
    source=st.sampled_from(["", "live", "snapshot"]),
    score=st.none() | times,
    step_before=st.none() | times,
)


@settings(max_examples=40, deadline=None)
@given(found=st.lists(entries, max_size=4), restarts=st.integers(0, 3), spares=st.integers(0, 3))
def test_the_book_of_faults_survives_a_restart(
    found: list[Recovery], restarts: int, spares: int
) -> None:
    job = Membership(settings=Settings(workers=1, spares=0), store="store:1")
    job.recoveries = Recoveries(found, restarts, spares)
    again = journal.from_record(json.loads(json.dumps(journal.to_record(job))), now=5.0)
    assert again.recoveries == Recoveries(found, restarts + 1, spares)
