"""The command line of the probe: ``python -m keepstep.probe [options] script.py [args]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

USAGE = (
    "usage: python -m keepstep.probe --record DIR [--no-sweep] [--slow FACTOR] [--faster FACTOR] "
    "[--plant FAULT]... script.py [args]"
)


class OptionsError(ValueError):
    """The command line is not understood."""


@dataclass(slots=True)
class Options:
    """What was asked for."""

    script: str
    arguments: list[str]
    record: Path
    sweep: bool = True
    slow: float = 1.0
    faster: float = 1.0
    plants: list[str] = field(default_factory=list)


def parse(words: list[str]) -> Options:
    """Return the options; everything from the script on belongs to the script.

    Raises:
        OptionsError: It names what is wrong and what is wanted.
    """
    values: dict[str, str] = {}
    plants: list[str] = []
    sweep = True
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name, joined, value = rest.pop(0).partition("=")
        name = "--faster" if name == "--fast" else name
        if name == "--no-sweep":
            sweep = False
        elif name in ("--record", "--slow", "--faster", "--plant"):
            if not joined:
                if not rest:
                    raise OptionsError(f"{name} wants a value\n{USAGE}")
                value = rest.pop(0)
            if name == "--plant":
                plants.append(value)
            else:
                values[name] = value
        else:
            raise OptionsError(f"{name}: no such option\n{USAGE}")
    if not rest:
        raise OptionsError(f"no script was named\n{USAGE}")
    if "--record" not in values:
        raise OptionsError(f"--record DIR is missing: where the record is to be written\n{USAGE}")
    if Path(values["--record"]).exists() and not Path(values["--record"]).is_dir():
        raise OptionsError(
            f"--record {values['--record']}: it is no folder; wanted one, or a new name"
        )
    return Options(
        script=rest[0],
        arguments=rest[1:],
        record=Path(values["--record"]),
        sweep=sweep,
        slow=_factor("--slow", values.get("--slow", "1")),
        faster=_factor("--faster", values.get("--faster", "1")),
        plants=plants,
    )


_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def check_ranks(variables: Mapping[str, str]) -> None:
    """Refuse variables that do not say which rank this is: the record would be another one's.

    Raises:
        OptionsError: It names the variable and what is wanted.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    given = {name: variables[name] for name in names if name in variables}
    for name, text in given.items():
        if not _NUMBER.fullmatch(text) or (name == "WORLD_SIZE" and text == "0"):
            least = 1 if name == "WORLD_SIZE" else 0
            raise OptionsError(
                f"{name}={text!r} in the environment: wanted a number from {least} on, as torchrun "
                "sets it; unset RANK to run as the only rank"
            )
    if "RANK" in given and int(given["RANK"]) >= int(given.get("WORLD_SIZE", 10**9)):
        raise OptionsError(
            f"RANK={given['RANK']} and WORLD_SIZE={given['WORLD_SIZE']} in the environment: wanted "
            "a rank below the world size; unset RANK to run as the only rank"
        )


def _factor(name: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor <= 100.0:
        raise OptionsError(f"{name} {text}: wanted a factor from 1 to 100, such as 1.10")
    return factor
