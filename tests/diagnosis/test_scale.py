"""Large jobs: the time of a diagnosis grows with the number of entries and no faster."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence
from keepstep.diagnosis.verdict import Fault, Outcome
from keepstep.recorder.entries import Entries
from keepstep.recorder.model import (
    Backend,
    Dump,
    Entry,
    Frame,
    Group,
    GroupName,
    Operation,
    RankDump,
    State,
)
from keepstep.recorder.read import read_tree
from tests.recorder.writing import write_job

TENSOR = 8  # ranks of a tensor group
WORLD_NAME = GroupName("0", "default_pg")


def big_job(ranks: int, entries: int, stalled: int, pending: int = 1) -> tuple[RankDump, ...]:
    """Dumps with wrapped ring buffers; one rank lacks the last call, which the others wait in."""
    everyone = tuple(range(ranks))
    kinds = ("all_reduce", "_all_gather_base", "barrier")
    operations = [Operation(name, ((1024,),), ("Float",)) for name in kinds]
    stacks = [
        tuple(Frame(f"f{depth}", "/srv/train.py", 10 * kind + depth) for depth in range(12))
        for kind in range(3)
    ]
    names = [GroupName(str(number), "") for number in range(ranks)]
    found = []
    for rank in everyone:
        tensor = tuple(range(rank - rank % TENSOR, rank - rank % TENSOR + TENSOR))
        data = tuple(range(rank % TENSOR, ranks, TENSOR))
        own = (
            (GroupName(f"tp{tensor[0]}", "tp"), tensor),
            (GroupName(f"dp{data[0]}", "dp"), data),
            (WORLD_NAME, everyone),
        )
        last = entries - (rank == stalled)
        written = tuple(
            Entry(
                record=10**6 + at,
                pg_id=at % 3,
                group=own[at % 3][0],
                operation=operations[at % 3],
                sequence=10**5 + at // 3,
                op_id=10**5 + at // 3,
                state=State.COMPLETED if at < entries - pending else State.SCHEDULED,
                created_ns=at,
                stack=stacks[at % 3],
            )
            for at in range(last)
        )
        groups = tuple(Group(name, members) for name, members in own)
        dump = Dump(version="2.10", backend=Backend.NCCL_LEGACY, groups=groups, entries=written)
        found.append(RankDump(dump=dump, path=Path(names[rank].name), rank=rank))
    return tuple(found)


def seconds(dumps: tuple[RankDump, ...]) -> float:
    began = time.process_time()
    assert diagnose(Evidence(dumps=dumps)).outcome in (Outcome.CULPRIT, Outcome.NO_RANK)
    return time.process_time() - began


def test_64_ranks_with_full_buffers_take_a_moment() -> None:
    """Measured: 0.10 s. At 36 us an entry, as other analysers take, it would be 4.6 s."""
    dumps = big_job(64, 1998, stalled=21)
    verdict = diagnose(Evidence(dumps=dumps))
    assert (verdict.ranks, verdict.fault) == ((21,), Fault.STALLED)
    assert seconds(dumps) < 1.5


@pytest.mark.parametrize("pending", [1, 3, 300])
def test_four_times_the_ranks_take_about_four_times_as_long(pending: int) -> None:
    """With much pending, too, and many places at once where the waiting ends."""
    small = big_job(32, 999, stalled=5, pending=pending)
    large = big_job(128, 999, stalled=5, pending=pending)
    assert _best(large) < 10 * _best(small)


def test_a_diagnosis_makes_the_entries_that_it_looks_at_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path, ranks=6, entries=80)
    dumps = read_tree(tmp_path).dumps
    made: list[Entry] = []
    one = Entries._one

    def noted(self: Entries, at: int) -> Entry:
        made.append(one(self, at))
        return made[-1]

    monkeypatch.setattr(Entries, "_one", noted)
    monkeypatch.setattr(Entries, "_all", lambda self: pytest.fail("all entries of a rank"))
    assert diagnose(Evidence(dumps=dumps)).outcome is Outcome.HEALTHY
    assert 0 < len(made) <= 6 * 4 * 4 + 6, "a few of each rank in each of four groups"


def _best(dumps: tuple[RankDump, ...]) -> float:
    return min(seconds(dumps) for _ in range(3))
