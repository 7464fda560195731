"""One look at a job before the leap: reads, never executes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from keepstep.check import (
    call_rules,
    checkpoint_rules,
    device_rules,
    launch_rules,
    name_rules,
    native,
    variable_rules,
)
from keepstep.check.assumed import assumed
from keepstep.check.counted import count
from keepstep.check.finding import Finding, NotLooked, Report, worst_first
from keepstep.check.machine import look_at_machine
from keepstep.check.question import Question
from keepstep.check.rules import RULES
from keepstep.check.scene import Scene, see
from keepstep.check.sources import Sources, read_sources
from keepstep.check.syntax import settle_syntax

# Packages that make process groups by themselves; their own code is not looked at.
_FRAMEWORKS = {
    *("accelerate", "deepspeed", "lightning", "pytorch_lightning", "megatron", "torchtitan"),
    *("transformers", "torchrec", "fairscale", "colossalai", "ray", "torchtune", "nemo"),
    *("torchft", "nvidia_resiliency_ext", "transformer_engine"),
}


def look(question: Question, say: Callable[[str], object] = str) -> Report:
    """Return what was found, and what was not looked at.

    Args:
        question: What is asked.
        say: Called with a line before each part that takes seconds.

    Raises:
        CannotLookError: The script is missing or no Python source.
        BadLayoutError: A layout to count cannot be read.
    """
    code, scene = look_at_code(question)
    findings, refused = settle_syntax(list(code.findings), question)
    not_looked = [*code.not_looked, *refused]
    for words, part in (("machine and packages", look_at_machine), ("communicators", count)):
        say(f"looking at {words}")
        more, unseen = part(scene, question)
        findings += more
        not_looked += unseen
    return _report(findings, not_looked, code.looked, code.backends)


def look_at_code(question: Question) -> tuple[Report, Scene]:
    """Return what the code, the variables and the launch line say; no other process is started.

    Raises:
        CannotLookError: The script is missing or no Python source.
    """
    sources = read_sources(question.script, question.include)
    scene = see(sources, question.leap, question.launch, dict(question.environment))
    casts, unseen = native.casts(scene, question.script.resolve().parent)
    findings = [*_broken(sources), *_of_code(scene, question), *casts]
    not_looked = [*sources.not_looked, *_frameworks(sources), *unseen]
    looked = tuple(module.file for module in sources.modules)
    return _report(findings, not_looked, looked, assumed(scene)), scene


def _report(
    findings: list[Finding],
    not_looked: list[NotLooked],
    looked: tuple[str, ...],
    backends: tuple[str, ...],
) -> Report:
    return Report(
        findings=worst_first(findings),
        not_looked=tuple(dict.fromkeys(not_looked)),
        looked=looked,
        backends=backends,
    )


def _of_code(scene: Scene, question: Question) -> Iterator[Finding]:
    yield from device_rules.check(scene)
    yield from name_rules.check(scene)
    yield from call_rules.check(scene)
    yield from checkpoint_rules.check(scene)
    yield from variable_rules.check(scene)
    gpus = question.given.gpus
    yield from launch_rules.check(scene, None if gpus is None else len(gpus))


def _broken(sources: Sources) -> Iterator[Finding]:
    for each in sources.broken:
        yield RULES["KS001"].here(each.text, file=each.file, line=each.line, column=each.column)


def _frameworks(sources: Sources) -> Iterator[NotLooked]:
    for name in sorted(sources.foreign & _FRAMEWORKS):
        yield NotLooked(
            what=f"the package {name}",
            why="it makes process groups itself, and installed packages are not read",
            matters=False,
            mend=f"read it as well: --include {Path('path') / 'to' / name}, or run the canary: "
            "keepstep rehearse",
        )
