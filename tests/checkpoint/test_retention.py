"""How other tools choose what to remove, replayed: what a window leaves them, and what it keeps.

Each rule is what the named version does, read in its source; the real packages were run once with
the same outcome (docs/checkpoint.md). They are not installed here, because they bring a gigabyte.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keepstep.checkpoint import copies, is_protected
from keepstep.checkpoint.protect import Terms, protect
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.runs import TOMORROW, Run, content, run

__all__ = ["run"]

KEEP = 2

Exempt = Callable[[int], bool]


def torchtitan_0_3_0(folder: Path, exempt: Exempt) -> list[Path]:
    """CheckpointManager._purge_stale_checkpoints: there is nothing to ask."""
    found = [
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := re.search(r"step-(\d+)", path.name))
    ]
    return [path for _, path in sorted(found)[:-KEEP]]


def torchtitan_main(folder: Path, exempt: Exempt) -> list[Path]:
    """BaseCheckpointManager._purge_stale_checkpoints of commit 091ca6d, while step 600 is saved."""
    whole, abandoned = [], []
    for path in folder.iterdir():
        match = re.fullmatch(r"step-(0|[1-9]\d*)", path.name)
        if path.name == "step-600" or match is None:
            continue
        if (path / ".metadata").is_file() or (path / "model.safetensors.index.json").is_file():
            whole.append((int(match[1]), path))
        else:
            abandoned.append(path)
    old = sorted(whole)[: max(0, len(whole) - (KEEP - 1))]
    return [path for step, path in old if not exempt(step)] + abandoned


def lightning_2_6_6(folder: Path, exempt: Exempt) -> list[Path]:
    """ModelCheckpoint._update_best_and_save: what this process saved and is not in the top k."""
    saved = [folder / f"step-{step}" for step in range(100, 700, 100)]
    return [path for path in saved[:-KEEP] if not exempt(int(path.name[5:]))]


def orbax_0_12_8(folder: Path, exempt: Exempt) -> list[Path]:
    """CheckpointManager._get_old_steps_to_remove with AnyPreservationPolicy([LatestN(2), ...])."""
    names = [re.fullmatch(r"step-(\d+)", path.name) for path in folder.iterdir()]
    steps = sorted(int(match[1]) for match in names if match)
    latest = [False] * (len(steps) - KEEP) + [True] * KEEP
    keep = [new or exempt(step) for step, new in zip(steps, latest, strict=True)]
    return [folder / f"step-{step}" for step, kept in zip(steps, keep, strict=True) if not kept]


RULES = [torchtitan_0_3_0, torchtitan_main, lightning_2_6_6, orbax_0_12_8]


@pytest.fixture
def protected(run: Run) -> Run:
    """Give a run with three protected steps, three newer ones and a folder that prune left."""
    run.save(100, 200, 300)
    run.test_load(300)
    protect(run.store, Terms(minor="2.14", owner="maria", until=TOMORROW))
    run.save(350, version="2.15.0")
    copies.set_aside(run.path, "step-350")
    run.save(400, 500, 600, version="2.15.0")
    return run


@pytest.mark.parametrize("rule", RULES)
def test_a_copy_beside_the_run_outlives_every_rule(
    rule: Callable[[Path, Exempt], list[Path]], protected: Run
) -> None:
    before = content(protected.copies)
    for path in rule(protected.path, lambda step: False):
        shutil.rmtree(path)
    assert protected.steps() == [500, 600]
    assert content(protected.copies) == before
    for step in (100, 200, 300):
        copy = LocalStore(protected.copies / f"step-{step}")
        assert find_readers(copy).readers["2.14"]


@pytest.mark.parametrize("rule", RULES)
def test_who_can_ask_keeps_what_is_protected(
    rule: Callable[[Path, Exempt], list[Path]], protected: Run
) -> None:
    folder = protected.path
    for path in rule(folder, lambda step: is_protected(f"{folder}/step-{step}")):
        shutil.rmtree(path)
    asks = rule is not torchtitan_0_3_0
    assert protected.steps() == ([100, 200, 300, 500, 600] if asks else [500, 600])


@pytest.mark.parametrize("rule", RULES)
def test_nobody_counts_what_prune_has_set_aside(
    rule: Callable[[Path, Exempt], list[Path]], protected: Run
) -> None:
    aside = [path for path in protected.path.iterdir() if not path.name.startswith("step-")]
    assert len(aside) == 1
    assert aside[0] not in rule(protected.path, lambda step: False)


def test_a_name_inside_the_run_protects_nothing(protected: Run) -> None:
    named = protected.path / "protected-step-100"
    shutil.copytree(protected.path / "step-100", named)
    assert named in torchtitan_0_3_0(protected.path, lambda step: False)
