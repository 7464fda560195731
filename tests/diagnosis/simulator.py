"""A small discrete simulation of ranks that call collectives, and of what their recorders keep.

Every rank runs a list of calls. Its host issues them in order; its device runs each once what it
depends on has finished: earlier calls of the same group, and every call that the compute stream
waits for. A collective finishes once all members' devices have come to it with equal arguments.
Nothing here knows how the diagnosis works.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from keepstep.recorder.model import (
    Backend,
    Direction,
    Dump,
    Entry,
    Frame,
    Group,
    GroupName,
    Operation,
    RankDump,
    State,
    Status,
)

WORLD = "world"
NEVER = 10**9


@dataclass(frozen=True, slots=True)
class Call:
    """One line of a rank's program.

    ``name`` is a collective, "send", "recv" (``peer`` is a global rank, None for any source),
    "wait" (the host waits for all that it issued) or "local" (nothing that anyone sees).
    """

    name: str
    group: str = WORLD
    elements: int = 1024
    dtype: str = "Float"
    peer: int | None = None
    asynchronous: bool = False  # the compute stream does not wait for it
    line: int = 0  # of the program, makes the call site
    function: str = "step"
    outputs: int | None = None

    @property
    def transfer(self) -> bool:
        return self.name in ("send", "recv")

    @property
    def quiet(self) -> bool:
        return self.name in ("wait", "local")


@dataclass(slots=True)
class Issued:
    """A call that a rank's host has issued."""

    call: Call
    number: int  # of its kind within the group
    operation: int  # of the group, transfers included
    after: tuple[Issued, ...]  # what must finish on this rank first
    index: int  # in the rank's program
    finished: bool = False
    hidden: bool = False  # finished, but this rank's recorder never learned it

    @property
    def shown(self) -> bool:
        return self.finished and not self.hidden


@dataclass(slots=True)
class Rank:
    """One rank: its program and how far it came."""

    program: list[Call]
    stop_before: int = NEVER  # its host stops before this call
    stuck_from: int = NEVER  # its device runs nothing issued from here on
    blind_from: int = NEVER  # its device takes part in this call and then stops for good
    dead: bool = False
    at: int = 0
    issued: list[Issued] = field(default_factory=list)
    chain: tuple[Issued, ...] = ()
    count: Counter[tuple[str, bool]] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    newest: dict[str, Issued] = field(default_factory=dict)
    first_open: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """How recorders behave in one job."""

    backend: Backend = Backend.NCCL_LEGACY
    entries: int = 2000  # of the ring buffer
    stacks: bool = True
    timing: bool = False  # legacy: the start of a collective is seen
    only_pending: bool = False
    hashed_names: bool = False
    everyone_writes: bool = False  # nccl2: something outside asked all ranks for a dump
    after_failure: bool = False  # gloo: everything pending was given up before the dump


class Job:
    """Ranks, groups and their calls."""

    def __init__(
        self,
        programs: Mapping[int, list[Call]],
        groups: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.ranks = {rank: Rank(list(program)) for rank, program in programs.items()}
        self.groups = {WORLD: tuple(sorted(programs)), **(groups or {})}
        self.run_ahead = NEVER  # unfinished calls after which a host blocks, as a full queue does

    def run(self, budget: int = NEVER, pick: random.Random | None = None) -> int:
        """Run until nothing can happen or ``budget`` operations have finished; return how many."""
        finished = 0
        while True:
            moved = False
            for rank in self.ranks.values():
                moved |= self._issue(rank)
            ready: dict[tuple[object, ...], list[tuple[int, Issued]]] = {}
            for number, rank in self.ranks.items():
                self._collect(number, rank, ready)
            meetings = sorted(ready.items(), key=lambda item: str(item[0]))
            if pick is not None:
                pick.shuffle(meetings)
            for key, present in meetings:
                if finished < budget and self._meets(key, present):
                    for number, issued in present:
                        issued.finished = True
                        rank = self.ranks[number]
                        issued.hidden = issued.index >= rank.blind_from
                    finished += 1
                    moved = True
            if not moved:
                return finished

    def _issue(self, rank: Rank) -> bool:
        before = rank.at
        while rank.at < len(rank.program) and rank.at < rank.stop_before:
            call = rank.program[rank.at]
            if call.name == "wait":
                if not all(issued.shown for issued in rank.issued[rank.first_open :]):
                    break
            elif not call.quiet:
                if sum(not issued.shown for issued in rank.issued) >= self.run_ahead:
                    break
                kind = (call.group, call.transfer)
                rank.count[kind] += 1
                rank.operations[call.group] += 1
                after = list(rank.chain)
                stream = f"{call.group} {call.peer}" if call.transfer else call.group
                if stream in rank.newest:
                    after.append(rank.newest[stream])
                issued = Issued(
                    call, rank.count[kind], rank.operations[call.group], tuple(after), rank.at
                )
                rank.issued.append(issued)
                rank.newest[stream] = issued
                if not call.asynchronous:
                    rank.chain = (issued,)
            rank.at += 1
        return rank.at != before

    def _collect(
        self, number: int, rank: Rank, ready: dict[tuple[object, ...], list[tuple[int, Issued]]]
    ) -> None:
        while rank.first_open < len(rank.issued) and rank.issued[rank.first_open].shown:
            rank.first_open += 1
        transfers: Counter[tuple[object, ...]] = Counter()
        for issued in rank.issued[rank.first_open :]:
            if issued.finished or issued.index >= rank.stuck_from:
                continue
            if not all(before.shown for before in issued.after):
                continue
            call = issued.call
            if call.transfer:
                ends = (number, call.peer) if call.name == "send" else (call.peer, number)
                place: tuple[object, ...] = ("transfer", call.group, *ends)
                transfers[place] += 1
                if transfers[place] > 1:
                    continue
            else:
                place = ("collective", call.group, issued.number)
            ready.setdefault(place, []).append((number, issued))

    def _meets(self, key: tuple[object, ...], present: list[tuple[int, Issued]]) -> bool:
        calls = [issued.call for _, issued in present]
        if key[0] == "transfer":
            return len(present) == 2 and calls[0].elements == calls[1].elements
        if len(present) < len(self.groups[calls[0].group]):
            return False
        free = "to_all" in calls[0].name
        return len({(c.name, None if free else c.elements, c.dtype) for c in calls}) == 1

    # What the recorders keep.

    def dumps(self, recording: Recording) -> tuple[RankDump, ...]:
        """Return the dumps that the ranks leave behind, in the order of ranks."""
        found = []
        for number, rank in self.ranks.items():
            waits = any(not issued.shown for issued in rank.issued)
            silent = recording.backend is Backend.NCCL2 and not waits
            if rank.dead or (silent and not recording.everyone_writes):
                continue
            dump = self.dump(number, recording)
            found.append(RankDump(dump=dump, path=Path(f"dump_{number}"), rank=number))
        return tuple(found)

    def dump(self, number: int, recording: Recording) -> Dump:
        """Return the dump of one rank."""
        rank = self.ranks[number]
        mine = [name for name, members in self.groups.items() if number in members]
        names = {
            name: GroupName(
                f"{hash_of(name)}" if recording.hashed_names else str(index), describe(name)
            )
            for index, name in enumerate(self.groups)
        }
        gloo = recording.backend is Backend.GLOO
        entries = []
        for record, issued in enumerate(
            issued for issued in rank.issued if not (gloo and issued.call.transfer)
        ):
            entries.append(self._entry(number, record, issued, names, mine, recording))
        if recording.only_pending:
            entries = [entry for entry in entries if entry.state is not State.COMPLETED]
        entries = entries[-recording.entries :]
        if recording.backend is Backend.TORCHCOMMS:
            status: dict[int, Status] = {}
        else:
            status = {
                mine.index(name): self._status(rank, name, recording)
                for name in mine
                if rank.operations[name] or recording.backend is Backend.NCCL_LEGACY
            }
        groups = tuple(Group(names[name], self.groups[name]) for name in mine)
        if gloo:
            groups = (Group(GroupName(""), None),)
        backend = recording.backend if entries else Backend.UNKNOWN
        return Dump(
            version="2.10",
            backend=backend,
            groups=groups,
            status=status,
            entries=tuple(entries),
        )

    def _entry(
        self,
        number: int,
        record: int,
        issued: Issued,
        names: Mapping[str, GroupName],
        mine: list[str],
        recording: Recording,
    ) -> Entry:
        call = issued.call
        members = self.groups[call.group]
        direction = own = peer = None
        if call.transfer:
            direction = Direction.SEND if call.name == "send" else Direction.RECEIVE
            if recording.backend is not Backend.TORCHCOMMS:
                own = members.index(number)
                peer = None if call.peer is None else members.index(call.peer)
        state, retired = State.SCHEDULED, False
        if recording.backend is Backend.GLOO:
            retired = issued.shown or recording.after_failure
        elif issued.shown:
            state, retired = State.COMPLETED, True
        elif recording.timing and issued.index < self.ranks[number].stuck_from:
            ready = all(before.shown for before in issued.after)
            state = State.STARTED if ready else state
        sequence = issued.number
        first = 0 if recording.backend is Backend.NCCL2 else 1
        if recording.backend is Backend.TORCHCOMMS:
            sequence = record + 1
        stack: tuple[Frame, ...] = ()
        if recording.stacks and call.line:
            stack = (
                Frame(call.name, "/site-packages/torch/distributed/distributed_c10d.py", 10),
                Frame(call.function, "/srv/train.py", call.line),
                Frame("<module>", "/srv/train.py", 900),
            )
        sizes = () if call.name == "barrier" else ((call.elements,),)
        dtypes = () if call.name == "barrier" else (call.dtype,)
        outputs = sizes if call.outputs is None else ((call.outputs,),)
        return Entry(
            record=record,
            pg_id=mine.index(call.group),
            group=names[call.group],
            operation=Operation(call.name, sizes, dtypes, outputs, dtypes, direction, own, peer),
            is_p2p=call.transfer and recording.backend is not Backend.TORCHCOMMS,
            sequence=sequence,
            op_id=issued.operation - 1 + first,
            state=state,
            retired=retired,
            created_ns=10**18 + record * 1000 + number,
            timeout_ms=600_000,
            stack=stack,
        )

    def _status(self, rank: Rank, name: str, recording: Recording) -> Status:
        legacy = recording.backend is Backend.NCCL_LEGACY
        first = 1 if recording.backend in (Backend.NCCL_LEGACY, Backend.GLOO) else 0
        mine = [issued for issued in rank.issued if issued.call.group == name]
        done = [issued for issued in mine if issued.shown]

        def number(issued: list[Issued]) -> int | None:
            if not issued:
                return 0 if legacy else None
            return issued[-1].number if legacy else issued[-1].operation - 1 + first

        if recording.after_failure:
            done = mine
        return Status(number(mine), None, number(done))


def hash_of(name: str) -> str:
    """A name as torch gives it to groups made with local synchronisation."""
    return "".join(f"{ord(letter):x}" for letter in name)


def describe(name: str) -> str:
    """The description of a group: that of its kind, without its number."""
    return "default_pg" if name == WORLD else name.rstrip("0123456789")


def alike(ranks: int, program: list[Call]) -> dict[int, list[Call]]:
    """Every rank runs the same program."""
    return {rank: list(program) for rank in range(ranks)}


def change(job: Job, rank: int, index: int, **fields: object) -> None:
    """Change one call of one rank."""
    program = job.ranks[rank].program
    program[index] = replace(program[index], **fields)  # type: ignore[arg-type]


def find(job: Job, rank: int, wanted: Callable[[Call], bool], nth: int = 0) -> int:
    """Return the index of the n-th call of a rank that is wanted."""
    found = [index for index, call in enumerate(job.ranks[rank].program) if wanted(call)]
    return found[nth]
