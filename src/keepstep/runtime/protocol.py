"""The typed messages between worker, agent and coordinator.

Every message is a frozen dataclass. On the wire it is one JSON object whose ``kind`` names the
class. Between agent and coordinator messages travel in authenticated frames (``channel``). Between
a worker and its agent they are JSON lines on a socket pair that the worker inherits; nobody else
can reach it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar


class ProtocolError(Exception):
    """A message that cannot be read: not JSON, unknown kind, missing or wrong field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Base of all messages."""


# --- worker -> coordinator (through its agent) ------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Report(Message):
    """Something that one worker says about itself."""

    wid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched(Report):
    """The agent started this worker; said by the agent, so that every loss can name the process."""

    pid: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined(Report):
    """The script called ``keepstep.join()``."""

    torch: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready(Report):
    """The script reached ``Job.train``: model built, process group created, waiting for a rank."""

    handle: str
    steps: int
    digest: str
    address: str
    start: int = 0  # steps committed in what it holds; -1: it looked for no checkpoint


FATAL = ("memory", "device")  # origins of a failure after which a process is of no use


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFailed(Report):
    """The step raised and no halt had been ordered: the worker waits for one."""

    generation: int
    step: int
    error: str
    origin: str  # "step": the user's code; "collective": a peer went away; "device"; "memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal(Report):
    """A halted worker: what it holds. ``committed`` counts complete steps."""

    generation: int
    committed: int
    clean: bool
    digest: str
    handle: str
    entry: int  # per-rank state is known for this many steps (committed, or one more)
    member_of: int = 0  # the newest generation that it was in; 0: it holds only what it built
    repeatable: bool = False  # its steps give the same bits when they are done again


@dataclass(frozen=True, kw_only=True, slots=True)
class Formed(Report):
    """The worker is a member of this generation and holds the agreed state."""

    generation: int
    step: int
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormFailed(Report):
    """The worker could not enter this generation (a peer vanished, a transfer failed its check)."""

    generation: int
    error: str
    handle: str
    suspect: int = -1  # the worker that did not do its part (itself: its script raised); -1: none
    lacks: str = ""  # what it was to take over and is not there: record, snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedLate(Report):
    """Its per-rank state changed after the last collective of a step. Said once."""

    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed(Report):
    """The first step of a generation was committed ``ago`` seconds before this was sent."""

    generation: int
    committed: int
    ago: float
    digest: str = ""  # of the replicated state then, if ``Form.prove`` asked for it


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotTaken(Report):
    """A snapshot lies in the vault of the worker's agent. ``payload``: with replicated state."""

    rank: int
    committed: int
    digest: str
    payload: bool
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotLeftOut(Report):
    """A snapshot could not be written."""

    committed: int
    folder: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpointed(Report):
    """A checkpoint has been saved, or (``why``) has not. Said by rank 0."""

    step: int
    folder: str
    seconds: float  # from its copy in memory to its final name
    held: float  # of them, during which the training was held
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done(Report):
    """All steps are committed; the worker waits for ``Finish``."""

    generation: int
    committed: int
    digest: str
    handle: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fired(Report):
    """An injected fault is about to happen, or (``ago``) happened that long ago."""

    index: int
    step: int
    ago: float = 0.0


# --- agent -> coordinator ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello(Message):
    """First message of an agent, also after the coordinator or the network came back."""

    agent: str
    host: str
    sent: float  # the agent's clock
    address: str  # where its vault is served
    workers: int
    spares: int
    wids: list[int]  # every worker that it was told to launch
    standing: list[dict[str, Any]] = field(default_factory=list)  # what each said last


class Progress(NamedTuple):
    """What the agent read of one worker, without its help: a row of ``Beat``. Ages in seconds."""

    wid: int
    generation: int
    step: int
    committed: int
    phase: int
    age: float  # since the training thread last published anything new
    side_age: float  # since the worker's side thread last ran
    sequence: int  # collectives entered on the default group in this generation
    state: str  # process state as in /proc/PID/stat: R, S, D, T, Z
    cpu: bool  # the main thread used processor time lately
    step_seconds: float
    busy_seconds: float  # of the last step, outside collectives

    @classmethod
    def of(cls, row: list[Any]) -> Self:
        """Return what a row of JSON says; raise ProtocolError if it is too long or too short."""
        if len(row) != len(cls._fields):
            raise ProtocolError(f"a row of progress has {len(row)} fields")
        return cls._make(row)


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat(Message):
    """Progress of all workers of one agent; ``sent`` is the agent's clock."""

    sent: float
    workers: list[list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited(Message):
    """A worker process is gone. ``fault`` is exit, signal or fence; records say what it left."""

    wid: int
    fault: str
    code: int
    committed: int
    entry: int
    ago: float  # since its last sign of life
    joined: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept(Message):
    """Answer to ``Recall``: what this agent mirrored of a worker of a lost host."""

    wid: int
    committed: int
    entry: int
    generation: int  # in which the worker left it


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted(Message):
    """Agent to coordinator: the user ends the job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRows(Message):
    """Samples that workers used, as far as this agent's vault knows: [worker, *run]."""

    rows: list[list[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged(Message):
    """The diagnosis of an incident, from the evidence that this agent has."""

    incident: str
    folder: str
    outcome: str
    ranks: list[int]
    fault: str
    headline: str
    seconds: float  # from the incident's end to the verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Goodbye(Message):
    """The agent leaves of its own will (its workers are gone)."""

    agent: str


# --- coordinator -> agent ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome(Message):
    """Settings of the job that every agent must share."""

    sent: float  # echo of the hello
    patience: float
    world_size: int
    store: str
    injections: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease(Message):
    """Answer to a beat: the agent's workers may go on for another lease, counted from ``sent``.

    ``sent`` echoes the beat: however long the answer was under way, the agent's lease ends no later
    than the coordinator's reckoning of it, which starts when the beat arrived.
    """

    sent: float
    patience: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch(Message):
    """Start these workers. ``ranks``: what RANK says to each; beyond the ranks for a spare."""

    wids: list[int]
    ranks: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence(Message):
    """Kill this worker now and confirm with ``Exited``."""

    wid: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recall(Message):
    """Say what you mirrored of these workers, whose host is lost."""

    wids: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Halt(Message):
    """Leave the current generation: at once, or after ``at_step`` steps are committed."""

    generation: int
    wids: list[int]
    at_step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Form(Message):
    """One generation: who has which rank, from which state it starts, who gives it to whom."""

    generation: int
    uuid: int
    members: list[int]  # worker of each rank
    handles: list[str]
    start_step: int
    source: str  # "live": from donors; "snapshot": everybody goes back to one
    donors: list[list[Any]]  # [wid, address]
    receivers: list[int]
    digest: str
    rank_state: dict[str, list[Any]]  # rank -> [worker or agent address, wid that left it, step]
    snapshot_every: int
    fired: list[int]
    timeout: float
    mirrors: dict[str, list[Any]]  # agent -> [address of the vault that it mirrors, workers there]
    prove: bool = False  # ``Resumed`` has to say the state's digest


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotEvery(Message):
    """From ``from_step`` on, take a snapshot when the step count is a multiple of ``every``."""

    every: int
    from_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Testify(Message):
    """Agent to worker: leave a recorder dump and stacks in the vault, now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Incident(Message):
    """One or more faults have been dealt with: write down what each rank left."""

    name: str
    generation: int  # in which it happened
    step: int
    members: list[list[Any]]  # of that generation: [rank, worker, agent, host]
    faults: list[dict[str, Any]]  # rank, worker, fault, evidence
    outcome: str
    lead: str  # the agent that asks for the verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish(Message):
    """Every step is done and every replica agrees: ``Job.train`` returns, spares leave."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abort(Message):
    """The job ends here."""

    why: str
    code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(Message):
    """A fact for the event log and the operator's eyes."""

    fact: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview(Message):
    """The job as the coordinator knows it, for the operator's view and the metrics."""

    steps: int
    median_step: float
    spares_ready: int
    recoveries: list[list[Any]]  # [fault, action, how many]
    workers: list[list[Any]]  # of other hosts: [wid, host, pid, ready, being fenced, progress]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary(Message):
    """The job's end as the coordinator saw it."""

    facts: dict[str, Any]


M = TypeVar("M", bound=Message)


def _all_kinds(base: type[Message]) -> dict[str, type[Message]]:
    found = {base.__name__: base}
    for child in base.__subclasses__():
        found.update(_all_kinds(child))
    return found


_KINDS = {name: kind for name, kind in _all_kinds(Message).items() if kind not in (Message, Report)}
_FIELDS = {name: [entry.name for entry in dataclasses.fields(_KINDS[name])] for name in _KINDS}
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make one for each message
_DECODER = json.JSONDecoder()
_NOTHING: frozenset[type] = frozenset()


def _types_of(hint: Any) -> frozenset[type] | None:
    """Return the types that a value from JSON may have; None: any."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        options = [_types_of(option) for option in typing.get_args(hint)]
        return frozenset().union(*(option for option in options if option is not None))
    if hint is Any:
        return None
    if hint is float:
        return frozenset((int, float))
    return frozenset((origin or hint,))


_TYPES = {
    name: {key: _types_of(hint) for key, hint in typing.get_type_hints(kind).items()}
    for name, kind in _KINDS.items()
}


def to_json(message: Message) -> bytes:
    """Return ``message`` as one line of JSON without a line break."""
    kind = type(message).__name__
    body = {name: getattr(message, name) for name in _FIELDS[kind]}
    return _ENCODER.encode({"kind": kind, **body}).encode()


def from_json(line: bytes) -> Message:
    """Return the message in ``line``.

    Raises:
        ProtocolError: not a JSON object, unknown kind, or fields that do not fit.
    """
    return from_dict(_object(_parse(line)))


def from_json_array(body: bytes) -> list[Message]:
    """Return the messages in a JSON array; raise ProtocolError as ``from_json`` does."""
    found = _parse(body)
    if not isinstance(found, list):
        raise ProtocolError(f"a frame holds a JSON array, this is {type(found).__name__}")
    return [from_dict(_object(each)) for each in found]


def _parse(text: bytes) -> object:
    try:
        return _DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {text[:80]!r}") from error


def _object(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ProtocolError(f"a message is a JSON object, this is {type(body).__name__}")
    return body


def from_dict(body: dict[str, Any]) -> Message:
    """Return the message that ``body`` describes; its fields are checked against their types."""
    fields = dict(body)
    name = fields.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError(f"unknown kind of message: {name!r}")
    wanted = _TYPES[kind.__name__]
    for key, value in fields.items():
        types_of_key = wanted.get(key, _NOTHING)
        if types_of_key is not None and type(value) not in types_of_key:
            raise ProtocolError(f"{name}.{key} does not fit: {str(value)[:80]!r}")
    try:
        return kind(**fields)
    except TypeError as error:
        raise ProtocolError(f"{name}: {error}") from error


def to_dict(message: Message) -> dict[str, Any]:
    """Return the dictionary from which ``from_dict`` makes an equal message."""
    found: dict[str, Any] = json.loads(to_json(message))
    return found


def expect(message: Message, kind: type[M]) -> M:
    """Return ``message`` if it is a ``kind``; raise ProtocolError otherwise."""
    if not isinstance(message, kind):
        raise ProtocolError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message
