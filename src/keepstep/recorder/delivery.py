"""Will a dump survive the job, and did it arrive?

``check_recorder`` judges before a job starts, ``check_delivery`` afterwards. Both are pure: what
they judge was observed before (``disk.observe``, ``arrival.observe``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from keepstep.recorder import naming
from keepstep.recorder.disk import EPHEMERAL, Disk
from keepstep.recorder.meaning import MEANINGS, Writes
from keepstep.recorder.model import Backend, Severity

_BYTES_PER_ENTRY = 1_500  # with a stack of ten frames; 520 measured with one of seven


# Before the job


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that would cost a dump, and what mends it."""

    code: str
    text: str
    mend: str
    severity: Severity = Severity.WARNING
    host: str = ""


def check_recorder(
    environment: Mapping[str, str],
    ranks_by_host: Mapping[str, Collection[int]],
    backend: Backend,
    *,
    disks: Mapping[str, Disk],
    grace_s: float | None = None,
    taken_prefixes: Collection[str] = (),
    other_backends: Collection[Backend] = (),
    silent_ranks_are_asked: bool = False,
) -> tuple[Problem, ...]:
    """Return what would keep the dumps of a job from being written or from surviving it.

    Args:
        environment: the variables of the ranks.
        ranks_by_host: the global ranks that each host runs.
        backend: the backend whose recorder matters.
        disks: what each host sees in the directory of the dumps; a missing host is a problem.
        grace_s: seconds between the launcher's first and last signal to a failed job.
        taken_prefixes: prefixes that other jobs on the same hosts or the same storage write to.
        other_backends: backends of the same job whose dumps may be written, too.
        silent_ranks_are_asked: something asks ranks that noticed nothing for their dumps.

    The order of the answer does not depend on the order of the hosts.
    """
    try:
        path = naming.effective_path(environment, 0, backend)
        problems = [
            *_recorder_off(environment, backend),
            *_variables(environment, backend),
            *_who_writes(backend, silent_ranks_are_asked),
            *_path(path, backend, environment, taken_prefixes, other_backends),
            *_grace(environment, backend, grace_s),
            *_disks(environment, backend, path, ranks_by_host, disks),
        ]
    except naming.VariableError as error:
        mend = "correct or unset it: PyTorch refuses to make a process group"
        problems = [Problem("invalid-variable", str(error), mend, Severity.ERROR)]
    return tuple(sorted(problems, key=lambda p: (p.severity, p.code, p.host, p.text)))


def _recorder_off(environment: Mapping[str, str], backend: Backend) -> Iterator[Problem]:
    names = naming.BUFFER_SIZE.names(backend)
    set_names = [name for name in names if name in environment]
    size = naming.number(environment, naming.BUFFER_SIZE, backend)
    if size <= 0:
        text = f"the recorder is off: {set_names[0]}={size}"
        yield Problem("recorder-off", text, f"set {names[0]}=2000", Severity.ERROR)
    if len({environment[name] for name in set_names}) > 1:
        text = f"{set_names[0]}={environment[set_names[0]]} wins over {set_names[1]}"
        yield Problem("alias-ignored", text, f"unset {set_names[1]}")
    if set_names and set_names[0] != names[0]:
        text = f"only {set_names[0]} is set, a deprecated name; tools that look for {names[0]} skip"
        yield Problem("alias-only", f"{text} the dump", f"set {names[0]}={size}", Severity.NOTE)
    if naming.DUMP_ON_TIMEOUT.names(backend) and not naming.flag(
        environment, naming.DUMP_ON_TIMEOUT, backend
    ):
        names = naming.DUMP_ON_TIMEOUT.names(backend)
        name = next(name for name in names if name in environment)
        text = f"no dump is written on a timeout: {name}={environment[name]}"
        yield Problem("dump-off", text, f"set {name}=1", Severity.ERROR)


def _variables(environment: Mapping[str, str], backend: Backend) -> Iterator[Problem]:
    for name in naming.ignored(environment, backend):
        setting = next(s for s in naming.SETTINGS if name in s.all_names())
        instead = setting.names(backend)
        mend = (
            f"set {instead[0]} instead" if instead else f"unset it; {backend} has no such setting"
        )
        yield Problem("ignored-variable", f"{backend} does not read {name}", mend)
    for name in naming.unknown(environment):
        text = f"{name} is read by no part of PyTorch 2.15"
        yield Problem("unknown-variable", text, "unset it or correct its spelling")


def _who_writes(backend: Backend, asked: bool) -> Iterator[Problem]:
    writes = MEANINGS[backend].writes
    if asked or writes is Writes.ALL:
        return
    if writes is Writes.NEVER:
        text = f"{backend} never writes a dump by itself"
        severity = Severity.ERROR
    else:
        text = (
            f"with {backend} only ranks that detect the failure write a dump; the culprit is silent"
        )
        severity = Severity.WARNING
    yield Problem("silent-ranks", text, "let something ask every rank for its dump", severity)


def _path(
    path: naming.DumpPath,
    backend: Backend,
    environment: Mapping[str, str],
    taken: Collection[str],
    others: Collection[Backend],
) -> Iterator[Problem]:
    prefix = path.path.removesuffix("0")
    name = naming.PREFIX.names(backend)[0]
    if not prefix.startswith("/"):
        text = f"the prefix {prefix!r} is relative: it depends on where each rank runs"
        yield Problem("relative-path", text, f"set {name} to an absolute prefix")
    if path.dynamic:
        text = "the name is read again when the dump is written, so this check may not hold then"
        yield Problem("dynamic-name", text, "unset the dynamic file name", Severity.NOTE)
    if prefix in taken:
        text = f"another job writes to {prefix}, too: the later dump replaces the earlier one"
        mend = f"give each job its own {name}, with the job and the attempt in it"
        yield Problem("path-collision", text, mend, Severity.ERROR)
    for other in sorted(set(others) - {backend}):
        if naming.effective_path(environment, 0, other).path == path.path:
            text = f"dumps of {other} and of {backend} have the same name: the later one replaces"
            mend = "dump one of them under another name (the dump interface takes the text itself)"
            yield Problem("path-collision", f"{text} the earlier", mend)


def _grace(
    environment: Mapping[str, str], backend: Backend, grace_s: float | None
) -> Iterator[Problem]:
    if grace_s is None or not naming.WAIT_FOR_DUMP.names(backend):
        return
    # Two attempts to dump (the second without stacks), after the wait before the abort.
    attempt = naming.number(environment, naming.WAIT_FOR_DUMP, backend) / 1000
    before = naming.number(environment, naming.WAIT_BEFORE_ABORT, backend) / 1000
    if grace_s < before + 2 * attempt:
        text = (
            f"{grace_s:g} s pass between the first and the last signal; a dump may need"
            f" {before + 2 * attempt:g} s"
        )
        mend = f"let the launcher wait {before + 2 * attempt:g} s before it kills"
        yield Problem("short-grace", text, mend)


def _disks(
    environment: Mapping[str, str],
    backend: Backend,
    path: naming.DumpPath,
    ranks_by_host: Mapping[str, Collection[int]],
    disks: Mapping[str, Disk],
) -> Iterator[Problem]:
    directory = str(Path(path.path).parent)
    name = naming.PREFIX.names(backend)[0]
    entries = naming.number(environment, naming.BUFFER_SIZE, backend)
    for host, ranks in ranks_by_host.items():
        disk = disks.get(host)
        if disk is None:
            text = f"nothing is known about {directory} on this host"
            yield Problem("not-observed", text, "observe it there", Severity.ERROR, host)
            continue
        need = max(entries, 0) * _BYTES_PER_ENTRY * len(ranks)
        if not disk.exists and path.source:  # PyTorch makes only its default directory
            mend = f"mkdir -p {directory}"
            yield Problem("no-directory", f"{directory} is missing", mend, Severity.ERROR, host)
        if not disk.writable:
            mend = f"make {directory} writable for the user of the job"
            text = f"{directory} cannot be written"
            yield Problem("not-writable", text, mend, Severity.ERROR, host)
        if disk.file_system in EPHEMERAL:
            text = f"{directory} lies on {disk.file_system} and is lost with the container or host"
            mend = f"set {name} to a prefix on storage that outlives the job"
            yield Problem("lost-with-container", text, mend, Severity.ERROR, host)
        if disk.free_bytes < need:
            text = f"{disk.free_bytes} bytes are free, {need} may be needed for {len(ranks)} dumps"
            yield Problem("no-space", text, f"free space in {directory}", Severity.ERROR, host)
        if disk.prefix_is_directory:
            text = "the prefix is a directory: ranks become files without a name, or nothing at all"
            mend = f"add a file name to {name}, such as /rank_"
            yield Problem("prefix-is-directory", text, mend, Severity.WARNING, host)


# After the job


class Reason(StrEnum):
    """Why an artifact that was due is not usable."""

    NEVER_ATTEMPTED = "never-attempted"  # nothing asked the rank to write it
    DISABLED = "disabled"  # the recorder or the dump was off
    NOT_REACHED = "not-reached"  # the process ended before it could write
    WRONG_RECORDER = "wrong-recorder"  # a valid dump without an operation
    PATH_COLLISION = "path-collision"  # two were due at one path
    OVERWRITTEN = "overwritten"  # another rank, job or attempt wrote there
    STALE = "stale"  # older than the attempt
    TRUNCATED = "truncated"
    GROWING = "growing"  # still being written
    UNREADABLE = "unreadable-owner"
    LOST = "lost-with-container"  # it was seen, and is gone
    UNKNOWN_FORMAT = "unknown-format"


class Verdict(StrEnum):
    """What a delivery proves."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    INCONCLUSIVE = "inconclusive"  # nothing was due, or nothing could be known


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """An artifact that one rank owes after a failure."""

    rank: int
    path: str
    backend: Backend = Backend.UNKNOWN
    kind: str = "dump"
    excuse: Reason | None = None  # what is known already: disabled, not reached, never attempted


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A file as it was seen, twice; times are seconds since 1970."""

    size: int
    modified_s: float
    later_size: int | None = None  # some time after; None where the file was gone then
    later_modified_s: float | None = None
    readable: bool = True
    findings: tuple[str, ...] = ()  # codes of ``model.Finding`` from reading it


@dataclass(frozen=True, slots=True)
class Item:
    """One due artifact; without a reason it arrived and is usable."""

    due: Due
    reason: Reason | None
    text: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was due and what arrived."""

    verdict: Verdict
    items: tuple[Item, ...]  # by rank, kind and path
    unexpected: tuple[str, ...]  # paths that nobody owed

    @property
    def missing(self) -> tuple[Item, ...]:
        """Return the items that cannot be used."""
        return tuple(item for item in self.items if item.reason is not None)


_BY_FINDING = {
    "truncated": Reason.TRUNCATED,
    "empty": Reason.TRUNCATED,
    "nothing-recorded": Reason.WRONG_RECORDER,
    "wrong-rank": Reason.OVERWRITTEN,
    "unreadable": Reason.UNREADABLE,
    "foreign": Reason.UNKNOWN_FORMAT,
    "malformed": Reason.UNKNOWN_FORMAT,
    "hostile": Reason.UNKNOWN_FORMAT,
    "too-large": Reason.UNKNOWN_FORMAT,
    "not-a-file": Reason.UNKNOWN_FORMAT,
    "not-read": Reason.UNKNOWN_FORMAT,
}


def check_delivery(
    expected: Sequence[Due], arrived: Mapping[str, Arrived], *, started_s: float
) -> Delivery:
    """Return which due artifacts arrived and why the others did not.

    Args:
        expected: everything that each rank owes, computed before the job.
        arrived: the files that were seen, by path.
        started_s: start of the attempt, seconds since 1970; an older file is of another attempt.

    Where nothing was due the verdict is inconclusive, whatever arrived: no evidence is no pass.
    """
    owners: dict[str, set[tuple[int, Backend]]] = defaultdict(set)
    for due in expected:
        owners[due.path].add((due.rank, due.backend))
    items = [
        Item(due, *_judge(due, arrived.get(due.path), started_s, shared=len(owners[due.path]) > 1))
        for due in sorted(expected, key=lambda due: (due.rank, due.kind, due.path, due.backend))
    ]
    if not items:
        verdict = Verdict.INCONCLUSIVE
    elif all(item.reason is None for item in items):
        verdict = Verdict.COMPLETE
    else:
        verdict = Verdict.INCOMPLETE
    return Delivery(verdict, tuple(items), tuple(sorted(arrived.keys() - owners.keys())))


def _judge(
    due: Due, seen: Arrived | None, started_s: float, *, shared: bool
) -> tuple[Reason | None, str]:
    if seen is None:
        reason = due.excuse or _why_nothing(due.backend)
        return reason, f"rank {due.rank} left no {due.kind} at {due.path}"
    if seen.later_size is None:
        return Reason.LOST, f"{due.path} was seen and is gone"
    if seen.modified_s < started_s:
        age = started_s - seen.modified_s
        return Reason.STALE, f"{due.path} was written {age:.0f} s before the attempt started"
    if (seen.later_size, seen.later_modified_s) != (seen.size, seen.modified_s):
        return Reason.GROWING, f"{due.path} changed from {seen.size} to {seen.later_size} bytes"
    if shared:
        return Reason.PATH_COLLISION, f"several dumps were due at {due.path}; one file is there"
    if not seen.readable:
        return Reason.UNREADABLE, f"{due.path} belongs to another user and cannot be read"
    if seen.size == 0:
        return Reason.TRUNCATED, f"{due.path} is empty"
    for code in seen.findings:
        if code in _BY_FINDING:
            return _BY_FINDING[code], f"{due.path}: {code}"
    return None, f"{due.path}, {seen.size} bytes"


def _why_nothing(backend: Backend) -> Reason:
    """Return the likeliest reason: a recorder that writes for all ranks was ended before."""
    writes_for_all = MEANINGS[backend].writes is Writes.ALL
    return Reason.NOT_REACHED if writes_for_all else Reason.NEVER_ATTEMPTED
