"""The scripts that run inside a stack need nothing of ours, and agree with who reads them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from keepstep.drills import held_ranks
from keepstep.drills.inside import held, resolved
from keepstep.drills.resolutions import DIFFER

FOLDER = Path(held.__file__).parent
SCRIPTS = ("held.py", "resolved.py")
OLDEST_PYTHON = (3, 10)


def imported(script: str) -> set[str]:
    tree = ast.parse((FOLDER / script).read_text(), feature_version=OLDEST_PYTHON)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_standard_library_and_torch_only(script: str) -> None:
    assert imported(script) <= set(sys.stdlib_module_names) | {"torch"}


def test_the_job_for_keepstep_run_needs_no_more_than_keepstep() -> None:
    assert imported("stepping.py") <= set(sys.stdlib_module_names) | {"torch", "keepstep"}


def test_both_sides_count_the_same_collectives() -> None:
    assert held.WARM_UP == held_ranks.WARM_UP


def test_ranks_that_agree_do_not_differ() -> None:
    one = dict.fromkeys(resolved.SAME, "x")
    assert resolved.differing([one, dict(one), dict(one)]) == []


@pytest.mark.parametrize("name", resolved.SAME)
def test_each_difference_is_named_with_its_ranks(name: str) -> None:
    one = dict.fromkeys(resolved.SAME, "x")
    (text,) = resolved.differing([one, {**one, name: "y"}])
    assert text == f"{name} differs: rank 0: x, rank 1: y"
    assert DIFFER == 1
