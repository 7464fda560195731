"""Environment variables: set in code, in the launch line, or where keepstep runs (KS5xx)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from keepstep.check.call_rules import is_by_rank
from keepstep.check.finding import Finding, Severity
from keepstep.check.naming import DIST, argument
from keepstep.check.rule import Rule
from keepstep.check.rules import RULES
from keepstep.check.scene import Part, Scene
from keepstep.check.variable_writes import Write, writes
from keepstep.stack.variables import IGNORED, REMOVED, RENAMED, UNKNOWN, Status, known, status_of

LEVER = "TORCH_DIST_USE_NCCL2"
_OURS = ("TORCH_", "NCCL_", "PYTORCH_")  # prefixes whose unknown names are worth a word

_NO_RECORDING = {
    "TORCH_FR_BUFFER_SIZE": "0",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_FR_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One variable, and where it is set."""

    name: str
    value: str | None  # None: not written there
    where: str  # in words; "" for code
    part: Part | None = None
    node: ast.AST | None = None

    def found(self, rule: Rule, text: str, severity: Severity, why: str, mend: str) -> Finding:
        if self.part is not None and self.node is not None:
            return rule.at(self.part, self.node, text, severity=severity, why=why, mend=mend)
        text = f"{text} ({self.where})"
        return rule.here(text, severity=severity, why=why, mend=mend)


def check(scene: Scene) -> Iterator[Finding]:
    """Yield what the rules KS501 to KS508 find."""
    for setting in _settings(scene):
        yield from _status(scene, setting)
        yield from _hang(setting)
    for part in scene.parts:
        for write in writes(part):
            if write.name == LEVER:
                yield from _lever(scene, part, write)
        yield from _store(part)


def _settings(scene: Scene) -> Iterator[_Setting]:
    for part in scene.parts:
        for write in writes(part):
            yield _Setting(name=write.name, value=write.text, where="", part=part, node=write.node)
    for name, value in scene.launch.variables.items():
        yield _Setting(name=name, value=value, where="in the launch line")
    for name, value in scene.environment.items():
        if name not in scene.launch.variables and known(name):
            yield _Setting(name=name, value=value, where="in this environment")


def _lever_value(scene: Scene) -> str | None:
    for source in (scene.launch.variables, scene.environment):
        if LEVER in source:
            return source[LEVER]
    found = [write for part in scene.parts for write in writes(part) if write.name == LEVER]
    return found[0].text if found else None


def _status(scene: Scene, setting: _Setting) -> Iterator[Finding]:
    backend, lever = scene.spelling, _lever_value(scene)
    old = status_of(setting.name, backend=backend, torch=f"2.{scene.leap.old}", use_nccl2=lever)
    new = status_of(setting.name, backend=backend, torch=f"2.{scene.leap.new}", use_nccl2=lever)
    told = f"{setting.name}, {backend} of 2.{scene.leap.new}"
    why = " ".join(filter(None, (_words(new), f"({new.source})" if new.source else "")))
    if new.word == RENAMED:
        severity = Severity.NOTE if new.effective else Severity.CHANGES
        text = f"{told}: renamed to {new.to}" + ("" if not new.effective else ", still read")
        yield setting.found(RULES["KS502"], text, severity, why, f"set {new.to} as well")
    elif new.word in (IGNORED, REMOVED):
        before = old.effective is not False
        if not before and setting.where == "in this environment":
            return  # it did nothing before, and nobody set it for this job
        ending = f"; 2.{scene.leap.old} reads it" if before else ", as before"
        severity = Severity.CHANGES if before else Severity.NOTE
        yield setting.found(RULES["KS501"], f"{told}: {new.word}{ending}", severity, why, "")
    elif new.word == UNKNOWN and setting.name.startswith(_OURS) and not known(setting.name):
        yield setting.found(RULES["KS503"], f"{setting.name} is not known", Severity.NOTE, "", "")


def _words(status: Status) -> str:
    if status.note:
        return status.note
    return "nothing reads it any more" if status.word == REMOVED else ""


def _hang(setting: _Setting) -> Iterator[Finding]:
    value = (setting.value or "").strip().lower()
    text = f"{setting.name}={setting.value}"
    off = value == "0" or (value in ("false", "n", "no") and "DUMP" in setting.name)
    if setting.name in _NO_RECORDING and off:
        yield setting.found(RULES["KS506"], text, Severity.RISK, "", "")
    if setting.name == "TORCH_NCCL_ASYNC_ERROR_HANDLING" and value == "0":
        yield setting.found(RULES["KS508"], text, Severity.RISK, "", "")
    if setting.name == "USE_LIBUV" and value in ("0", "false"):
        yield setting.found(RULES["KS507"], text, Severity.NOTE, "", "")


def _lever(scene: Scene, part: Part, write: Write) -> Iterator[Finding]:
    home = part.function(write.node)
    line = getattr(write.node, "lineno", 0)
    for init in scene.inits:
        same = init.part is part and part.function(init.call) is home
        if same and init.call.lineno < line:
            text = f"{LEVER} is set after init_process_group of line {init.call.lineno}"
            yield RULES["KS504"].at(part, write.node, text)
    for node in part.above(write.node):
        if isinstance(node, ast.If) and is_by_rank(node.test):
            text = f"{LEVER} is set under `if {ast.unparse(node.test)}`"
            yield RULES["KS505"].at(part, write.node, text)


def _store(part: Part) -> Iterator[Finding]:
    for call in part.called(f"{DIST}.TCPStore"):
        flag = argument(call, "use_libuv")
        if isinstance(flag, ast.Constant) and flag.value is False:
            yield RULES["KS507"].at(part, call, "TCPStore(use_libuv=False)")
    for call in part.called(f"{DIST}.init_process_group"):
        method = argument(call, "init_method", 1)
        if isinstance(method, ast.Constant) and "use_libuv=0" in str(method.value):
            yield RULES["KS507"].at(part, call, f"init_method={method.value!r}")
