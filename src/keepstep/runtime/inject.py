"""Faults on purpose: ``KIND@STEP:RANK[=VALUE]``, and how a worker carries them out."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

KINDS = {
    "kill": "SIGKILL",
    "segv": "a segmentation fault",
    "exit": "the process ends with exit code VALUE (7)",
    "raise": "an exception in the step",
    "stop": "SIGSTOP",
    "hang": "the main thread sleeps",
    "gil": "a C call that keeps the interpreter lock",
    "slow": "from then on the rank takes VALUE (3) times as long",
    "oom": "allocates beyond a memory limit of VALUE (256) MiB more than it has",
    "corrupt": "one bit of the rank's replicated state is flipped",
}
VALUES = {  # kind -> least and greatest VALUE, and what it is
    "exit": (0.0, 255.0, "a whole number from 0 to 255, an exit code"),
    "slow": (1.0, 1000.0, "a factor from 1 to 1000"),
    "oom": (1.0, 1e6, "from 1 to 1000000 MiB"),
}
_SPEC = re.compile(
    r"(?P<kind>[a-z]+)@(?P<step>\d+|recovery):(?P<target>\w+)(=(?P<value>\d+(\.\d+)?))?\Z",
    re.ASCII,
)


class InjectedError(RuntimeError):
    """Raised by ``raise@STEP:RANK``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One planned fault. ``step`` None: during a recovery. ``rank`` None: ``target`` by name."""

    index: int
    kind: str
    step: int | None
    rank: int | None
    target: str
    value: float | None

    def __str__(self) -> str:
        """Return the specification."""
        when = "recovery" if self.step is None else self.step
        value = "" if self.value is None else f"={self.value:g}"
        return f"{self.kind}@{when}:{self.target}{value}"


def parse(specs: list[str], world_size: int) -> list[Injection]:
    """Return the injections that ``specs`` describe.

    Raises:
        ValueError: a specification that cannot be carried out; the text says what is wanted.
    """
    return [_parse_one(index, spec, world_size) for index, spec in enumerate(specs)]


def _parse_one(index: int, spec: str, world_size: int) -> Injection:
    match = _SPEC.match(spec)
    if match is None:
        raise ValueError(
            f"--inject {spec}: not of the form KIND@STEP:RANK[=VALUE], for example kill@40:1 or "
            "slow@20:2=3"
        )
    kind, when, target = match["kind"], match["step"], match["target"]
    if kind not in KINDS:
        raise ValueError(f"--inject {spec}: unknown fault {kind!r}; known: {', '.join(KINDS)}")
    value = float(match["value"]) if match["value"] else None
    if value is not None:
        _check_value(spec, kind, value)
    step = None if when == "recovery" else int(when)
    rank = int(target) if target.isdigit() else None
    if rank is None and (target not in ("spare", "coordinator") or kind != "kill" or step is None):
        raise ValueError(
            f"--inject {spec}: the target is a rank (0 to {world_size - 1}), or for kill@STEP also "
            "'spare' or 'coordinator'"
        )
    if rank is not None and rank >= world_size:
        raise ValueError(f"--inject {spec}: rank {rank} of a job with {world_size} ranks")
    if step is None and kind != "kill":
        raise ValueError(f"--inject {spec}: during a recovery only kill can be injected")
    return Injection(index=index, kind=kind, step=step, rank=rank, target=target, value=value)


def _check_value(spec: str, kind: str, value: float) -> None:
    if kind not in VALUES:
        raise ValueError(f"--inject {spec}: {kind} takes no value")
    least, greatest, wanted = VALUES[kind]
    if not least <= value <= greatest or (kind == "exit" and value != int(value)):
        raise ValueError(f"--inject {spec}: VALUE {value:g} of {kind} is not {wanted}")


@dataclass(slots=True)
class Injector:
    """Carries out the injections of one worker.

    Args:
        plan: all injections of the job.
        announce: tells (injection index, step) to the agent before the fault happens.
        flip: flips one bit of the replicated state.
    """

    plan: list[Injection]
    announce: Callable[[int, int], None]
    flip: Callable[[], None]
    fired: set[int] = field(default_factory=set)
    slowness: float = 1.0

    def at_step(self, step: int, rank: int) -> None:
        """Carry out what is planned for this rank at the beginning of ``step``."""
        for injection in self.plan:
            if injection.step == step and injection.rank == rank:
                self._fire(injection, step)

    def at_recovery(self, step: int, rank: int) -> None:
        """Carry out what is planned for this rank during a recovery."""
        for injection in self.plan:
            if injection.step is None and injection.rank == rank:
                self._fire(injection, step)

    def _fire(self, injection: Injection, step: int) -> None:
        if injection.index in self.fired:
            return
        self.fired.add(injection.index)
        self.announce(injection.index, step)
        _ACTIONS[injection.kind](self, injection)


def _kill(_: Injector, __: Injection) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segv(_: Injector, __: Injection) -> None:
    ctypes.string_at(0)


def _exit(_: Injector, injection: Injection) -> None:
    sys.stdout.flush()
    os._exit(7 if injection.value is None else int(injection.value))


def _raise(_: Injector, injection: Injection) -> None:
    raise InjectedError(f"injected: {injection}")


def _stop(_: Injector, __: Injection) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang(_: Injector, __: Injection) -> None:
    while True:
        time.sleep(3600)


def _gil(_: Injector, __: Injection) -> None:
    ctypes.PyDLL(None).sleep(1_000_000)  # PyDLL, unlike CDLL, keeps the interpreter lock


def _slow(injector: Injector, injection: Injection) -> None:
    injector.slowness = injection.value or 3.0


def _oom(_: Injector, injection: Injection) -> None:
    with open("/proc/self/statm") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    limit = in_use + int((injection.value or 256.0) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    hoard = []
    while True:
        hoard.append(bytearray(16 << 20))


def _corrupt(injector: Injector, _: Injection) -> None:
    injector.flip()


_ACTIONS: dict[str, Callable[[Injector, Injection], None]] = {
    "kill": _kill,
    "segv": _segv,
    "exit": _exit,
    "raise": _raise,
    "stop": _stop,
    "hang": _hang,
    "gil": _gil,
    "slow": _slow,
    "oom": _oom,
    "corrupt": _corrupt,
}
