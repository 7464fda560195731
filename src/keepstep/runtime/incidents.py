"""The agent's side of evidence: who was asked, what came, and the incident folder it goes into.

Evidence is asked for while a stall is only suspected, and written when the job goes on: the time
to recover does not depend on it. A process that cannot answer (stopped, or its interpreter lock is
held) is looked into from outside with py-spy, where that is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.incident.manifest import DUMP, NAME, STACKS, Artifact, Manifest, RankFacts, describe
from keepstep.runtime import protocol as p
from keepstep.runtime import vault
from keepstep.runtime.agent_config import AgentConfig

JUDGE_LIMIT = 20.0  # seconds
LOOK_LIMIT = 5.0  # seconds that writing waits for a py-spy that still runs
MOST_BYTES = 64 << 20  # of one artifact; more is cut off by leaving it out
MOST_KEPT_BYTES = 1 << 30  # of all incidents of a folder; the newest one may have more
_NAME = re.compile(r"-generation-\d{4,}-")  # in the names that the coordinator gives
NO_PY_SPY = "py-spy is not installed (pip install 'keepstep[stacks]')"
_DEAD = {"kill", "segv", "abort", "exit", "signal", "oom"}
_OTHER_LIVES = {"stop": "stopped", "gil": "unresponsive", "partition": "unresponsive"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFacts:
    """What the agent knows about a process of its own. ``ended``: how, if by itself."""

    pid: int
    committed: int
    ended: str = ""


def ending(code: int) -> str:
    """Return how a process ended, in words, from its status as ``subprocess`` gives it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@dataclass(slots=True)
class Witnesses:
    """The ranks of this host that were asked for evidence, and the looks into silent ones."""

    vault: Path
    _called: bool = False
    _looks: dict[tuple[int, int], subprocess.Popen[bytes] | str] = field(default_factory=dict)
    _program: str | None = None

    def __post_init__(self) -> None:
        beside = Path(sys.executable).with_name("py-spy")
        self._program = str(beside) if beside.exists() else shutil.which("py-spy")

    def call(self) -> bool:
        """Return whether this is a new suspicion: then the ranks are to be asked."""
        new, self._called = not self._called, True
        return new

    def dismiss(self, generation: int) -> None:
        """Everybody makes progress: what was left in the suspicion tells nothing of later."""
        if self._called:
            self._called = False
            for path in self.vault.glob(f"*-*.{generation}"):
                if path.name.startswith(("dump-", "stacks-", "pyspy-")):
                    path.unlink(missing_ok=True)
            self._looks = {key: look for key, look in self._looks.items() if key[1] != generation}

    def look_into(self, wid: int, pid: int, generation: int) -> None:
        """Read the stacks of a process that cannot answer; once a generation, in background."""
        if self._program is None or (wid, generation) in self._looks:
            return
        try:
            with open(self._path(wid, generation), "wb") as file:
                self._looks[wid, generation] = subprocess.Popen(
                    [self._program, "dump", "--json", "--nonblocking", "--pid", str(pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.DEVNULL,
                )
        except OSError as error:  # no room for the answer, no process: training goes on
            self._looks[wid, generation] = f"py-spy could not start: {error.strerror}"

    def found(self, wid: int, generation: int) -> Path | str:
        """Return where py-spy's stacks lie, or why there are none; waits for a look under way."""
        look = self._looks.pop((wid, generation), None)
        if look is None:
            return "" if self._program else NO_PY_SPY
        if isinstance(look, str):
            return look
        try:
            code = look.wait(LOOK_LIMIT)
        except subprocess.TimeoutExpired:
            look.kill()
            look.wait()
            return "py-spy did not end"
        path = self._path(wid, generation)
        if code == 0:
            return path
        return f"py-spy ended with status {code}: the process was gone, or ptrace is not allowed"

    def _path(self, wid: int, generation: int) -> Path:
        return self.vault / f"pyspy-{wid}.{generation}"


@dataclass(slots=True)
class IncidentWriter:
    """Writes this host's part of one incident and removes the oldest ones."""

    config: AgentConfig
    witnesses: Witnesses

    def write(self, incident: p.Incident, ours: dict[int, ProcessFacts]) -> Path:
        """Return the folder, complete when it appears under its name.

        Raises:
            OSError: it could not be written; nothing is left of it.
        """
        config = self.config
        target = config.incidents / incident.name / config.name
        temporary = target.with_name(f".{config.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            manifest = self._manifest(incident, ours, temporary)
            with open(temporary / NAME, "w") as file:
                file.write(manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            with suppress(OSError):  # another host may have written there
                target.parent.rmdir()
            self._discard(incident, ours)
            raise
        remove_old(config.incidents, keep=config.kept_incidents)
        return target

    def _discard(self, incident: p.Incident, ours: dict[int, ProcessFacts]) -> None:
        """Remove from memory what could not be written."""
        for wid in ours:
            for path in self.config.vault.glob(f"*-{wid}.{incident.generation}"):
                if path.name.startswith(("dump-", "stacks-", "pyspy-")):
                    path.unlink(missing_ok=True)

    def _manifest(
        self, incident: p.Incident, ours: dict[int, ProcessFacts], folder: Path
    ) -> Manifest:
        faults = {fault["worker"]: fault for fault in incident.faults}
        members = []
        for rank, wid, agent, host in incident.members:
            facts = ours.get(wid)
            life, why = _life(faults.get(wid), facts)
            members.append(
                RankFacts(
                    rank=rank,
                    worker=wid,
                    host=host,
                    agent=agent,
                    pid=0 if facts is None else facts.pid,
                    user=os.getuid(),
                    life=life,
                    why=why,
                    holds_gil=wid in faults and faults[wid]["fault"] == "gil",
                    step=None if facts is None else facts.committed,
                    artifacts=()
                    if facts is None
                    else self._artifacts(rank, wid, incident.generation, life, why, folder),
                )
            )
        return Manifest(
            incident=incident.name,
            agent=self.config.name,
            host=self.config.host,
            written=time.time(),
            generation=incident.generation,
            step=incident.step,
            backend=self.config.backend,
            faults=tuple(incident.faults),
            members=tuple(members),
            outcome=incident.outcome,
        )

    def _artifacts(
        self, rank: int, wid: int, generation: int, life: str, why: str, folder: Path
    ) -> tuple[Artifact, ...]:
        reason = why or "it did not answer before it was fenced"
        if life == "dead":
            reason = f"the process was gone before it could be asked: {why}"
        place, since = self.config.vault, 0.0
        if life != "alive":  # it cannot have gone on since: what it left before is of another time
            since = _last_commit(place, wid)
        dump = _take(vault.dump_path(place, wid, generation), folder, DUMP, rank, since)
        stacks = _take(vault.stacks_path(place, wid, generation), folder, STACKS, rank, since)
        if stacks is None:
            seen = self.witnesses.found(wid, generation)
            if isinstance(seen, Path):
                stacks = _take(seen, folder, STACKS, rank, since, how="py-spy")
            elif seen and life != "dead":
                reason = f"{reason}; {seen}"
        return (
            dump or Artifact(kind=DUMP, reason=reason),
            stacks or Artifact(kind=STACKS, reason=reason),
        )


def remove_old(incidents: Path, *, keep: int, most_bytes: int = MOST_KEPT_BYTES) -> None:
    """Keep the newest ``keep`` incidents, and of these what fits into ``most_bytes`` together.

    The newest one stays whatever its size. Other jobs may write and remove there meanwhile.
    """
    with suppress(OSError):
        newest_first = sorted(filter(_is_incident, incidents.iterdir()), key=_written, reverse=True)
        total = 0
        for number, folder in enumerate(newest_first):
            total += _size(folder)
            if number >= keep or (number > 0 and total > most_bytes):
                shutil.rmtree(folder, ignore_errors=True)


def _is_incident(folder: Path) -> bool:
    """Return whether it is an incident of a run: nothing else in that folder may be removed."""
    if _NAME.search(folder.name) is None or folder.is_symlink() or not folder.is_dir():
        return False
    unfinished = any(folder.glob(".*.tmp"))  # its agent was killed while it wrote
    return unfinished or any(folder.glob(f"*/{NAME}"))


def _written(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0  # another job has removed it


def _size(folder: Path) -> int:
    found = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found += os.lstat(os.path.join(inside, name)).st_size
    return found


def _life(fault: dict[str, Any] | None, facts: ProcessFacts | None) -> tuple[str, str]:
    """Return what is known about a process (a value of ``Life``), and how."""
    if facts is not None and facts.ended:
        return "dead", facts.ended
    if fault is None:
        return "alive", ""
    evidence = str(fault["evidence"])
    if fault["fault"] in _DEAD:
        return "dead", evidence
    return _OTHER_LIVES.get(fault["fault"], "alive"), evidence


def _last_commit(place: Path, wid: int) -> float:
    """Return when a worker wrote a rank record last (seconds since the epoch); 0.0 for never."""
    return max((path.stat().st_mtime for path in place.glob(f"rank-{wid}.*")), default=0.0)


def _take(
    source: Path, folder: Path, kind: str, rank: int, since: float, how: str = "side thread"
) -> Artifact | None:
    """Move an artifact from the vault into the folder; None where there is none from ``since`` on.

    A rank may answer after a suspicion has passed: that answer lies there when it is lost later.
    """
    name = {DUMP: f"recorder_rank_{rank}", STACKS: f"stacks_rank_{rank}.txt"}[kind]
    if how == "py-spy":
        name = f"pyspy_rank_{rank}.json"
    try:
        size, taken = source.stat().st_size, source.stat().st_mtime
    except FileNotFoundError:
        return None
    if taken < since:
        source.unlink()
        return None
    if not 0 < size <= MOST_BYTES:
        source.unlink()
        return Artifact(kind=kind, size=size, reason=f"{size} bytes: empty, or more than is kept")
    shutil.copy2(source, folder / name)
    source.unlink()
    return describe(folder / name, kind, name=name, how=how)


@dataclass(slots=True)
class Judge:
    """A process that has loaded its program and waits for an incident to judge.

    Loading takes most of the time of a verdict, so it is done before anything happens.
    """

    _process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Start the process, in background."""
        with suppress(OSError):  # the next verdict tries again
            self._process = subprocess.Popen(
                [sys.executable, "-m", "keepstep.incident.judge"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the agent, with whose end it ends
            )

    async def verdict(self, folder: Path) -> dict[str, Any] | None:
        """Let it read the folder and write its verdict there; None where that fails."""
        if self._process is None:
            self.prepare()
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            output, _ = await asyncio.to_thread(
                process.communicate, os.fsencode(folder), JUDGE_LIMIT
            )
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill(process)
            self.prepare()
        if process.returncode != 0:
            return None
        found: dict[str, Any] = json.loads(output)
        return found

    def end(self) -> None:
        """End the process that waits."""
        if self._process is not None:
            _kill(self._process)
            self._process = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()
