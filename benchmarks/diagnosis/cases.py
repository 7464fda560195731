"""The cases: real dumps and small simulated jobs, each with the ranks that were to blame.

Most simulated ones rebuild a hang that somebody reported in public. Where the truth shows in stacks
or exit codes alone, a case is not here: all tools get the same dumps and nothing else. The truth is
what was done to the job; empty where no rank is to blame.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.diagnosis.written import write
from keepstep.recorder.model import Backend, RankDump
from tests.diagnosis.simulator import WORLD, Call, Job, Recording, alike, change, find

LEGACY = Recording()
NCCL2 = Recording(backend=Backend.NCCL2)
GLOO = Recording(backend=Backend.GLOO)

REAL = "real"
SIMULATED = "simulated"

# Folders of real dumps. The device of rank 2 or 3 was stuck in "kernel": the dumps cannot tell
# which, so to name both is exact.
REAL_TRUTHS: dict[str, tuple[int, ...]] = {
    "h200-nccl2-allreduce-hang": (2,),
    "h200-nccl-legacy-allreduce-hang": (2,),
    "h200-4rank-nccl-legacy-size": (1,),
    "h200-4rank-nccl-legacy-extra": (0,),
    "h200-4rank-nccl-legacy-p2p": (2,),
    "h200-4rank-nccl2-skip": (2,),
    "h200-4rank-nccl2-dead": (1,),
    "h200-4rank-nccl2-kernel": (2, 3),
    "h200-4rank-nccl2-healthy": (),
    "gloo-2.15": (1,),
    # NVIDIA/nvidia-resiliency-ext, tests/attribution/unit/fr_traces; not copied here.
    "nvrx-gpu_error_1st": (12, 14),
    "nvrx-lock_gil_1st": (9, 14),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One set of dumps.

    Attributes:
        truth: the ranks to blame.
        lay: writes the dumps into a folder, as ``_dump_RANK``.
    """

    name: str
    kind: str
    truth: tuple[int, ...]
    lay: Callable[[Path], None]


def all_cases(folders: Sequence[Path]) -> list[Case]:
    """Return the real cases found below ``folders`` and all simulated ones."""
    real = [
        Case(name, REAL, truth, _copier(folder / name))
        for name, truth in REAL_TRUTHS.items()
        for folder in folders
        if (folder / name).is_dir()
    ]
    return [*real, *(Case(n, SIMULATED, t, _writer(b)) for n, (t, b) in SIMULATED_CASES.items())]


def _copier(source: Path) -> Callable[[Path], None]:
    def lay(folder: Path) -> None:
        for file in source.iterdir():
            rank = file.name.rpartition("_")[2]
            if rank.isdigit():  # the others are the same as JSON, and a log
                shutil.copyfile(file, folder / f"_dump_{rank}")

    return lay


Built = tuple[Sequence[RankDump], int]  # dumps and the size of the world


def _writer(build: Callable[[], Built]) -> Callable[[Path], None]:
    def lay(folder: Path) -> None:
        dumps, world_size = build()
        write(folder, dumps, world_size)

    return lay


SIMULATED_CASES: dict[str, tuple[tuple[int, ...], Callable[[], Built]]] = {}


def simulated(name: str, *truth: int) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Register a simulated case and the ranks to blame in it."""

    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        SIMULATED_CASES[name] = truth, build
        return build

    return register


def left_by(job: Job, recording: Recording = LEGACY) -> Built:
    """Run a job until it stands still; return what it leaves."""
    job.run()
    return job.dumps(recording), len(job.ranks)


def loop(rounds: int, *calls: Call) -> list[Call]:
    return [call for _ in range(rounds) for call in calls]


def world_loop(ranks: int, rounds: int = 6) -> Job:
    """All-reduces of all ranks from one line."""
    return Job(alike(ranks, loop(rounds, Call("all_reduce", line=31))))


def two_ways() -> Job:
    """Four ranks: tensor groups [0,1] [2,3], data groups [0,2] [1,3]."""
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    programs = {
        rank: loop(
            6,
            Call("all_reduce", f"tp{rank // 2}", line=10),
            Call("_all_gather_base", f"dp{rank % 2}", line=11),
            Call("all_reduce", line=12),
        )
        for rank in range(4)
    }
    return Job(programs, groups)


def pipeline(stages: int, rounds: int = 5) -> Job:
    """A chain of sends and receives in each round, then an all-reduce of all."""
    programs: dict[int, list[Call]] = {}
    for rank in range(stages):
        calls = []
        if rank > 0:
            calls.append(Call("recv", peer=rank - 1, line=20))
        if rank + 1 < stages:
            calls.append(Call("send", peer=rank + 1, line=21))
        programs[rank] = loop(rounds, *calls, Call("all_reduce", line=22))
    return Job(programs)


# A rank does not come.


@simulated("one of 32 waits for data (pytorch#87995)", 0)
def _() -> Built:
    job = world_loop(32)
    job.ranks[0].stop_before = 4
    return left_by(job)


@simulated("stalled before its tensor group, others wait elsewhere", 3)
def _() -> Built:
    job = two_ways()
    job.ranks[3].stop_before = 9
    return left_by(job)


@simulated("the same, groups with hashed names, pending entries only", 3)
def _() -> Built:
    job = two_ways()
    job.ranks[3].stop_before = 9
    return left_by(job, replace(LEGACY, only_pending=True, hashed_names=True))


@simulated("the same, both tensor groups of one name", 3)
def _() -> Built:
    job = two_ways()
    job.ranks[3].stop_before = 9
    dumps, world_size = left_by(job)
    return [_renamed(each) for each in dumps], world_size


def _renamed(each: RankDump) -> RankDump:
    names = {
        group.name: replace(group.name, name="7") if group.name.description == "tp" else group.name
        for group in each.dump.groups
    }
    entries = tuple(replace(entry, group=names[entry.group]) for entry in each.dump.entries)
    groups = tuple(replace(group, name=names[group.name]) for group in each.dump.groups)
    return replace(each, dump=replace(each.dump, groups=groups, entries=entries))


@simulated("uneven inputs, one rank has left (pytorch#33148)", 3)
def _() -> Built:
    job = world_loop(4)
    del job.ranks[3].program[4:]
    return left_by(job, NCCL2)


@simulated("teardown, no dump of the culprit (pytorch#196968)", 1)
def _() -> Built:
    job = world_loop(3)
    job.ranks[1].stop_before = 4
    return left_by(job, NCCL2)


@simulated("dead, needed in two groups (NCCL#1013)", 2)
def _() -> Built:
    job = two_ways()
    job.ranks[2].dead = True
    job.ranks[2].stop_before = 10
    return left_by(job, NCCL2)


@simulated("stalled, the file of a victim is lost", 0)
def _() -> Built:
    job = two_ways()
    job.ranks[0].stop_before = 10
    dumps, world_size = left_by(job)
    return [each for each in dumps if each.rank != 3], world_size


@simulated("two stalled ranks without entries, pipeline (as lock_gil)", 3, 5)
def _() -> Built:
    groups = {"ep0": (0, 1, 2), "ep1": (3, 4, 5), "pp0": (0, 3), "pp1": (1, 4), "pp2": (2, 5)}
    programs: dict[int, list[Call]] = {}
    for rank in range(6):
        stage, lane = divmod(rank, 3)
        peer = rank + 3 if stage == 0 else rank - 3
        transfer = Call("send" if stage == 0 else "recv", f"pp{lane}", peer=peer)
        programs[rank] = loop(6, Call("all_reduce", f"ep{stage}"), transfer)
    job = Job(programs, groups)
    job.ranks[3].stop_before = job.ranks[5].stop_before = 6
    return left_by(job, replace(LEGACY, only_pending=True))


@simulated("two independent stalls", 1, 2)
def _() -> Built:
    groups = {"tp0": (0, 1), "tp1": (2, 3)}
    programs = {rank: loop(5, Call("all_reduce", f"tp{rank // 2}")) for rank in range(4)}
    job = Job(programs, groups)
    job.ranks[1].stop_before = 2
    job.ranks[2].stop_before = 3
    return left_by(job)


@simulated("gloo, during the hang", 1)
def _() -> Built:
    return _in_gloo(GLOO)


@simulated("gloo, after the failure", 1)
def _() -> Built:
    return _in_gloo(replace(GLOO, after_failure=True))


def _in_gloo(recording: Recording) -> Built:
    program = loop(4, Call("all_reduce", line=3), Call("barrier", "sub0", line=4))
    job = Job(alike(3, program), {"sub0": (0, 1, 2)})
    job.ranks[1].stop_before = 5
    return left_by(job, recording)


# Send and receive.


@simulated("a pipeline stage stalls", 2)
def _() -> Built:
    job = pipeline(4)
    job.ranks[2].stop_before = 7
    return left_by(job)


@simulated("a receive is left out", 2)
def _() -> Built:
    job = pipeline(4)
    job.ranks[2].program.pop(find(job, 2, lambda call: call.name == "recv", nth=3))
    return left_by(job)


@simulated("a receive from any source", 2)
def _() -> Built:
    programs = {
        0: loop(3, Call("recv", peer=None), Call("barrier")),
        1: loop(3, Call("barrier")),
        2: loop(3, Call("send", peer=0), Call("barrier")),
    }
    job = Job(programs)
    job.ranks[2].stop_before = 0
    return left_by(job)


# A rank calls something else.


@simulated("rank 0 has twice the elements (pytorch#97191)", 0)
def _() -> Built:
    job = world_loop(4)
    change(job, 0, 2, elements=2048)
    return left_by(job)


@simulated("rank 2 has twice the elements", 2)
def _() -> Built:
    job = world_loop(4)
    change(job, 2, 2, elements=2048)
    return left_by(job)


@simulated("another operation (rccl#429)", 2)
def _() -> Built:
    job = world_loop(4)
    change(job, 2, 3, name="_all_gather_base")
    return left_by(job)


@simulated("another type", 1)
def _() -> Built:
    job = world_loop(3)
    change(job, 1, 3, dtype="BFloat16")
    return left_by(job)


@simulated("of two ranks one leaves its habit", 1)
def _() -> Built:
    job = world_loop(2)
    change(job, 1, 4, elements=2048)
    return left_by(job)


@simulated("of two ranks one differs from sibling groups", 3)
def _() -> Built:
    groups = {"tp0": (0, 1), "tp1": (2, 3), "tp2": (4, 5)}
    job = Job({rank: [Call("all_reduce", f"tp{rank // 2}")] for rank in range(6)}, groups)
    change(job, 3, 0, elements=2048)
    return left_by(job)


@simulated("one gathers while its peers scatter (vllm#43547)", 2)
def _() -> Built:
    members = (0, 1, 2, 3)
    program = loop(
        4,
        Call("_reduce_scatter_base", "ep0", elements=4096, line=5),
        Call("_all_gather_base", "sp0", elements=16, line=6),
    )
    job = Job(alike(4, program), {"ep0": members, "sp0": members})
    change(job, 2, 4, name="_all_gather_base", elements=16, line=6)
    return left_by(job)


@simulated("an extra barrier under rank 0 (autocast#386)", 0)
def _() -> Built:
    program = [*loop(3, Call("all_reduce", line=31)), Call("barrier", line=50)]
    job = Job(alike(4, program))
    job.ranks[0].program.insert(3, Call("barrier", line=77, function="save_checkpoint"))
    return left_by(job)


@simulated("a rank without tokens skips and goes on (Megatron#4851)", 2)
def _() -> Built:
    return left_by(_skipping())


@simulated("the same in nccl2, all asked for dumps", 2)
def _() -> Built:
    return left_by(_skipping(), replace(NCCL2, everyone_writes=True))


def _skipping() -> Job:
    job = two_ways()
    job.ranks[2].program.pop(find(job, 2, lambda call: call.group == WORLD, nth=3))
    return job


@simulated("one of two took another branch (sglang#33289)", 1)
def _() -> Built:
    pair = (0, 1)
    calls = (Call("broadcast", "cpu0", line=3), Call("_all_gather_base", "tp0", line=9))
    job = Job(alike(2, loop(4, *calls)), {"cpu0": pair, "tp0": pair})
    job.ranks[1].program.pop(5)
    return left_by(job)


# A device does not finish.


@simulated("endless kernel, starts recorded", 1)
def _() -> Built:
    job = two_ways()
    job.ranks[1].stuck_from = 6
    return left_by(job, replace(LEGACY, timing=True))


@simulated("endless kernel, starts not recorded: 0 or 1", 0, 1)
def _() -> Built:
    job = two_ways()
    job.ranks[1].stuck_from = 6
    return left_by(job)


@simulated("two stuck devices in one group (as gpu_error)", 1, 2)
def _() -> Built:
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 1, 2, 3)}
    programs = {
        rank: loop(6, Call("all_reduce", f"tp{rank // 2}"), Call("_all_gather_base", "dp0"))
        for rank in range(4)
    }
    job = Job(programs, groups)
    job.run_ahead = 4
    for rank in (1, 2):
        job.ranks[rank].blind_from = 5
        job.ranks[rank].stuck_from = 6
    return left_by(job, replace(LEGACY, only_pending=True))


# Nobody is to blame.


@simulated("healthy, finished")
def _() -> Built:
    return left_by(world_loop(4))


@simulated("healthy, ring buffers have wrapped")
def _() -> Built:
    job = two_ways()
    for rank in (0, 1):
        own = f"tp{rank // 2}"
        job.ranks[rank].program = [
            copy
            for call in job.ranks[rank].program
            for copy in ([call] * 4 if call.group == own else [call])
        ]
    return left_by(job, replace(LEGACY, entries=7))


@simulated("healthy, under way in several groups")
def _() -> Built:
    calls = {
        rank: loop(
            20,
            Call("all_reduce", f"left{rank % 2}", asynchronous=True),
            Call("broadcast", f"right{rank // 2}", asynchronous=True),
            Call("all_reduce", asynchronous=True),
        )
        for rank in range(4)
    }
    groups = {"left0": (0, 2), "left1": (1, 3), "right0": (0, 1), "right1": (2, 3)}
    job = Job(calls, groups)
    job.run()
    for rank, own in job.ranks.items():
        for name, shown in {f"left{rank % 2}": 16, f"right{rank // 2}": 15, WORLD: 13}.items():
            mine = [issued for issued in own.issued if issued.call.group == name]
            for issued in mine[shown + (rank == 3 and name != WORLD) :]:
                issued.hidden = True
    return job.dumps(NCCL2), len(job.ranks)


@simulated("all inside, one a moment later")
def _() -> Built:
    job = world_loop(4)
    for rank in job.ranks.values():
        rank.stop_before = 5
        rank.stuck_from = 4
    job.ranks[0].stuck_from = job.ranks[1].stuck_from = 6
    return left_by(job, replace(LEGACY, timing=True))


@simulated("all inside, library stuck (marin#7344)")
def _() -> Built:
    job = world_loop(8)
    for rank in job.ranks.values():
        rank.stuck_from = 4
    return left_by(job)


@simulated("communicators block each other (rccl#2191)")
def _() -> Built:
    job = two_ways()
    for rank in job.ranks.values():
        rank.stuck_from = 9
    return left_by(job)


@simulated("a circle over three groups")
def _() -> Built:
    groups = {"a0": (0, 1), "b0": (1, 2), "c0": (2, 0)}
    first = {0: ("a0", "c0"), 1: ("b0", "a0"), 2: ("c0", "b0")}
    programs = {rank: [Call("all_reduce", name) for name in names] for rank, names in first.items()}
    return left_by(Job(programs, groups))


@simulated("exchange plans differ in all-to-all (ART#840)")
def _() -> Built:
    job = Job(alike(4, loop(12, Call("all_to_all", "cp0", line=8))), {"cp0": (0, 1, 2, 3)})
    job.run()
    for rank, last in {0: 9, 1: 10, 2: 10, 3: 11}.items():
        for issued in job.ranks[rank].issued[last:]:
            issued.hidden = True
    return job.dumps(LEGACY), len(job.ranks)
