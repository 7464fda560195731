"""The book of faults: what was lost, when, and how long the job took to go on."""

from __future__ import annotations

from keepstep.runtime.recoveries import Recoveries, Recovery


def begin(book: Recoveries, wid: int | None, now: float, *, since: float | None = None) -> None:
    rank = None if wid is None else wid % 4
    since = now - 1.0 if since is None else since
    book.begin(wid=wid, rank=rank, fault="kill", action="replace", step=7, since=since, now=now)


def test_a_recovery_tells_all_spans_from_the_moment_of_the_fault() -> None:
    book = Recoveries()
    begin(book, 1, 100.0, since=99.5)
    book.on_decision(start_step=6, source="live", reached=7)
    assert book.on_resumed(102.0, full=False) == 2.0
    assert book.on_resumed(110.0, full=True) is None
    facts = book.entries[0].summary()
    assert facts["detected_after_s"] == 0.5
    assert facts["next_step_after_s"] == 2.5
    assert facts["full_strength_after_s"] == 10.5
    assert (facts["lost_steps"], facts["state_from"], facts["rank"]) == (1, "live", 1)


def test_an_open_recovery_has_no_end() -> None:
    facts = Recovery("kill", 0, 0, 1, "replace", 1.0, 2.0).summary()
    assert facts["next_step_after_s"] is facts["full_strength_after_s"] is None
    assert "straggler_score" not in facts


def test_a_loss_that_is_being_dealt_with_is_not_entered_twice() -> None:
    book = Recoveries()
    begin(book, 1, 100.0)
    begin(book, 1, 101.0)
    begin(book, 2, 101.0)
    assert [entry.worker for entry in book.entries] == [1, 2]
    book.on_resumed(102.0, full=True)
    begin(book, 1, 103.0)
    assert book.count == 3


def test_faults_without_a_worker_are_entered_each() -> None:
    book = Recoveries()
    begin(book, None, 100.0)
    begin(book, None, 101.0)
    assert book.count == 2


def test_the_moment_of_an_injection_is_better_than_the_last_sign_of_life() -> None:
    book = Recoveries()
    book.on_fired(1, 98.0)
    begin(book, 1, 100.0, since=99.0)
    assert book.entries[0].since == 98.0
    begin(book, 2, 100.0, since=99.0)
    book.on_fired(2, 97.0)
    assert book.entries[1].since == 97.0


def test_nothing_was_detected_before_it_happened() -> None:
    book = Recoveries()
    begin(book, 1, 100.0, since=105.0)
    begin(book, 2, 100.0)
    book.on_fired(2, 103.0)
    assert [entry.since <= entry.detected for entry in book.entries] == [True, True]


def test_steps_to_repeat_count_from_the_newest_that_anybody_committed() -> None:
    book = Recoveries()
    begin(book, 1, 100.0)
    assert book.on_decision(start_step=3, source="snapshot", reached=9) == 6
    assert (book.entries[0].step, book.entries[0].lost_steps) == (9, 6)
    assert book.on_decision(start_step=9, source="live", reached=9) == 6


def test_going_on_further_than_anybody_was_known_to_be_loses_nothing() -> None:
    book = Recoveries()
    begin(book, 1, 100.0)
    assert book.on_decision(start_step=9, source="live", reached=7) == 0


def test_what_healed_last_is_told_with_the_replacements() -> None:
    book = Recoveries()
    begin(book, 1, 100.0)
    book.on_resumed(101.0, full=True)
    begin(book, 2, 200.0, since=199.0)
    book.on_decision(start_step=7, source="live", reached=7)
    book.on_resumed(202.0, full=True)
    facts = book.last_healed([0, 1, 9, 3])
    assert facts == {"since_s": 3.0, "lost_steps": 0, "replaced": [[2, 9]]}


def test_only_the_open_losses_of_these_workers_change_their_action() -> None:
    book = Recoveries()
    begin(book, 1, 100.0)
    book.on_resumed(101.0, full=True)
    begin(book, 1, 102.0)
    begin(book, 2, 102.0)
    book.set_action("shrink", {1, None})
    assert [entry.action for entry in book.entries] == ["replace", "shrink", "replace"]


def test_a_retry_that_became_a_replacement_is_one_recovery() -> None:
    book = Recoveries()
    for action in ("retry", "replace", "retry"):
        book.begin(wid=3, rank=3, fault="raise", action=action, step=7, since=1.0, now=2.0)
    assert [entry.action for entry in book.entries] == ["replace"]


def test_the_book_is_open_until_the_job_goes_on() -> None:
    book = Recoveries()
    found = [book.open]
    begin(book, 1, 100.0)
    found.append(book.open)
    book.on_resumed(101.0, full=False)
    found.append(book.open)
    assert found == [False, True, False]


def test_an_unnamed_corruption_is_entered_once_until_the_job_goes_on() -> None:
    book = Recoveries()
    book.add_unnamed_corruption(1.0, 5)
    book.add_unnamed_corruption(2.0, 5)
    assert book.count == 1
    assert book.last_reason() == "corrupt of rank None"
    book.on_resumed(3.0, full=True)
    book.add_unnamed_corruption(4.0, 9)
    assert book.count == 2
