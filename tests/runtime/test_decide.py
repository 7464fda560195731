"""Where the next generation starts: the most advanced state that can be trusted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime.decide import (
    Decision,
    Holding,
    NoCommonStateError,
    Proof,
    RankSource,
    Snapshot,
    decide,
    outliers,
)

SNAPSHOT = Snapshot(committed=3, digest="s", payload=("a:1",), ranks={0: ("a:1", 0)})


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a proposal says, without the rest of it."""

    committed: int
    clean: bool
    digest: str
    entry: int
    repeatable: bool
    member_of: int


def held(
    committed: int,
    digest: str = "x",
    *,
    clean: bool = True,
    entry: int | None = None,
    repeatable: bool = False,
    member_of: int = 1,
) -> Holding:
    return Held(
        committed=committed,
        clean=clean,
        digest=digest if clean else "",
        entry=committed if entry is None else entry,
        repeatable=repeatable,
        member_of=member_of,
    )


def decided(
    holdings: dict[int, Holding],
    members: list[int] | None = None,
    owners: dict[int, int] | None = None,
    left: dict[int, int] | None = None,
    snapshot: Snapshot | None = SNAPSHOT,
    distrust: str = "",
    proof: Proof | None = None,
    same_world: bool = True,
) -> Decision:
    """Decide; by default everybody keeps the place that it had."""
    members = sorted(holdings) if members is None else members
    owners = dict(enumerate(members)) if owners is None else owners
    return decide(
        members=members,
        owners=owners,
        holdings=holdings,
        left=left or {},
        snapshot=snapshot,
        distrust=distrust,
        proof=proof,
        same_world=same_world,
    )


def test_equal_clean_states_go_on_without_any_transfer() -> None:
    found = decided({0: held(7), 1: held(7), 2: held(7)})
    assert (found.source, found.start_step, found.digest) == ("live", 7, "x")
    assert (found.donors, found.receivers, found.rank_sources) == ((0, 1, 2), (), {})


def test_the_most_advanced_clean_state_wins_and_a_laggard_receives() -> None:
    found = decided({0: held(7, "old", entry=8), 1: held(8, "new"), 2: held(8, "new")})
    assert (found.start_step, found.digest) == (8, "new")
    assert (found.donors, found.receivers) == ((1, 2), (0,))
    assert found.rank_sources == {0: RankSource(wid=0, count=8)}


def test_a_dirty_rank_receives() -> None:
    found = decided({0: held(7, clean=False, entry=7), 1: held(7)})
    assert (found.start_step, found.donors, found.receivers) == (7, (1,), (0,))
    assert found.rank_sources == {0: RankSource(wid=0, count=7)}


def test_a_dirty_rank_cannot_win_by_being_further() -> None:
    found = decided({0: held(9, clean=False), 1: held(7)})
    assert (found.start_step, found.donors) == (7, (1,))


def test_a_laggard_without_an_entry_record_sends_all_back_to_the_snapshot() -> None:
    found = decided({0: held(7, entry=7), 1: held(8, "new")})
    assert (found.source, found.start_step, found.receivers) == ("snapshot", 3, (0, 1))
    assert "per-rank state" in found.why
    assert found.suspects == ()


def test_a_newcomer_gets_what_the_lost_rank_left() -> None:
    found = decided({1: held(7)}, members=[9, 1], owners={0: 0, 1: 1}, left={0: 7})
    assert (found.donors, found.receivers) == ((1,), (9,))
    assert found.rank_sources == {0: RankSource(wid=0, count=7)}


@pytest.mark.parametrize("left", [{}, {0: -1}, {0: 6}])
def test_a_lost_rank_that_left_too_little_sends_all_back_to_the_snapshot(
    left: dict[int, int],
) -> None:
    found = decided({1: held(7)}, members=[9, 1], owners={0: 0, 1: 1}, left=left)
    assert (found.source, found.receivers) == ("snapshot", (9, 1))


def test_a_place_that_nobody_had_needs_no_record() -> None:
    found = decided({1: held(7)}, members=[1, 9], owners={0: 1})
    assert (found.source, found.receivers, found.rank_sources) == ("live", (9,), {})


def test_a_shrunken_job_needs_nothing_of_the_lost_rank() -> None:
    found = decided({0: held(7), 2: held(7)}, members=[0, 2], owners={0: 0, 1: 2})
    assert (found.source, found.receivers) == ("live", ())


def test_a_worker_that_is_no_member_any_more_has_no_say() -> None:
    found = decided({0: held(7), 5: held(9, "other")}, members=[0])
    assert (found.start_step, found.digest, found.donors) == (7, "x", (0,))


def test_the_one_that_a_strict_majority_contradicts_is_a_suspect() -> None:
    found = decided({0: held(7), 1: held(7, "flipped"), 2: held(7)})
    assert (found.source, found.suspects) == ("snapshot", (1,))


@pytest.mark.parametrize("digests", ["xy", "xyz", "xxyy", "xxyz"])
def test_without_a_strict_majority_nobody_is_a_suspect(digests: str) -> None:
    found = decided({wid: held(7, digest) for wid, digest in enumerate(digests)})
    assert (found.source, found.start_step, found.suspects) == ("snapshot", 3, ())


def test_different_states_of_different_steps_are_no_contradiction() -> None:
    found = decided({0: held(8, "new"), 1: held(7, "old", entry=8)})
    assert (found.source, found.suspects) == ("live", ())


def test_a_rank_that_alone_got_further_gives_way_to_two_that_agree() -> None:
    found = decided(
        {1: held(7), 2: held(8, "flipped?"), 3: held(7)},
        members=[9, 1, 2, 3],
        owners={0: 0, 1: 1, 2: 2, 3: 3},
        left={0: 8},
    )
    assert (found.source, found.start_step, found.digest) == ("live", 7, "x")
    assert (found.donors, found.receivers) == ((1, 3), (9, 2))
    assert found.rank_sources == {0: RankSource(wid=0, count=7), 2: RankSource(wid=2, count=7)}
    assert found.proof is None
    assert "alone" in found.why


def test_of_two_survivors_on_different_steps_the_repetition_proves_who_is_right() -> None:
    split = {0: held(8, "new", repeatable=True), 1: held(7, "old", entry=8, repeatable=True)}
    found = decided(split)
    assert (found.start_step, found.digest, found.donors) == (7, "old", (1,))
    assert found.proof == Proof(committed=8, digest="new")
    smaller = decided(split, same_world=False)
    assert (smaller.start_step, smaller.proof) == (8, None), "other sums: it would prove nothing"


def test_a_step_that_cannot_be_repeated_bit_for_bit_proves_nothing() -> None:
    found = decided({0: held(8, "new", repeatable=True), 1: held(7, "old", entry=8)})
    assert (found.start_step, found.digest, found.proof) == (8, "new", None)


def test_several_ranks_that_got_further_and_agree_go_on() -> None:
    found = decided(
        {0: held(8, "new"), 1: held(8, "new"), 2: held(7, entry=8), 3: held(7, entry=8)}
    )
    assert (found.start_step, found.receivers) == (8, (2, 3))


def test_a_step_is_repeated_only_where_the_per_rank_state_before_it_is_known() -> None:
    holdings = {1: held(7), 2: held(8, "new"), 3: held(7)}
    owners = {0: 0, 1: 1, 2: 2, 3: 3}
    found = decided(holdings, members=[9, 1, 2, 3], owners=owners, left={0: 6})
    assert found.source == "snapshot"


def test_an_interrupted_repetition_still_has_to_prove_the_step() -> None:
    proof = Proof(committed=8, digest="new")
    same = {0: held(7, repeatable=True), 1: held(7, repeatable=True)}
    assert decided(same, proof=proof).proof == proof
    assert decided(same, proof=proof, same_world=False).proof is None


@pytest.mark.parametrize("member_of", [1, 2])
def test_only_who_has_repeated_the_step_proves_it(member_of: int) -> None:
    found = decided(
        {
            0: held(8, "new", repeatable=True, member_of=member_of),
            1: held(7, entry=8, repeatable=True),
        },
        proof=Proof(committed=8, digest="new", generation=2),
    )
    if member_of == 2:
        assert (found.start_step, found.proof) == (8, None)
    else:  # it never came to the repetition, and says what it had said before
        assert (found.start_step, found.donors) == (7, (1,))
        assert found.proof == Proof(committed=8, digest="new")


def test_a_step_that_nobody_has_proven_is_not_gone_on_from() -> None:
    found = decided({0: held(10), 1: held(10)}, proof=Proof(committed=8, digest="new"))
    assert (found.source, found.differ) == ("snapshot", True)


def test_a_repetition_that_ended_in_another_state_sends_all_back_to_the_snapshot() -> None:
    found = decided({0: held(8), 1: held(8)}, proof=Proof(committed=8, digest="flipped"))
    assert (found.source, found.differ, found.suspects) == ("snapshot", True, ())
    assert "repeated" in found.why


def test_ranks_that_are_behind_contradict_each_other_too() -> None:
    found = decided({0: held(8, "new"), 1: held(7, entry=8), 2: held(7, "flipped", entry=8)})
    assert (found.source, found.differ, found.suspects) == ("snapshot", True, ())


def test_distrust_goes_back_even_if_the_rest_agrees() -> None:
    found = decided({0: held(7), 1: held(7)}, distrust="replicas were found to differ")
    assert found.why == "replicas were found to differ"
    assert (found.source, found.start_step, found.digest) == ("snapshot", 3, "s")
    assert found.snapshot is SNAPSHOT


@pytest.mark.parametrize(
    "holdings",
    [
        {},
        {0: held(7, clean=False)},
        {0: held(7), 1: held(7, "y")},
        {0: held(7, entry=7), 1: held(8, "new")},
    ],
)
def test_without_a_snapshot_there_may_be_nothing_to_go_on_from(
    holdings: dict[int, Holding],
) -> None:
    with pytest.raises(NoCommonStateError, match="no common snapshot"):
        decided(holdings, members=[0, 1], snapshot=None)


def test_outliers_are_those_besides_a_strict_majority() -> None:
    assert outliers({}) is None
    assert outliers({0: "x", 1: "x"}) is None
    assert outliers({0: "x", 1: "y"}) == ()
    assert outliers({0: "x", 1: "y", 2: "x"}) == (1,)
    assert outliers({0: "x", 1: "y", 2: "z", 3: "x", 4: "x"}) == (1, 2)


holding = st.builds(
    held,
    st.integers(5, 7),
    st.sampled_from("xxxy"),
    clean=st.booleans(),
    entry=st.integers(5, 8),
    repeatable=st.booleans(),
    member_of=st.integers(1, 2),
)


@settings(max_examples=150, deadline=None)
@given(
    holdings=st.dictionaries(st.integers(0, 4), holding, max_size=5),
    newcomers=st.integers(0, 2),
    left=st.dictionaries(st.integers(5, 6), st.integers(5, 8)),
    distrust=st.sampled_from(["", "", "", "they differ"]),
    same_world=st.booleans(),
    proof=st.none()
    | st.builds(
        Proof,
        committed=st.integers(5, 8),
        digest=st.sampled_from("xy"),
        generation=st.integers(1, 2),
    ),
    order=st.randoms(use_true_random=False),
)
def test_a_decision_is_sound_and_does_not_depend_on_the_order_of_what_it_was_told(
    holdings: dict[int, Holding],
    newcomers: int,
    left: dict[int, int],
    distrust: str,
    same_world: bool,
    proof: Proof | None,
    order: st.DataObject,
) -> None:
    survivors = sorted(holdings)
    members = survivors + [10 + n for n in range(newcomers)]
    owners = {rank: wid if wid < 10 else wid - 5 for rank, wid in enumerate(members)}
    rest = {"distrust": distrust, "same_world": same_world, "proof": proof}
    first = decided(holdings, members, owners, left, **rest)  # type: ignore[arg-type]
    shuffled = list(holdings.items())
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    second = decided(dict(shuffled), members, owners, left, **rest)  # type: ignore[arg-type]
    assert facts_of(first) == facts_of(second)

    if first.source == "snapshot":
        assert first.receivers == tuple(members)
        return
    assert not distrust
    newest = max(held.committed for held in holdings.values() if held.clean)
    assert first.start_step in (newest, newest - 1)
    if first.start_step < newest:
        alone = [held for held in holdings.values() if held.clean and held.committed == newest]
        assert len(alone) == 1
        wanted = Proof(committed=newest, digest=alone[0].digest)
        assert first.proof == wanted if len(first.donors) == 1 else first.proof is None
        assert proof is None or not proof.agrees(alone[0]) or alone[0].member_of < proof.generation
    if first.proof is not None:
        assert same_world
        assert all(held.repeatable for held in holdings.values())
        assert first.proof.committed == first.start_step + 1
    if proof is not None:
        assert newest <= proof.committed
        if proof.committed == first.start_step:
            assert proof.digest == first.digest
    assert sorted(first.donors + first.receivers) == sorted(members)
    for wid in first.donors:
        own = holdings[wid]
        assert (own.committed, own.digest, own.clean) == (first.start_step, first.digest, True)
    known = left | {wid: held.entry for wid, held in holdings.items()}
    for rank, wid in enumerate(members):
        if wid in first.receivers:
            assert first.rank_sources[rank].wid == owners[rank]
            assert known[owners[rank]] >= first.start_step


def facts_of(found: Decision) -> object:
    return (
        found.source,
        found.start_step,
        found.digest,
        sorted(found.donors),
        found.receivers,
        dict(found.rank_sources),
        sorted(found.suspects),
        found.differ,
        found.proof,
        found.why,
    )


def test_suspects_do_not_depend_on_order_either() -> None:
    for digests in itertools.product("xyz", repeat=4):
        votes = dict(enumerate(digests))
        backwards = dict(reversed(votes.items()))
        a, b = outliers(votes), outliers(backwards)
        assert (a is None) == (b is None)
        assert set(a or ()) == set(b or ())
