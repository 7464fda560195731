"""Random training programs with one planted fault, and what a right answer to them is.

What counts as right was fixed before anything was measured:

- ``stall``, ``death``, ``skip``, ``extra``, ``lost_receive``, ``device_after``: exactly the rank.
- ``uneven``: exactly the rank that ended early.
- ``device_before``: exactly the rank; or, since devices that have not started and devices that wait
  leave equal dumps, the members of the collective that it holds up, named together with what would
  decide; or nobody, with what would decide, if that collective has every rank.
- ``size``, ``dtype``, ``operation``: exactly the rank; in a group of two also both, with what would
  decide.
- ``inversion``: no rank (deadlock), or exactly the rank whose order was changed.
- ``slow``: the outcome is slow.
- ``healthy`` (everything has finished; recorders may show it late): no rank is named.
- ``under_way`` (one set of dumps of a job whose hosts have issued everything): no rank is named.
  The same dumps can come from a stuck device, so suspects named with what would decide are *open*,
  not wrong.

No fault lies in the first round, and none so late that a host comes to the end of its program:
jobs go on for longer than these. How far a host runs ahead of its device is bounded.

A verdict is *wrong* if it names a rank that is not guilty without saying what would decide, or
names ranks of which none is guilty. The rest is *open*: neither exact nor wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.diagnosis.verdict import Outcome, Verdict
from keepstep.recorder.model import Backend
from tests.diagnosis.simulator import NEVER, WORLD, Call, Job, Recording

MESHES = [  # tensor, data, pipeline
    (2, 2, 1),
    (2, 1, 2),
    (1, 4, 1),
    (2, 2, 2),
    (4, 2, 1),
    (2, 4, 1),
    (1, 8, 1),
    (1, 3, 1),
    (4, 2, 2),
    (2, 2, 4),
    (1, 2, 4),
]
TENSOR = ["all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast"]
DATA = ["all_reduce", "_reduce_scatter_base", "_all_gather_base", "all_to_all"]
WHOLE = ["all_reduce", "barrier", "broadcast"]
SIZES = [16, 1024, 4096, 65536]
ROUNDS = 7

FAULTS = (
    "stall",
    "death",
    "device_before",
    "device_after",
    "size",
    "dtype",
    "operation",
    "skip",
    "extra",
    "uneven",
    "inversion",
    "lost_receive",
    "slow",
    "healthy",
    "under_way",
)


@dataclass(slots=True)
class Planted:
    """A job in which something went wrong, and what."""

    fault: str
    guilty: frozenset[int]
    evidence: Evidence
    held: frozenset[int] = frozenset()  # members of the collective that the fault is in
    whole: bool = False  # that collective has every rank


def random_job(pick: random.Random) -> Job:
    """A job with tensor, data and pipeline groups that repeats a random round of calls."""
    tensor, data, stages = pick.choice(MESHES)
    size = tensor * data * stages
    groups: dict[str, tuple[int, ...]] = {}
    of: dict[int, dict[str, str]] = {rank: {"world": WORLD} for rank in range(size)}

    def add(kind: str, members: list[int]) -> None:
        name = f"{kind}{sum(key.startswith(kind) for key in groups)}"
        groups[name] = tuple(members)
        for member in members:
            of[member][kind] = name

    if tensor > 1:
        for start in range(0, size, tensor):
            add("tp", list(range(start, start + tensor)))
    if data > 1 and data < size:
        for stage in range(stages):
            for lane in range(tensor):
                base = stage * tensor * data + lane
                add("dp", [base + tensor * step for step in range(data)])
    if stages > 1:
        for lane in range(tensor * data):
            add("pp", [lane + tensor * data * stage for stage in range(stages)])
    kinds = sorted({kind for own in of.values() for kind in own})
    template = [_template(pick, kind, 100 + 10 * n) for n, kind in enumerate(kinds)]
    for n in range(pick.randint(0, 3)):
        template.append(_template(pick, pick.choice(kinds), 200 + 10 * n))
    pick.shuffle(template)
    host_waits = pick.random() < 0.4
    programs: dict[int, list[Call]] = {}
    for rank in range(size):
        program: list[Call] = []
        for _ in range(ROUNDS):
            for kind, call in template:
                group = of[rank][kind]
                if kind != "pp":
                    program.append(replace(call, group=group))
                    continue
                chain = groups[group]
                at = chain.index(rank)
                if at > 0:
                    program.append(replace(call, name="recv", group=group, peer=chain[at - 1]))
                if at + 1 < len(chain):
                    line = call.line + 1
                    peer = chain[at + 1]
                    program.append(replace(call, name="send", group=group, peer=peer, line=line))
            if host_waits:
                program.append(Call("wait"))
        programs[rank] = program
    job = Job(programs, groups)
    job.run_ahead = pick.choice([5, 10, 2 * max(len(p) for p in programs.values()) // ROUNDS])
    return job


def _template(pick: random.Random, kind: str, line: int) -> tuple[str, Call]:
    names = {"tp": TENSOR, "dp": DATA, "world": WHOLE, "pp": ["pipe"]}[kind]
    name = pick.choice(names)
    return kind, Call(
        name,
        elements=0 if name == "barrier" else pick.choice(SIZES),
        dtype="" if name == "barrier" else "BFloat16" if pick.random() < 0.3 else "Float",
        asynchronous=kind != "pp" and pick.random() < 0.2,
        line=line,
        function=f"{kind}_call",
    )


def random_recording(pick: random.Random) -> Recording:
    """Recorders of a random backend."""
    backend = pick.choice(
        [Backend.NCCL_LEGACY, Backend.NCCL_LEGACY, Backend.NCCL2, Backend.NCCL2, Backend.TORCHCOMMS]
    )
    legacy = backend is Backend.NCCL_LEGACY
    return Recording(
        backend=backend,
        entries=2000 if backend is Backend.TORCHCOMMS else pick.choice([2000, 2000, 24]),
        stacks=backend is not Backend.TORCHCOMMS and pick.random() < 0.75,
        timing=legacy and pick.random() < 0.2,
        hashed_names=pick.random() < 0.2,
        everyone_writes=pick.random() < 0.5,
    )


def plant(fault: str, seed: int) -> Planted | None:
    """Plant one fault in a random job; None if it made no difference there."""
    pick = random.Random(f"{fault} {seed}")
    job = random_job(pick)
    recording = random_recording(pick)
    rank = pick.choice(sorted(job.ranks))
    if fault in ("healthy", "under_way"):
        return _nothing_wrong(pick, job, recording, fault)
    if fault == "slow":
        return _slow(pick, job, recording, rank)
    if recording.backend is Backend.TORCHCOMMS and fault == "lost_receive":
        recording = replace(recording, backend=Backend.NCCL_LEGACY)
    place = _PLANTS[fault](pick, job, rank)
    if place is None:
        return None
    guilty, call = place
    job.run()
    dumps = job.dumps(recording)
    stopped = {number: r for number, r in job.ranks.items() if r.at < len(r.program)}
    pending = any(not i.shown for r in job.ranks.values() for i in r.issued)
    if not pending or not (stopped or pending):
        return None
    observations: dict[int, Observation] = {}
    if fault == "death":
        observations[rank] = Observation(life=Life.DEAD, why="killed by SIGKILL")
    if fault == "uneven":
        observations[rank] = Observation(life=Life.CLEAN_EXIT)
    members = job.groups[call.group]
    return Planted(
        fault,
        guilty,
        Evidence(dumps=dumps, observations=observations, expected_ranks=frozenset(job.ranks)),
        frozenset(members) if not call.transfer else frozenset({rank, call.peer or 0}),
        len(members) == len(job.ranks),
    )


Place = tuple[frozenset[int], Call] | None


def _some_call(
    pick: random.Random, job: Job, rank: int, wanted: Callable[[Call], bool]
) -> int | None:
    """A call of a rank that is wanted, not in its first round nor in its last."""
    program = job.ranks[rank].program
    round_size = len(program) // ROUNDS
    found = range(round_size, _last(job, rank))
    places = [i for i in found if not program[i].quiet and wanted(program[i])]
    return pick.choice(places) if places else None


def _last(job: Job, rank: int) -> int:
    """The last place of a fault: no host comes to the end of its program while it lasts."""
    size = len(job.ranks[rank].program)
    return size - size // ROUNDS - job.run_ahead


def _collective(call: Call) -> bool:
    return not call.transfer


def _anything(call: Call) -> bool:
    return True


def _stop(pick: random.Random, job: Job, rank: int) -> Place:
    at = _some_call(pick, job, rank, _anything)
    if at is None:
        return None
    job.ranks[rank].stop_before = at
    return frozenset({rank}), job.ranks[rank].program[at]


def _die(pick: random.Random, job: Job, rank: int) -> Place:
    job.ranks[rank].dead = True
    return _stop(pick, job, rank)


def _device_before(pick: random.Random, job: Job, rank: int) -> Place:
    at = _some_call(pick, job, rank, _collective)
    if at is None:
        return None
    job.ranks[rank].stuck_from = at
    return frozenset({rank}), job.ranks[rank].program[at]


def _device_after(pick: random.Random, job: Job, rank: int) -> Place:
    at = _some_call(pick, job, rank, lambda c: _collective(c) and "to_all" not in c.name)
    if at is None:
        return None
    job.ranks[rank].blind_from = at
    job.ranks[rank].stuck_from = at + 1
    return frozenset({rank}), job.ranks[rank].program[at]


def _changed(**how: Callable[[Call], object]) -> Callable[[random.Random, Job, int], Place]:
    def change(pick: random.Random, job: Job, rank: int) -> Place:
        plain = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast")
        at = _some_call(pick, job, rank, lambda call: call.name in plain)
        if at is None:
            return None
        program = job.ranks[rank].program
        fields = {name: value(program[at]) for name, value in how.items()}
        program[at] = replace(program[at], **fields)  # type: ignore[arg-type]
        return frozenset({rank}), program[at]

    return change


def _skip(pick: random.Random, job: Job, rank: int) -> Place:
    at = _some_call(pick, job, rank, _collective)
    if at is None:
        return None
    return frozenset({rank}), job.ranks[rank].program.pop(at)


def _extra(pick: random.Random, job: Job, rank: int) -> Place:
    at = _some_call(pick, job, rank, _collective)
    if at is None:
        return None
    call = replace(job.ranks[rank].program[at], line=777, function="save", asynchronous=False)
    job.ranks[rank].program.insert(at, call)
    return frozenset({rank}), call


def _uneven(pick: random.Random, job: Job, rank: int) -> Place:
    at = _some_call(pick, job, rank, _collective)
    if at is None:
        return None
    call = job.ranks[rank].program[at]
    del job.ranks[rank].program[at:]
    return frozenset({rank}), call


def _inversion(pick: random.Random, job: Job, rank: int) -> Place:
    program = job.ranks[rank].program
    pairs = [
        at
        for at in range(len(program) // ROUNDS, _last(job, rank))
        if _collective(program[at])
        and not program[at].quiet
        and _collective(program[at + 1])
        and not program[at + 1].quiet
        and program[at].group != program[at + 1].group
        and not (program[at].asynchronous or program[at + 1].asynchronous)
    ]
    if not pairs:
        return None
    at = pick.choice(pairs)
    program[at], program[at + 1] = program[at + 1], program[at]
    return frozenset({rank}), program[at]


def _lost_receive(pick: random.Random, job: Job, rank: int) -> Place:
    receivers = [r for r, own in job.ranks.items() if any(c.name == "recv" for c in own.program)]
    if not receivers:
        return None
    rank = pick.choice(receivers)
    at = _some_call(pick, job, rank, lambda call: call.name == "recv")
    if at is None:
        return None
    return frozenset({rank}), job.ranks[rank].program.pop(at)


_PLANTS: dict[str, Callable[[random.Random, Job, int], Place]] = {
    "stall": _stop,
    "death": _die,
    "device_before": _device_before,
    "device_after": _device_after,
    "size": _changed(elements=lambda call: call.elements * 2 + 1),
    "dtype": _changed(dtype=lambda call: "Half"),
    "operation": _changed(name=lambda call: "reduce"),
    "skip": _skip,
    "extra": _extra,
    "uneven": _uneven,
    "inversion": _inversion,
    "lost_receive": _lost_receive,
}


def _nothing_wrong(pick: random.Random, job: Job, recording: Recording, fault: str) -> Planted:
    """A job that has ended, or one under way."""
    job.run_ahead = NEVER
    for rank in job.ranks.values():
        rank.program = [call for call in rank.program if call.name != "wait"]
    if fault == "under_way":
        total = sum(len(r.program) for r in job.ranks.values()) // len(job.ranks)
        job.run(budget=pick.randint(0, total), pick=pick)
    else:
        job.run()
        if pick.random() < 0.5:
            show_late(pick, job)
    recording = replace(recording, everyone_writes=True)
    evidence = Evidence(dumps=job.dumps(recording), expected_ranks=frozenset(job.ranks))
    return Planted(fault, frozenset(), evidence)


def show_late(pick: random.Random, job: Job) -> None:
    """Let every rank's recorder learn of the last calls of each group some time later."""
    for rank in job.ranks.values():
        for group in {issued.call.group for issued in rank.issued}:
            mine = [issued for issued in rank.issued if issued.call.group == group]
            shown = pick.randint(max(0, len(mine) - 4), len(mine))
            for issued in mine[shown:]:
                issued.hidden = True


def _slow(pick: random.Random, job: Job, recording: Recording, rank: int) -> Planted | None:
    """One rank pauses, is seen, and comes back."""
    at = _some_call(pick, job, rank, _anything)
    if at is None:
        return None
    recording = replace(recording, everyone_writes=True)
    job.ranks[rank].stop_before = at
    job.run()
    earlier = job.dumps(recording)
    job.ranks[rank].stop_before = at + 1 + pick.randint(0, 3)
    job.run()
    evidence = Evidence(
        dumps=job.dumps(recording), earlier=earlier, expected_ranks=frozenset(job.ranks)
    )
    return Planted("slow", frozenset({rank}), evidence)


def score(planted: Planted, verdict: Verdict) -> str:
    """Return "exact", "open" or "wrong"."""
    named = frozenset(verdict.ranks)
    if planted.fault == "slow":
        return "exact" if verdict.outcome in (Outcome.SLOW, Outcome.HEALTHY) else "wrong"
    if planted.fault == "healthy":
        return "wrong" if named else "exact"
    if planted.fault == "under_way":
        return "exact" if not named else "open" if verdict.would_decide else "wrong"
    if named == planted.guilty:
        return "exact"
    if named and not verdict.would_decide:
        return "wrong"
    if named and not named & planted.guilty:
        return "wrong"
    if planted.fault == "device_before":
        together = bool(verdict.would_decide) and named == planted.held
        nobody = bool(verdict.would_decide) and not named and planted.whole
        return "exact" if together or nobody else "open"
    if planted.fault in ("size", "dtype", "operation"):
        both = len(planted.held) == 2 and named == planted.held
        return "exact" if both else "open"
    if planted.fault == "inversion" and verdict.outcome is Outcome.NO_RANK:
        return "exact"
    return "open"
