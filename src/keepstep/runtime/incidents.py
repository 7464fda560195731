"""The agent's side of evidence: who was asked, what came, and the incident folder it goes into.

Evidence is asked for while a stall is only suspected, and written when the job goes on: the time
to recover does not depend on it. A process that cannot answer (stopped, or its interpreter lock is
held) is looked into from outside with py-spy, where that is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepstep.incident.manifest import DUMP, NAME, STACKS, Artifact, Manifest, RankFacts, describe
from keepstep.runtime import protocol as p
from keepstep.runtime import vault

if TYPE_CHECKING:
    from keepstep.runtime.agent import AgentConfig

JUDGE_LIMIT = 20.0  # seconds
LOOK_LIMIT = 5.0  # seconds that writing waits for a py-spy that still runs
MOST_BYTES = 64 << 20  # of one artifact; more is cut off by leaving it out
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
    _looks: dict[tuple[int, int], subprocess.Popen[bytes]] = field(default_factory=dict)
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
        path = self._path(wid, generation)
        with open(path, "wb") as file:
            self._looks[wid, generation] = subprocess.Popen(
                [self._program, "dump", "--json", "--nonblocking", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.DEVNULL,
            )

    def found(self, wid: int, generation: int) -> Path | str:
        """Return where py-spy's stacks lie, or why there are none; waits for a look under way."""
        look = self._looks.pop((wid, generation), None)
        if look is None:
            return (
                "" if self._program else "py-spy is not installed (pip install 'keepstep[stacks]')"
            )
        try:
            code = look.wait(LOOK_LIMIT)
        except subprocess.TimeoutExpired:
            look.kill()
            look.wait()
            return "py-spy did not end"
        path = self._path(wid, generation)
        return path if code == 0 else f"py-spy ended with status {code}; is ptrace allowed here?"

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
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{config.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            manifest = self._manifest(incident, ours, temporary)
            with open(temporary / NAME, "w") as file:
                file.write(manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._remove_old()
        return target

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
        dump = _take(vault.dump_path(self.config.vault, wid, generation), folder, DUMP, rank)
        stacks = _take(vault.stacks_path(self.config.vault, wid, generation), folder, STACKS, rank)
        if stacks is None:
            seen = self.witnesses.found(wid, generation)
            if isinstance(seen, Path):
                stacks = _take(seen, folder, STACKS, rank, how="py-spy")
            elif seen and life != "dead":
                reason = f"{reason}; {seen}"
        return (
            dump or Artifact(kind=DUMP, reason=reason),
            stacks or Artifact(kind=STACKS, reason=reason),
        )

    def _remove_old(self) -> None:
        """Keep the newest incidents; names begin with the time at which their job began."""
        folders = [path for path in self.config.incidents.iterdir() if _is_incident(path)]
        folders.sort(key=lambda path: path.stat().st_mtime)
        for path in folders[: -self.config.kept_incidents]:
            shutil.rmtree(path, ignore_errors=True)


def _is_incident(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob(f"*/{NAME}"))


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


def _take(
    source: Path, folder: Path, kind: str, rank: int, how: str = "side thread"
) -> Artifact | None:
    """Move an artifact from the vault into the folder; None where there is none."""
    name = {DUMP: f"recorder_rank_{rank}", STACKS: f"stacks_rank_{rank}.txt"}[kind]
    if how == "py-spy":
        name = f"pyspy_rank_{rank}.json"
    try:
        size = source.stat().st_size
    except FileNotFoundError:
        return None
    if not 0 < size <= MOST_BYTES:
        source.unlink()
        return Artifact(kind=kind, size=size, reason=f"{size} bytes: empty, or more than is kept")
    shutil.copy2(source, folder / name)
    source.unlink()
    return describe(folder / name, kind, name=name, how=how)


async def judge(folder: Path) -> dict[str, Any] | None:
    """Let another process read the folder and write its verdict; None where that fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "keepstep.incident.judge",
        str(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), JUDGE_LIMIT)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    if process.returncode != 0:
        return None
    found: dict[str, Any] = json.loads(output)
    return found
