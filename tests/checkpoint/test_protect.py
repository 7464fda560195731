"""Rollback windows: what is protected, how it moves on, and how a window ends."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import copies, is_protected, testload
from keepstep.checkpoint.choice import choose
from keepstep.checkpoint.errors import CheckpointError
from keepstep.checkpoint.ledger import ledger_of
from keepstep.checkpoint.protect import (
    Answer,
    Protection,
    Terms,
    UnansweredError,
    finalize,
    protect,
    release,
)
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.sibling import Placement
from keepstep.checkpoint.standing import standings
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.verify import verify
from keepstep.checkpoint.window import Window, window_of
from tests.checkpoint.runs import ENVIRONMENT, TOMORROW, Run, content, run

__all__ = ["run"]

TERMS = Terms(minor="2.14", owner="maria", until=TOMORROW)


def names(done: Protection) -> list[str]:
    return [mark.name for mark in done.window.marks]


def window(run: Run) -> Window | None:
    return window_of(ledger_of(run.store).read())


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file system that knows neither reflinks nor hard links."""

    def refuse(*_: Any) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(
        "keepstep.checkpoint.sibling._PLACE",
        {
            Placement.REFLINK: refuse,
            Placement.LINK: refuse,
            Placement.COPY: shutil.copy2,
        },
    )


# What is worth protecting.


def test_the_newest_that_is_readable_and_test_loaded_and_the_two_before_it(run: Run) -> None:
    run.save(100, 200, 300, 400, 500)
    run.save(600, version="2.15.0")
    run.test_load(400)
    done = protect(run.store, TERMS)
    assert names(done) == ["step-400", "step-300", "step-200"]
    assert [mark.tested is not None for mark in done.window.marks] == [True, False, False]
    assert (done.choice.newest, done.choice.ahead, done.notes) == ("step-600", ("step-500",), ())
    assert done.window.marks[0].bytes == sum(map(len, content(run.path / "step-400").values()))
    assert window(run) == done.window


def test_what_the_version_cannot_read_is_not_one_of_the_two_before(run: Run) -> None:
    run.save(100, 200, 400)
    run.save(300, version="2.15.0")
    run.test_load(400)
    assert names(protect(run.store, TERMS)) == ["step-400", "step-200", "step-100"]


def test_without_a_test_load_the_newest_readable_are_protected(run: Run) -> None:
    run.save(100, 200, 300, 400)
    done = protect(run.store, TERMS)
    assert names(done) == ["step-400", "step-300", "step-200"]
    assert not done.choice.tested


@pytest.mark.parametrize("why", ["failed", "the environment changed", "the checkpoint changed"])
def test_a_test_load_that_proves_nothing_does_not_count(
    why: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(100, 200)
    run.test_load(100)
    run.test_load(200, "fail" if why == "failed" else "pass")
    if why == "the environment changed":
        changed = {**ENVIRONMENT, "python": "3.11.8"}
        monkeypatch.setattr(testload, "environment_of", lambda python: changed)
    elif why == "the checkpoint changed":
        (run.path / "step-200" / "__0_0.distcp").touch()
    found = choose(run.store, "2.14")
    expected = None if why == "the environment changed" else "step-100"
    assert (found.marks[0].name if found.tested else None) == expected


def test_folders_that_are_no_checkpoints_are_passed_over(run: Run) -> None:
    run.save(100)
    run.test_load(100)
    (run.path / "step-200").mkdir()
    run.save(300)
    (run.path / "step-300" / ".metadata").write_bytes(b"damaged")
    run.save(400)
    (run.path / "step-400").rename(run.path / "best-400")
    assert names(protect(run.store, TERMS)) == ["step-100"]


def test_nothing_readable_opens_the_window_and_protects_nothing(run: Run) -> None:
    run.save(100, version="2.15.0")
    done = protect(run.store, TERMS)
    assert (done.window.marks, done.choice.newest) == ((), "step-100")
    assert window(run) == done.window
    assert not run.copies.exists()


# Copies beside the run, which no trainer's retention finds.


def test_a_copy_outlives_what_the_trainer_removes_and_costs_nothing_before(run: Run) -> None:
    run.save(100)
    run.test_load(100)
    before = content(run.path / "step-100")
    done = protect(run.store, TERMS)
    assert done.copies["step-100"] in (Placement.REFLINK, Placement.LINK)
    shutil.rmtree(run.path / "step-100")
    copy = run.copies / "step-100"
    assert content(copy) == before
    assert verify(run.store.below("../run.protected/step-100")).checked
    assert find_readers(run.store.below("../run.protected/step-100")).readers["2.14"]
    (standing,) = standings(run.store, done.window)
    assert (standing.in_run, standing.copy) == (None, True)


def test_protection_goes_on_from_the_copy(run: Run) -> None:
    run.save(100)
    run.test_load(100)
    first = protect(run.store, TERMS)
    shutil.rmtree(run.path / "step-100")
    run.save(200, version="2.15.0")
    again = protect(run.store, Terms())
    assert again.window.marks == first.window.marks
    assert again.choice.tested


def test_the_ledger_tells_other_machines_of_a_test_load(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run.save(100, 200)
    run.test_load(100)
    protect(run.store, TERMS)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another home"))
    assert choose(run.store, "2.14").tested is False
    again = protect(run.store, Terms())
    assert (names(again), again.choice.tested) == (["step-100"], True)
    (run.path / "step-100" / "__0_0.distcp").touch()
    assert not protect(run.store, Terms()).choice.tested


def test_an_overwrite_through_a_hard_link_is_noticed(run: Run) -> None:
    run.save(100)
    run.test_load(100)
    done = protect(run.store, TERMS, placement=Placement.LINK)
    data = run.path / "step-100" / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[::-1])  # as a trainer does that saves the step again
    (standing,) = standings(run.store, done.window)
    assert (standing.in_run, standing.copy) == (False, False)


def test_a_full_copy_is_made_only_when_it_is_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(100)
    run.test_load(100)
    no_links(monkeypatch)
    done = protect(run.store, TERMS)
    assert (done.copies, len(done.notes)) == ({"step-100": None}, 1)
    assert "--placement copy" in done.notes[0]
    assert protect(run.store, Terms(), placement=Placement.COPY).copies == {
        "step-100": Placement.COPY
    }
    data = run.path / "step-100" / "__0_0.distcp"
    data.write_bytes(b"")
    assert (run.copies / "step-100" / "__0_0.distcp").stat().st_size > 0


def test_a_copy_that_is_interrupted_is_not_taken_for_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(100)

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(copies, "_bring_to_disk", cut)
        with pytest.raises(KeyboardInterrupt):
            protect(run.store, TERMS)
    assert list(run.copies.iterdir()) == []
    assert protect(run.store, Terms()).copies.keys() == {"step-100"}


def test_no_copies_where_none_are_wanted(run: Run) -> None:
    run.save(100)
    assert protect(run.store, TERMS, copies=False).copies == {}
    assert not run.copies.exists()


def test_where_no_copy_can_be_written_the_window_opens_and_says_so(run: Run) -> None:
    run.save(100)
    run.copies.touch()  # a file in the way
    done = protect(run.store, TERMS)
    assert done.copies == {"step-100": None}
    assert "Not a directory" in done.notes[0]
    assert window(run) == done.window


def test_a_checkpoint_written_anew_replaces_the_copy_once_it_is_proven(run: Run) -> None:
    run.save(100)
    run.test_load(100)
    protect(run.store, TERMS)
    old = content(run.copies / "step-100")
    shutil.rmtree(run.path / "step-100")
    run.save(100)
    os.utime(run.path / "step-100" / "__0_0.distcp", (5, 5))
    again = protect(run.store, Terms())
    assert "written again" in again.notes[0]
    assert content(run.copies / "step-100") == old
    run.test_load(100)
    done = protect(run.store, Terms())
    assert done.notes == ()
    assert standings(run.store, done.window)[0].copy is True
    assert sorted(os.listdir(run.copies))[1:] == ["step-100"]


# Renewing.


def test_marks_move_on_with_the_next_test_load(run: Run) -> None:
    run.save(100, 200, 300)
    run.test_load(300)
    protect(run.store, TERMS)
    run.save(400, 500)
    assert names(protect(run.store, Terms())) == ["step-300", "step-200", "step-100"]
    run.test_load(500)
    again = protect(run.store, Terms())
    assert names(again) == ["step-500", "step-400", "step-300"]
    opened = protect(run.store, Terms()).window.opened
    assert opened == again.window.opened


def test_what_was_proven_stays_until_something_else_is(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(100)
    run.test_load(100)
    protect(run.store, TERMS)
    run.save(200, 300, 400)
    changed = {**ENVIRONMENT, "python": "3.11.8"}
    monkeypatch.setattr(testload, "environment_of", lambda python: changed)
    again = protect(run.store, Terms())
    assert names(again) == ["step-400", "step-300", "step-200", "step-100"]
    assert not again.choice.tested


def test_terms_are_changed_one_by_one(run: Run) -> None:
    run.save(100)
    protect(run.store, replace(TERMS, accept=("loss equal",)))
    later = TOMORROW + timedelta(days=7)
    protect(run.store, Terms(until=later))
    protect(run.store, Terms(owner="li", accept=("loss equal", "no slower")))
    found = window(run)
    assert found is not None
    assert (found.owner, found.until) == ("li", later)
    assert found.accept == ("loss equal", "no slower")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (Terms(), "no window is open"),
        (replace(TERMS, owner=None), "--owner"),
        (replace(TERMS, until=date(2020, 1, 1)), "has passed"),
    ],
)
def test_a_window_needs_a_version_an_owner_and_an_end(terms: Terms, message: str, run: Run) -> None:
    run.save(100)
    with pytest.raises(ValueError, match=message):
        protect(run.store, terms)
    assert window(run) is None


def test_one_window_a_run(run: Run) -> None:
    run.save(100)
    protect(run.store, TERMS)
    with pytest.raises(ValueError, match="finalize or release it first"):
        protect(run.store, replace(TERMS, minor="2.4"))
    protect(run.store, TERMS)


def test_a_window_past_its_end_stays_open_and_counts_the_days(run: Run) -> None:
    run.save(100)
    protect(run.store, TERMS)
    found = window(run)
    assert found is not None
    assert found.days_left(TOMORROW + timedelta(days=3)) == -3
    assert found.days_left(datetime.now(UTC).date()) == 1


# Closing.


def test_a_release_says_why_and_frees_the_marks(run: Run) -> None:
    run.save(100)
    protect(run.store, TERMS)
    assert is_protected(run.path / "step-100")
    release(run.store, "the cluster is gone")
    assert not is_protected(run.path / "step-100")
    assert ledger_of(run.store).read()[-1]["because"] == "the cluster is gone"
    assert run.steps() == [100]
    assert (run.copies / "step-100").is_dir()
    with pytest.raises(CheckpointError, match="no rollback window is open"):
        release(run.store, "again")


def test_every_criterion_is_answered_before_a_window_is_finalized(run: Run) -> None:
    run.save(100)
    protect(run.store, replace(TERMS, accept=("loss equal", "no slower")))
    with pytest.raises(UnansweredError, match="2: no slower"):
        finalize(run.store, {1: Answer(met=True, why="run 77")})
    with pytest.raises(ValueError, match="no criterion 3"):
        finalize(run.store, {3: Answer(met=True, why="run 77")})
    assert window(run) is not None
    answers = {1: Answer(met=True, why="run 77"), 2: Answer(met=False, why="other machines")}
    finalize(run.store, answers)
    assert window(run) is None
    assert ledger_of(run.store).read()[-1]["answers"] == [
        {"criterion": "loss equal", "met": True, "why": "run 77"},
        {"criterion": "no slower", "met": False, "why": "other machines"},
    ]


def test_after_a_window_there_can_be_another(run: Run) -> None:
    run.save(100)
    protect(run.store, TERMS)
    finalize(run.store, {})
    assert protect(run.store, replace(TERMS, minor="2.4")).window.minor == "2.4"


# What a trainer asks.


def test_a_trainer_is_told_what_is_protected(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save(100, 200, 300, 400)
    assert not is_protected(run.path / "step-400")
    protect(run.store, TERMS)
    asked = {step: is_protected(f"{run.path}/step-{step}/") for step in (100, 200, 300, 400)}
    assert asked == {100: False, 200: True, 300: True, 400: True}
    monkeypatch.chdir(run.path)
    assert is_protected("step-400")


def test_a_trainer_keeps_what_a_damaged_ledger_may_have_named(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.save(100)
    run.ledger.write_text("damaged\n")
    assert is_protected(run.path / "step-100")
    assert "line 1 is damaged" in caplog.text


@pytest.mark.parametrize("tested", [False, True])
def test_what_nobody_could_load_is_not_protected(run: Run, tested: bool) -> None:
    run.save(1, 2, 3, 4)
    (run.path / "step-4" / "__0_0.distcp").unlink()
    (run.path / "step-2" / "__0_0.distcp").unlink()
    if tested:
        run.test_load(3)
    done = protect(run.store, TERMS)
    assert names(done) == ["step-3", "step-1"]
    assert done.choice.newest == "step-3"


def test_a_mistyped_name_leaves_no_ledger(run: Run) -> None:
    nowhere = LocalStore(run.path.with_name("rnu"))
    answers: dict[int, Answer] = {}
    for attempt in (
        lambda: protect(nowhere, TERMS),
        lambda: release(nowhere, "why not"),
        lambda: finalize(nowhere, answers),
    ):
        with pytest.raises((CheckpointError, OSError), match="rnu"):
            attempt()
    assert not list(run.path.parent.glob("rnu*"))
