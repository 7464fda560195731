"""A launch line: the variables that it sets, the launcher, its options, the script's options."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_OLD_LAUNCHER = "torch.distributed.launch"


class BadLaunchError(ValueError):
    """The launch line cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a launch line says."""

    text: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    launcher: str = ""  # torchrun, torch.distributed.launch, srun, python ...
    launcher_options: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)  # of the script

    @property
    def passes_local_rank(self) -> bool:
        """Return whether the launcher hands --local-rank to the script (the old one does)."""
        return self.launcher == _OLD_LAUNCHER and "use_env" not in self.launcher_options


def read_launch(text: str) -> Launch:
    """Return what a launch line says; nothing in it is executed or expanded.

    Raises:
        BadLaunchError: A quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadLaunchError(
            f"--launch: {error}; wanted one command line, such as "
            "'NCCL_DEBUG=INFO torchrun --nproc-per-node 8 train.py'"
        ) from None
    variables, words = _variables(words)
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))
    before, after = words[:script], words[script + 1 :]
    return Launch(
        text=text,
        variables=variables,
        launcher=_launcher(before),
        launcher_options=_options(before),
        options=_options(after),
    )


def _variables(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Take NAME=VALUE from before the script: plain, after `env`, `export`, `-x`, `-e`."""
    found: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        match = _VARIABLE.fullmatch(word)
        seen_script = any(each.endswith(".py") for each in rest)
        if match and not seen_script:
            found[match[1]] = match[2].rstrip(";")
        elif word.startswith("--export=") and not seen_script:  # of srun
            found.update(_exported(word.removeprefix("--export=")))
        elif word not in (";", "&&"):
            rest.append(word)
    return found, rest


def _exported(text: str) -> dict[str, str]:
    pairs = (_VARIABLE.fullmatch(part) for part in text.split(","))
    return {match[1]: match[2] for match in pairs if match}


def _launcher(words: list[str]) -> str:
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        if word == "-m" and index + 1 < len(words):
            module = words[index + 1]
            return "torchrun" if module == "torch.distributed.run" else module
        if name in ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun", "keepstep"):
            return name
    return next((word.rpartition("/")[2] for word in words if not word.startswith("-")), "")


def _options(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        follows = words[index + 1] if index + 1 < len(words) else ""
        found[name.replace("-", "_")] = (
            value if equals else ("" if follows.startswith("-") else follows)
        )
    return found
