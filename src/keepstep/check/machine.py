"""The machine and the stack: driver, architectures, libraries, extensions (KS7xx)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.check.ask import NoAnswerError, ask
from keepstep.check.extensions import of_the_job, try_extensions
from keepstep.check.finding import Finding, NotLooked, Severity
from keepstep.check.machine_facts import MachineFacts, read_machine
from keepstep.check.question import Question
from keepstep.check.rules import RULES
from keepstep.check.scene import Scene
from keepstep.check.wheels import OLDEST_DRIVER, WHEELS, numbers, runs

_PATIENCE_S = 60.0  # for one answer of an interpreter; importing torch takes seconds
_ENOUGH_SHARED = 1 << 30  # bytes; the default of containers is 64 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """What the interpreter of a stack holds."""

    torch: str | None  # version
    cuda: str | None  # of the wheel
    nccls: dict[str, str] = field(default_factory=dict)
    extensions: tuple[dict[str, Any], ...] = ()


Seen = tuple[list[Finding], list[NotLooked]]


def interpreter(question: Question) -> tuple[str, ...]:
    """Return the command of the interpreter to ask: the stack's, or this one if it has torch."""
    if question.python:
        return question.python
    return (sys.executable,) if importlib.util.find_spec("torch") else ()


def look_at_machine(scene: Scene, question: Question) -> Seen:
    """Return what the machine and the packages say."""
    facts = _facts(question)
    packages, not_looked = _packages(question)
    findings = [
        *_wheel(scene, question, facts, packages, not_looked),
        *fabric(facts, not_looked),
        *shared_memory(scene, facts),
        *nccls(scene, packages),
        *_wished(question, packages),
        *_extensions(scene, question, packages, not_looked),
    ]
    return findings, not_looked


def _facts(question: Question) -> MachineFacts:
    given, here = question.given, read_machine()
    if given.gpus is None and given.driver is None:
        return here
    # Another machine was described: nothing of this one holds there.
    return MachineFacts(gpus=given.gpus, driver=given.driver, fabric_manager=given.fabric_manager)


def _packages(question: Question) -> tuple[Packages, list[NotLooked]]:
    python = interpreter(question)
    if not python:
        return Packages(torch=None, cuda=None), [
            NotLooked(
                what="installed packages",
                why="this environment has no torch, and no stack was named",
                matters=False,
                mend="keepstep check --stack NAME (keepstep stack list)",
            )
        ]
    try:
        request = {"folders": [str(question.script.resolve().parent)]}
        answer = ask(python, "ask_stack.py", request, _PATIENCE_S)
    except NoAnswerError as error:
        return Packages(torch=None, cuda=None), [
            NotLooked(
                what=f"packages of {question.stack or python[0]}",
                why=f"its interpreter gave no answer: {error}",
                matters=True,
                mend="keepstep stack show NAME says what is wrong with it",
            )
        ]
    torch = answer["torch"] or {}
    found = Packages(
        torch=torch.get("version"),
        cuda=torch.get("cuda"),
        nccls=answer["nccls"],
        extensions=tuple(answer["extensions"]),
    )
    return found, [*_whose(question), *_another_version(question, found)]


def _whose(question: Question) -> list[NotLooked]:
    """Say that packages of keepstep's own environment may not be those of the job."""
    if question.python:
        return []
    return [
        NotLooked(
            what="packages of another environment",
            why=f"no stack was named, so those beside keepstep were looked at ({sys.prefix}); of "
            "its compiled extensions, those that the job imports",
            matters=False,
            mend="if the job runs elsewhere: --stack NAME (keepstep stack list)",
        )
    ]


def _another_version(question: Question, packages: Packages) -> list[NotLooked]:
    """Say that extensions were tried with another PyTorch than the new one."""
    new = f"2.{question.leap.new}"
    if packages.torch is None or packages.torch.startswith(f"{new}."):
        return []
    where = f"the stack {question.stack}" if question.stack else "this environment"
    return [
        NotLooked(
            what=f"packages for PyTorch {new}",
            why=f"{where} has {packages.torch}: its extensions were tried with that",
            matters=False,
            mend=f"keepstep stack create new --torch {new}, with your requirements, then "
            "--stack new",
        )
    ]


def _wheel(
    scene: Scene,
    question: Question,
    facts: MachineFacts,
    packages: Packages,
    not_looked: list[NotLooked],
) -> Iterator[Finding]:
    """Compare the wheel of the new version with driver and GPUs."""
    if facts.gpus == ():
        return
    if not (scene.cuda or scene.any_nccl):
        return
    version = f"2.{question.leap.new}"
    asked = bool(packages.torch and packages.torch.startswith(f"{version}."))
    table = WHEELS.get(version)
    cuda = packages.cuda if asked else (table.cuda if table else None)
    if facts.driver is None or facts.gpus is None:
        missing = " and ".join(
            what
            for what, known in (("driver", facts.driver), ("GPUs", facts.gpus))
            if known is None
        )
        not_looked.append(
            NotLooked(
                what=missing,
                why="none can be seen here, and the code names CUDA",
                matters=True,
                mend="run it where the job will run, or say what is there: --gpus sm_90 --driver "
                "580.65.06 (--gpus none for a job on CPUs)",
            )
        )
    if cuda is None:
        if not (asked and packages.torch):
            not_looked.append(_no_wheel(version))
        return
    if facts.driver is not None:
        yield from driver(facts.driver, cuda, version, not_looked)
    if facts.gpus:
        built = table.architectures if table and table.cuda == cuda else None
        built = built or _ask_architectures(question, asked, not_looked)
        yield from architectures(facts.gpus, built, version) if built else ()


def _no_wheel(version: str) -> NotLooked:
    return NotLooked(
        what=f"the CUDA of the wheel of PyTorch {version}",
        why="no stack has it, and it is not in the table",
        matters=True,
        mend=f"keepstep stack create new --torch {version}, then --stack new",
    )


def driver(seen: str, cuda: str, version: str, not_looked: list[NotLooked]) -> Iterator[Finding]:
    """Compare a driver with the oldest that a wheel's CUDA runs on."""
    wanted = OLDEST_DRIVER.get(numbers(cuda)[0])
    if wanted is None or not numbers(seen):
        not_looked.append(
            NotLooked(
                what=f"driver {seen} for CUDA {cuda}",
                why="the table does not know this major version",
                matters=True,
                mend="compare it with the CUDA release notes",
            )
        )
        return
    # A branch such as 580 or 580.65 is given where the rest is not known.
    if numbers(seen) < numbers(wanted)[: len(numbers(seen))]:
        yield RULES["KS701"].here(
            f"driver {seen}; the wheel of PyTorch {version} has CUDA {cuda}, which wants "
            f"{wanted} or newer"
        )


def architectures(gpus: tuple[str, ...], built: tuple[str, ...], version: str) -> Iterator[Finding]:
    """Compare GPUs with the architectures that a wheel has code for."""
    for gpu in dict.fromkeys(gpus):
        if not runs(gpu, built):
            yield RULES["KS702"].here(
                f"{gpu}; the wheel of PyTorch {version} has code for {', '.join(built)}"
            )


def _ask_architectures(
    question: Question, asked: bool, not_looked: list[NotLooked]
) -> tuple[str, ...] | None:
    why = f"no stack with PyTorch 2.{question.leap.new} was named"
    if asked:
        try:
            answer = ask(interpreter(question), "ask_architectures.py", {}, _PATIENCE_S)
            return tuple(answer["architectures"]) or None
        except NoAnswerError as error:
            why = str(error)
    not_looked.append(
        NotLooked(what="architectures of the wheel", why=why, matters=True, mend="--stack NAME")
    )
    return None


def fabric(facts: MachineFacts, not_looked: list[NotLooked]) -> Iterator[Finding]:
    """Compare fabric manager and driver."""
    if not facts.gpus or facts.driver is None:
        return
    if facts.fabric_manager is None:
        not_looked.append(
            NotLooked(
                what="fabric manager",
                why="none can be read here; only machines with NVSwitch have one",
                matters=False,
                mend="--fabric-manager VERSION (nv-fabricmanager --version)",
            )
        )
    elif numbers(facts.fabric_manager) != numbers(facts.driver):
        yield RULES["KS703"].here(f"fabric manager {facts.fabric_manager}, driver {facts.driver}")


def shared_memory(scene: Scene, facts: MachineFacts) -> Iterator[Finding]:
    """Look at the size of /dev/shm."""
    size = facts.shared_memory
    if size is not None and size < _ENOUGH_SHARED and scene.any_nccl:
        yield RULES["KS704"].here(f"/dev/shm has {size >> 20} MiB")


def nccls(scene: Scene, packages: Packages) -> Iterator[Finding]:
    """Look for more than one NCCL: installed twice, or in front of the wheel's own."""
    if len(packages.nccls) > 1:
        both = ", ".join(f"{name} {version}" for name, version in sorted(packages.nccls.items()))
        yield RULES["KS707"].here(f"{both}: both lay their library in the same place")
    variables = {**scene.environment, **scene.launch.variables}
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        for path in filter(None, variables.get(name, "").replace(" ", ":").split(":")):
            found = _nccl_at(Path(path))
            if found and packages.torch:
                yield RULES["KS707"].here(
                    f"{name} brings {found} in front of the wheel's own", severity=Severity.RISK
                )


def _nccl_at(path: Path) -> str:
    if path.name.startswith("libnccl.so"):
        return str(path)
    try:
        return next((str(each) for each in sorted(path.glob("libnccl.so*"))), "")
    except OSError:
        return ""


def _wished(question: Question, packages: Packages) -> Iterator[Finding]:
    """Compare the PyTorch of a stack with the one that was asked for when it was made."""
    wished, seen = question.wished_torch, packages.torch
    if wished and seen and seen.split("+")[0] != wished.split("+")[0]:
        yield RULES["KS708"].here(f"stack {question.stack}: {seen}; asked for was {wished}")


def _extensions(
    scene: Scene, question: Question, packages: Packages, not_looked: list[NotLooked]
) -> Iterator[Finding]:
    if packages.torch is None:
        return
    nccl2 = question.leap.new >= 15 and numbers(packages.torch) >= (2, 15)
    # What else lies beside keepstep is nothing that the job was said to run with.
    extensions = (
        packages.extensions if question.python else of_the_job(packages.extensions, scene.foreign)
    )
    yield from try_extensions(interpreter(question), extensions, scene.foreign, nccl2, not_looked)
