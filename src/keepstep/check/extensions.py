"""Compiled extensions of a stack: do they import, and do they cast to the legacy backend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from keepstep.check.ask import NoAnswerError, ask
from keepstep.check.finding import Finding, NotLooked, Severity
from keepstep.check.rules import RULES

MOST = 200  # that one look tries
_EACH_S, _ALL_S = 60.0, 600.0

# What only a GPU's driver brings: without one, the import says nothing about the build.
_DRIVERS_OWN = (
    "libcuda.so",
    "libnvidia-ml.so",
    "no NVIDIA driver",
    "No CUDA GPUs",
    "active drivers",
)

Extension = dict[str, Any]  # as ask_stack.py gives it


def try_extensions(
    python: Sequence[str],
    extensions: Sequence[Extension],
    imported: Iterable[str],
    nccl2: bool,
    not_looked: list[NotLooked],
) -> Iterator[Finding]:
    """Import each extension in its interpreter, and say which do not.

    Args:
        python: The command of the interpreter.
        extensions: What was found in it.
        imported: Top-level packages that the job imports.
        nccl2: Whether the leap goes to a PyTorch whose nccl is ProcessGroupNCCL2.
        not_looked: What could not be tried is added here.
    """
    tried = list(extensions[:MOST])
    yield from _casts(tried, imported) if nccl2 else ()
    if not tried:
        return
    if len(extensions) > MOST:
        left = f"{len(extensions) - MOST} more extensions"
        not_looked.append(NotLooked(what=left, why=f"{MOST} were tried", matters=True))
    try:
        request = {"extensions": tried, "patience_s": _EACH_S}
        errors = ask(python, "ask_extensions.py", request, _ALL_S)["errors"]
    except NoAnswerError as error:
        what = f"{len(tried)} extensions"
        not_looked.append(NotLooked(what=what, why=f"no answer: {error}", matters=True))
        return
    yield from judge(tried, errors, imported, not_looked)


def of_the_job(extensions: Iterable[Extension], imported: Iterable[str]) -> list[Extension]:
    """Return those that a job brings or imports, of an environment that may not be its own."""
    names = set(imported)
    return [each for each in extensions if each["shown"] == each["path"] or _used(each, names)]


def judge(
    tried: Sequence[Extension],
    errors: Sequence[str],
    imported: Iterable[str],
    not_looked: list[NotLooked],
) -> Iterator[Finding]:
    """Say what the errors of imports mean, once a package."""
    groups: dict[tuple[str, str], list[Extension]] = {}
    for each, error in zip(tried, errors, strict=True):
        if error and any(text in error for text in _DRIVERS_OWN):
            not_looked.append(
                NotLooked(
                    what=f"the extension {each['shown']}",
                    why=f"it needs a GPU's driver to import: {error}",
                    matters=False,
                    mend="look on a machine with a GPU",
                )
            )
        elif error:
            groups.setdefault((each["package"], error), []).append(each)
    for (_, error), same in groups.items():
        more = f" (and {len(same) - 1} more of its files)" if len(same) > 1 else ""
        used = _used(same[0], imported)
        yield RULES["KS705"].here(
            f"{error}{more}" + ("" if used else "; no file that was read imports the package"),
            file=same[0]["shown"],
            severity=Severity.BREAKS if used else Severity.RISK,
        )


def _casts(tried: Sequence[Extension], imported: Iterable[str]) -> Iterator[Finding]:
    for each in tried:
        if each["casts"]:
            used = _used(each, imported)
            yield RULES["KS706"].here(
                "refers to the type information of c10d::ProcessGroupNCCL"
                + ("" if used else "; no file that was read imports the package"),
                file=each["shown"],
                severity=Severity.BREAKS if used else Severity.RISK,
            )


def _used(extension: Extension, imported: Iterable[str]) -> bool:
    return bool({extension["package"], *extension["siblings"]} & set(imported))
