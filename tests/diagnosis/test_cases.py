"""Hangs that people had and reported, each rebuilt small, with the answer that was right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.diagnosis.verdict import Confidence, Fault, Outcome, Verdict
from keepstep.recorder.model import Backend, Frame, RankDump
from tests.diagnosis.simulator import WORLD, Call, Job, Recording, alike, change, find

LEGACY = Recording()
NCCL2 = Recording(backend=Backend.NCCL2)
GLOO = Recording(backend=Backend.GLOO)
COMMS = Recording(backend=Backend.TORCHCOMMS)


def verdict_of(
    job: Job,
    recording: Recording = LEGACY,
    observations: Mapping[int, Observation] | None = None,
) -> Verdict:
    """Run a job until it stands still, and diagnose what it leaves."""
    job.run()
    return diagnose(
        Evidence(
            dumps=job.dumps(recording),
            observations=observations or {},
            expected_ranks=frozenset(job.ranks),
        )
    )


def loop(rounds: int, *calls: Call) -> list[Call]:
    return [call for _ in range(rounds) for call in calls]


def world_loop(ranks: int, rounds: int = 6) -> Job:
    """All-reduces of gradients, all from one line."""
    return Job(alike(ranks, loop(rounds, Call("all_reduce", line=31))))


def two_ways() -> Job:
    """Four ranks: tensor groups [0,1] [2,3], data groups [0,2] [1,3]."""
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    programs = {
        rank: loop(
            6,
            Call("all_reduce", f"tp{rank // 2}", line=10),
            Call("_all_gather_base", f"dp{rank % 2}", line=11),
            Call("all_reduce", line=12),
        )
        for rank in range(4)
    }
    return Job(programs, groups)


def stack(*frames: tuple[str, str, int]) -> tuple[Frame, ...]:
    return tuple(Frame(function, file, line) for function, file, line in frames)


LOADER = stack(
    ("get", "/usr/lib/python3.11/queue.py", 171),
    ("_try_get_data", "/site-packages/torch/utils/data/dataloader.py", 1243),
    ("train", "/srv/train.py", 30),
)
SAVING = stack(
    ("write", "/usr/lib/python3.11/zipfile/__init__.py", 1190),
    ("save", "/site-packages/torch/distributed/checkpoint/state_dict_saver.py", 200),
    ("save_all", "/srv/train.py", 88),
)
KERNEL = stack(
    ("synchronize", "/site-packages/torch/cuda/__init__.py", 954),
    ("moe", "/srv/model.py", 41),
)
TEARDOWN = stack(
    ("destroy_process_group", "/site-packages/torch/distributed/distributed_c10d.py", 2200),
    ("main", "/srv/train.py", 99),
)
BARRIER = stack(
    ("barrier", "/site-packages/torch/distributed/distributed_c10d.py", 4800),
    ("save", "/srv/train.py", 70),
)
STEPPING = stack(("forward", "/srv/model.py", 12), ("train", "/srv/train.py", 31))


def test_a_rank_that_waits_for_data_is_named_with_its_data_loader() -> None:
    """pytorch#87995: 31 ranks in all_reduce, rank 0 in queue.get of the data loader."""
    job = world_loop(32)
    job.ranks[0].stop_before = 4
    verdict = verdict_of(job, LEGACY, {0: Observation(life=Life.ALIVE, stack=LOADER)})
    assert (verdict.ranks, verdict.fault) == ((0,), Fault.STALLED)
    assert verdict.confidence is Confidence.HIGH
    assert any("train.py:30 train, in the data loader" in line for line in verdict.evidence)


def test_one_rank_alone_in_a_checkpoint_barrier_has_called_too_much() -> None:
    """autocast#386, t12: barriers pair by number, so rank 0 waits alone in the last one."""
    program = [*loop(3, Call("all_reduce", line=31)), Call("barrier", line=50)]
    job = Job(alike(4, program))
    job.ranks[0].program.insert(3, Call("barrier", line=77, function="save_checkpoint"))
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.fault) == ((0,), Fault.EXTRA_COLLECTIVE)
    assert any("train.py:77 save_checkpoint" in line for line in verdict.evidence)


def test_without_stacks_one_that_waits_alone_is_only_suspected() -> None:
    job = Job(alike(4, [Call("all_reduce"), Call("barrier")]))
    job.ranks[0].program.append(Call("barrier"))
    verdict = verdict_of(job, replace(LEGACY, stacks=False))
    assert (verdict.ranks, verdict.fault) == ((0,), Fault.EXTRA_COLLECTIVE)
    assert verdict.confidence is Confidence.LOW
    assert verdict.would_decide


def test_peers_that_returned_before_the_evaluation() -> None:
    """deepspeed-course#28: the same dumps, but the others have left their script."""
    job = Job(alike(4, loop(4, Call("all_reduce", line=31))))
    job.ranks[0].program.append(Call("all_to_all", line=60, function="evaluate"))
    left = {rank: Observation(life=Life.CLEAN_EXIT) for rank in (1, 2, 3)}
    verdict = verdict_of(job, LEGACY, left)
    assert (verdict.ranks, verdict.fault) == ((0,), Fault.EXTRA_COLLECTIVE)
    assert "left without" in verdict.headline


@pytest.mark.parametrize("odd", range(4))
def test_twice_the_elements_whatever_rank_has_them(odd: int) -> None:
    """pytorch#97191, t1."""
    job = world_loop(4)
    change(job, odd, 2, elements=2048)
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.fault) == ((odd,), Fault.MISMATCH)
    assert "2048 elements instead of 1024" in verdict.headline


def test_another_operation_is_voted_down() -> None:
    """rccl#429: ranks 0, 1 and 3 all-reduce, rank 2 gathers."""
    job = world_loop(4)
    change(job, 2, 3, name="_all_gather_base")
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.fault) == ((2,), Fault.MISMATCH)
    assert "operation _all_gather_base instead of all_reduce" in verdict.headline


def test_another_type_is_voted_down() -> None:
    job = world_loop(3)
    change(job, 1, 3, dtype="BFloat16")
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.fault) == ((1,), Fault.MISMATCH)
    assert "BFloat16 instead of Float" in verdict.headline


def test_two_ranks_that_never_agreed_are_both_named() -> None:
    job = Job({0: [Call("all_reduce", elements=8)], 1: [Call("all_reduce", elements=16)]})
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.confidence) == ((0, 1), Confidence.LOW)
    assert verdict.would_decide


def test_of_two_ranks_the_one_that_left_its_past_is_odd() -> None:
    job = world_loop(2)
    change(job, 1, 4, elements=2048)
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.confidence) == ((1,), Confidence.MEDIUM)


def test_of_two_ranks_the_one_that_differs_from_sibling_groups_is_odd() -> None:
    groups = {"tp0": (0, 1), "tp1": (2, 3), "tp2": (4, 5)}
    programs = {rank: [Call("all_reduce", f"tp{rank // 2}")] for rank in range(6)}
    job = Job(programs, groups)
    change(job, 3, 0, elements=2048)
    verdict = verdict_of(job)
    assert verdict.ranks == (3,)
    assert any("Groups of the same kind" in line for line in verdict.evidence)


def test_one_rank_gathers_unevenly_while_its_peers_scatter() -> None:
    """vllm#43547: other calls, and so another order over two groups of the same ranks."""
    members = (0, 1, 2, 3)
    program = loop(
        4,
        Call("reduce_scatter", "ep0", elements=10733, line=5),
        Call("all_gatherv", "sp0", elements=14, line=6),
    )
    job = Job(alike(4, program), {"ep0": members, "sp0": members})
    change(job, 2, 4, name="all_gatherv", elements=14, line=6)
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.fault) == ((2,), Fault.MISMATCH)


@pytest.mark.parametrize("recording", [LEGACY, replace(NCCL2, everyone_writes=True), COMMS])
def test_a_rank_without_tokens_skips_and_goes_on(recording: Recording) -> None:
    """Megatron#4851: the missing rank is not idle, it is ahead in other groups."""
    job = two_ways()
    job.ranks[2].program.pop(find(job, 2, lambda call: call.group == WORLD, nth=3))
    verdict = verdict_of(job, recording)
    assert (verdict.ranks, verdict.fault) == ((2,), Fault.MISMATCH)


def test_uneven_inputs_end_with_a_clean_exit() -> None:
    """snowfall#152, pytorch#33148."""
    job = world_loop(4)
    del job.ranks[3].program[4:]
    verdict = verdict_of(job, NCCL2, {3: Observation(life=Life.CLEAN_EXIT)})
    assert (verdict.ranks, verdict.fault) == ((3,), Fault.UNEVEN_INPUTS)


def test_most_ranks_ran_out_of_batches() -> None:
    """The rank with the most batches is not guilty: it makes the call that all made before."""
    job = world_loop(4)
    for rank in (1, 2, 3):
        del job.ranks[rank].program[4:]
    left = {rank: Observation(life=Life.CLEAN_EXIT) for rank in (1, 2, 3)}
    verdict = verdict_of(job, LEGACY, left)
    assert (verdict.ranks, verdict.fault) == ((1, 2, 3), Fault.UNEVEN_INPUTS)


def test_recorder_and_ras_agree_about_a_rank_in_a_kernel() -> None:
    """MiaAI#132: of two tensor ranks, rank 0 is inside a compute kernel."""
    job = world_loop(2)
    job.ranks[0].stop_before = 4
    seen = {
        0: Observation(life=Life.ALIVE, stack=KERNEL, collective_counts={"a1": (0, 0, 4)}),
        1: Observation(life=Life.ALIVE, collective_counts={"a1": (0, 0, 5)}),
    }
    verdict = verdict_of(job, LEGACY, seen)
    assert (verdict.ranks, verdict.fault) == ((0,), Fault.STALLED)
    assert any("model.py:41 moe, in the device" in line for line in verdict.evidence)
    assert any("NCCL RAS: rank 0 launched 4" in line for line in verdict.evidence)


def test_the_one_of_two_that_took_another_branch() -> None:
    """sglang#33289: one is in the gather of logits, its peer is back at the request broadcast."""
    pair = (0, 1)
    round_ = (Call("broadcast", "cpu0", line=3), Call("all_gather", "tp0", line=9))
    job = Job(alike(2, loop(4, *round_)), {"cpu0": pair, "tp0": pair})
    job.ranks[1].program.pop(5)
    verdict = verdict_of(job)
    assert verdict.ranks == (1,)
    assert verdict.confidence is not Confidence.HIGH


def test_communicators_that_block_each_other_are_nobodys_fault() -> None:
    """rccl#2191: several groups in flight, equal everywhere, no rank behind."""
    job = two_ways()
    for rank in job.ranks.values():
        rank.stuck_from = 9
    verdict = verdict_of(job)
    assert (verdict.outcome, verdict.ranks) == (Outcome.NO_RANK, ())
    assert verdict.fault is Fault.DEADLOCK
    assert verdict.would_decide


def test_a_rank_that_lags_in_ras_alone_is_not_accused() -> None:
    """marin#7344: every rank has enqueued, one has launched less; the library was at fault."""
    job = world_loop(8)
    for rank in job.ranks.values():
        rank.stuck_from = 4
    job.run()
    dumps = tuple(
        replace(item, dump=replace(item.dump, library="2.28.9")) for item in job.dumps(LEGACY)
    )
    counts = {
        rank: Observation(collective_counts={"c": (4 if rank == 5 else 5,)}) for rank in range(8)
    }
    verdict = diagnose(Evidence(dumps=dumps, observations=counts))
    assert verdict.ranks == ()
    assert any("rank 5 launched 4" in line for line in verdict.evidence)
    assert any("2.28.9" in line for line in verdict.evidence)


def test_the_rank_without_a_dump_sits_in_teardown() -> None:
    """pytorch#196968: it raised, and its monitor had stopped before anyone asked for a dump."""
    job = world_loop(3)
    job.ranks[1].stop_before = 4
    seen = {1: Observation(stack=TEARDOWN, missing_dump="its log ends in an exception")}
    verdict = verdict_of(job, NCCL2, seen)
    assert (verdict.ranks, verdict.fault) == ((1,), Fault.STALLED)
    assert "Rank 1 left no dump: its log ends in an exception." in verdict.evidence
    assert any("the destruction of a process group" in line for line in verdict.evidence)


def test_a_dead_rank_that_others_need_in_two_groups() -> None:
    """NCCL#1013."""
    job = two_ways()
    job.ranks[2].dead = True
    job.ranks[2].stop_before = 10
    verdict = verdict_of(job, NCCL2, {2: Observation(life=Life.DEAD, why="RAS: considered dead")})
    assert (verdict.ranks, verdict.fault) == ((2,), Fault.DEAD)
    assert any("RAS: considered dead" in line for line in verdict.evidence)
    assert {victim.rank for victim in verdict.victims} == {0, 1, 3}


def test_a_checkpoint_longer_than_a_short_timeout_is_no_hang() -> None:
    """Automodel#1038: 60 s for a barrier while one rank consolidates."""
    job = Job(alike(4, [*loop(3, Call("all_reduce", line=31)), Call("barrier", line=50)]))
    job.ranks[0].stop_before = 3
    job.run()

    def short(item: RankDump) -> RankDump:
        entries = tuple(replace(entry, timeout_ms=60_000) for entry in item.dump.entries)
        return replace(item, dump=replace(item.dump, entries=entries))

    seen = {0: Observation(life=Life.ALIVE, stack=SAVING)}
    dumps = job.dumps(LEGACY)
    verdict = diagnose(Evidence(dumps=tuple(map(short, dumps)), observations=seen))
    assert (verdict.outcome, verdict.ranks) == (Outcome.SLOW, (0,))
    assert "60 s is too short" in verdict.headline
    patient = diagnose(Evidence(dumps=dumps, observations=seen))
    assert patient.outcome is Outcome.CULPRIT


def test_exchange_plans_that_differ_accuse_no_device() -> None:
    """ART#840: ranks stop in different all-to-alls; split sizes are not recorded."""
    job = Job(alike(4, loop(12, Call("all_to_all", "cp0", line=8))), {"cp0": (0, 1, 2, 3)})
    job.run()
    for rank, last in {0: 9, 1: 10, 2: 10, 3: 11}.items():
        for issued in job.ranks[rank].issued[last:]:
            issued.hidden = True
    verdict = diagnose(Evidence(dumps=job.dumps(LEGACY)))
    assert (verdict.outcome, verdict.ranks) == (Outcome.NO_RANK, ())
    assert verdict.fault is Fault.MISMATCH
    assert "split" in " ".join(verdict.would_decide)


def test_a_watchdog_that_dies_later_is_a_second_failure() -> None:
    """ArcticTraining#219: 480 s later the watchdog of a waiting rank is reported stuck."""
    job = world_loop(4)
    job.ranks[1].stop_before = 3
    seen = {3: Observation(life=Life.DEAD, why="its watchdog was stuck for 480 s")}
    verdict = verdict_of(job, LEGACY, seen)
    assert (verdict.ranks, verdict.fault) == ((1,), Fault.STALLED)


def test_stacks_alone_show_the_outlier() -> None:
    """ByteRobust: most stacks in one wait, one elsewhere."""
    seen = {rank: Observation(stack=STEPPING) for rank in range(8)}
    seen[5] = Observation(stack=LOADER)
    verdict = diagnose(Evidence(observations=seen))
    assert (verdict.outcome, verdict.ranks, verdict.fault) == (
        Outcome.CULPRIT,
        (5,),
        Fault.STALLED,
    )
    assert verdict.confidence is Confidence.LOW


def test_stacks_alone_show_one_rank_in_a_barrier() -> None:
    """The example of xpu_timer: of eight ranks only rank 6 is in the barrier."""
    seen = {rank: Observation(stack=STEPPING) for rank in range(8)}
    seen[6] = Observation(stack=BARRIER)
    verdict = diagnose(Evidence(observations=seen))
    assert (verdict.ranks, verdict.fault) == ((6,), Fault.EXTRA_COLLECTIVE)


def test_nothing_at_all_is_unknown() -> None:
    verdict = diagnose(Evidence())
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.would_decide


# The traps on which other analysers fail.


def test_a_wrapped_ring_of_a_healthy_job_misses_nobody() -> None:
    """t2: ring buffers begin at different places in groups of different traffic."""
    job = two_ways()
    for rank in (0, 1):
        own = f"tp{rank // 2}"
        job.ranks[rank].program = [
            copy
            for call in job.ranks[rank].program
            for copy in ([call] * 4 if call.group == own else [call])
        ]
    verdict = verdict_of(job, replace(LEGACY, entries=7))
    assert (verdict.outcome, verdict.ranks) == (Outcome.HEALTHY, ())


@pytest.mark.parametrize("lost", range(1, 4))
def test_a_missing_file_of_a_victim_changes_no_culprit(lost: int) -> None:
    """t3: rank 0 stalls before a data group's call; another rank's file is lost."""
    job = two_ways()
    job.ranks[0].stop_before = 10
    job.run()
    kept = tuple(item for item in job.dumps(LEGACY) if item.rank != lost)
    verdict = diagnose(Evidence(dumps=kept, expected_ranks=frozenset(range(4))))
    assert 0 in verdict.ranks
    assert verdict.ranks == (0,) or verdict.would_decide


def test_versions_may_differ() -> None:
    """t6."""
    job = world_loop(3)
    job.ranks[2].stop_before = 2
    job.run()
    dumps = tuple(
        replace(item, dump=replace(item.dump, version=version))
        for item, version in zip(job.dumps(LEGACY), ("2.4", "2.9", "2.10"), strict=True)
    )
    assert diagnose(Evidence(dumps=dumps)).ranks == (2,)


def test_of_two_dumps_of_one_rank_the_newer_counts_and_it_says_so() -> None:
    """t7b: two attempts in one folder."""
    old, new = world_loop(3), world_loop(3)
    old.ranks[1].stop_before = 2
    new.ranks[2].stop_before = 4
    old.run()
    new.run()

    def older(item: RankDump) -> RankDump:
        entries = tuple(replace(e, created_ns=e.record) for e in item.dump.entries)
        return replace(item, dump=replace(item.dump, entries=entries))

    dumps = (*new.dumps(LEGACY), *map(older, old.dumps(LEGACY)))
    verdict = diagnose(Evidence(dumps=dumps))
    assert verdict.ranks == (2,)
    assert any("several dumps" in line for line in verdict.evidence)
    assert diagnose(Evidence(dumps=dumps[::-1])) == verdict


def pipeline(stages: int, rounds: int = 5) -> Job:
    """A chain of sends and receives in each round, then an all-reduce of all."""
    programs: dict[int, list[Call]] = {}
    for rank in range(stages):
        calls = []
        if rank > 0:
            calls.append(Call("recv", peer=rank - 1, line=20))
        if rank + 1 < stages:
            calls.append(Call("send", peer=rank + 1, line=21))
        programs[rank] = loop(rounds, *calls, Call("all_reduce", line=22))
    return Job(programs)


def test_transfers_without_peers_are_no_crash() -> None:
    """t8: TorchComms names no peers and numbers over all groups."""
    job = pipeline(2)
    job.ranks[0].stop_before = 4
    verdict = verdict_of(job, COMMS)
    assert (verdict.ranks, verdict.fault) == ((0,), Fault.STALLED)
    wrapped = verdict_of(job, replace(COMMS, entries=4))
    assert wrapped.outcome is not Outcome.CULPRIT
    assert any("has wrapped" in line for line in wrapped.evidence)


def test_scheduled_beside_started_accuses_nobody() -> None:
    """t9: four ranks inside one collective, one of which is a moment later."""
    job = world_loop(4)
    for rank in job.ranks.values():
        rank.stop_before = 5
        rank.stuck_from = 4
    job.ranks[0].stuck_from = job.ranks[1].stuck_from = 6
    job.run()
    verdict = diagnose(Evidence(dumps=job.dumps(replace(LEGACY, timing=True))))
    assert verdict.ranks == ()


def test_a_lost_receive_is_told_as_a_transfer() -> None:
    """t10: rank 2 leaves out one receive and goes on."""
    job = pipeline(4)
    job.ranks[2].program.pop(find(job, 2, lambda call: call.name == "recv", nth=3))
    verdict = verdict_of(job)
    assert verdict.ranks == (2,)
    waits = {victim.rank: victim for victim in verdict.victims}
    assert waits[1].waits_for == (2,)
    assert waits[1].operation == "the transfer from rank 1 to rank 2"


def test_a_receive_from_any_source_waits_for_the_one_that_can_still_send() -> None:
    programs = {
        0: loop(3, Call("recv", peer=None), Call("barrier")),
        1: loop(3, Call("barrier")),
        2: loop(3, Call("send", peer=0), Call("barrier")),
    }
    job = Job(programs)
    job.ranks[2].stop_before = 0
    verdict = verdict_of(job)
    assert verdict.ranks == (2,)


def test_the_root_is_found_behind_a_cascade() -> None:
    """t11: rank 3 stalls before its tensor group; 2 waits for it there, 0 and 1 elsewhere."""
    job = two_ways()
    job.ranks[3].stop_before = 9
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.fault) == ((3,), Fault.STALLED)
    waits = {victim.rank: victim.waits_for for victim in verdict.victims}
    assert waits == {0: (2,), 1: (3,), 2: (3,)}


# Rules that a real dump suggested, in jobs that have nothing to do with it.


def test_two_stalled_ranks_without_entries_are_found_by_their_counters() -> None:
    """As lock_gil: only pending entries are written, and the culprits have none."""
    groups = {"ep0": (0, 1, 2), "ep1": (3, 4, 5), "pp0": (0, 3), "pp1": (1, 4), "pp2": (2, 5)}
    programs: dict[int, list[Call]] = {}
    for rank in range(6):
        stage, lane = divmod(rank, 3)
        peer = rank + 3 if stage == 0 else rank - 3
        transfer = Call("send" if stage == 0 else "recv", f"pp{lane}", peer=peer)
        programs[rank] = loop(6, Call("all_reduce", f"ep{stage}"), transfer)
    job = Job(programs, groups)
    job.ranks[3].stop_before = job.ranks[5].stop_before = 6
    verdict = verdict_of(job, replace(LEGACY, only_pending=True, entries=100))
    assert (verdict.ranks, verdict.fault) == ((3, 5), Fault.STALLED)


def test_hashed_names_cannot_be_joined_with_counters() -> None:
    job = two_ways()
    job.ranks[3].stop_before = 9
    recording = replace(LEGACY, only_pending=True, hashed_names=True)
    assert verdict_of(job, recording).ranks == (3,)


def test_two_stuck_devices_in_one_group() -> None:
    """As gpu_error: peers completed with their help what they never did."""
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 1, 2, 3)}
    programs = {
        rank: loop(6, Call("all_reduce", f"tp{rank // 2}"), Call("_all_gather_base", "dp0"))
        for rank in range(4)
    }
    job = Job(programs, groups)
    job.run_ahead = 4
    for rank in (1, 2):
        job.ranks[rank].blind_from = 5
        job.ranks[rank].stuck_from = 6
    verdict = verdict_of(job, replace(LEGACY, only_pending=True))
    assert (verdict.ranks, verdict.fault) == ((1, 2), Fault.DEVICE)


def test_a_job_under_way_in_several_groups_is_healthy() -> None:
    """As the healthy nccl2 run: recorders learn of completions late, each group on its own."""
    calls = {
        rank: loop(
            20,
            Call("all_reduce", f"left{rank % 2}", asynchronous=True),
            Call("broadcast", f"right{rank // 2}", asynchronous=True),
            Call("all_reduce", asynchronous=True),
        )
        for rank in range(4)
    }
    groups = {"left0": (0, 2), "left1": (1, 3), "right0": (0, 1), "right1": (2, 3)}
    job = Job(calls, groups)
    job.run()
    for rank, own in job.ranks.items():
        for name, shown in {f"left{rank % 2}": 16, f"right{rank // 2}": 15, WORLD: 13}.items():
            mine = [issued for issued in own.issued if issued.call.group == name]
            for issued in mine[shown + (rank == 3 and name != WORLD) :]:
                issued.hidden = True
    verdict = diagnose(Evidence(dumps=job.dumps(NCCL2)))
    assert (verdict.outcome, verdict.ranks) == (Outcome.HEALTHY, ())


def test_gloo_during_and_after_a_hang() -> None:
    """A given-up operation looks finished in gloo; the rank that never came shows it."""
    for recording in (GLOO, replace(GLOO, after_failure=True)):
        job = Job(
            alike(3, loop(4, Call("all_reduce", line=3), Call("barrier", "sub0", line=4))),
            {"sub0": (0, 1, 2)},
        )
        job.ranks[1].stop_before = 5
        verdict = verdict_of(job, recording)
        assert (verdict.ranks, verdict.fault) == ((1,), Fault.STALLED), recording
    finished = world_loop(3)
    assert verdict_of(finished, GLOO).outcome is Outcome.HEALTHY


def test_a_kernel_before_a_collective_names_its_group() -> None:
    """As the endless kernel: tensor group [0,1] is held up, all others wait behind it."""
    job = two_ways()
    job.ranks[1].stuck_from = 6
    verdict = verdict_of(job)
    assert (verdict.ranks, verdict.fault) == ((0, 1), Fault.DEVICE)
    assert verdict.would_decide
    shown = verdict_of(job, replace(LEGACY, timing=True))
    assert shown.ranks == (1,)


def test_a_circle_over_three_groups_is_nobodys_fault() -> None:
    groups = {"a0": (0, 1), "b0": (1, 2), "c0": (2, 0)}
    first = {0: ("a0", "c0"), 1: ("b0", "a0"), 2: ("c0", "b0")}
    job = Job(
        {rank: [Call("all_reduce", name) for name in names] for rank, names in first.items()},
        groups,
    )
    verdict = verdict_of(job)
    assert (verdict.outcome, verdict.fault, verdict.ranks) == (
        Outcome.NO_RANK,
        Fault.DEADLOCK,
        (),
    )
    assert any("Rank 0 is in all_reduce 1 of group a [0, 1]" in line for line in verdict.evidence)


def test_two_faults_are_two_roots() -> None:
    groups = {"tp0": (0, 1), "tp1": (2, 3)}
    programs = {rank: loop(5, Call("all_reduce", f"tp{rank // 2}")) for rank in range(4)}
    job = Job(programs, groups)
    job.ranks[1].stop_before = 2
    job.ranks[2].stop_before = 3
    verdict = verdict_of(job, LEGACY, {2: Observation(life=Life.DEAD, why="killed")})
    assert verdict.faults == ((1, Fault.STALLED), (2, Fault.DEAD))


@pytest.mark.parametrize("waits_for_the_dead", [False, True])
def test_a_living_rank_that_had_not_come_yet_is_not_blamed_for_a_death(
    waits_for_the_dead: bool,
) -> None:
    """Evidence of a death is taken within milliseconds: some are still on their way."""
    groups = {"left": (0, 1), "right": (1, 2)}
    turn = ("right", "left") if waits_for_the_dead else ("left", "right")
    calls = {0: ["left"], 1: [*turn], 2: ["right"]}
    programs = {
        rank: loop(5, *(Call("all_reduce", name) for name in names))
        for rank, names in calls.items()
    }
    job = Job(programs, groups)
    job.ranks[0].stop_before = 3
    job.ranks[2].stop_before = 3
    seen = {rank: Observation(life=Life.ALIVE) for rank in (0, 1)}
    seen[2] = Observation(life=Life.DEAD, why="exited with code 3")
    verdict = verdict_of(job, LEGACY, seen)
    assert (verdict.ranks, verdict.fault) == ((2,), Fault.DEAD)


def test_groups_of_one_name_with_other_members_are_kept_apart() -> None:
    """Names that processes give on their own repeat."""
    job = two_ways()
    job.ranks[3].stop_before = 9
    job.run()

    def renamed(item: RankDump) -> RankDump:
        names = {group.name: replace(group.name, name="7") for group in item.dump.groups}
        kept = {n: n if n.description != "tp" else names[n] for n in names}
        entries = tuple(replace(e, group=kept[e.group]) for e in item.dump.entries)
        groups = tuple(replace(g, name=kept[g.name]) for g in item.dump.groups)
        return replace(item, dump=replace(item.dump, groups=groups, entries=entries))

    verdict = diagnose(Evidence(dumps=tuple(renamed(item) for item in job.dumps(LEGACY))))
    assert verdict.ranks == (3,)


def test_several_missing_dumps_are_narrowed_by_what_each_group_lacks() -> None:
    """Ranks 2 and 3 left nothing; only rank 2 is needed in every group that waits."""
    job = two_ways()
    job.ranks[2].stop_before = 10
    job.run()
    kept = tuple(item for item in job.dumps(LEGACY) if item.rank in (0, 1))
    verdict = diagnose(Evidence(dumps=kept, expected_ranks=frozenset(range(4))))
    assert 2 in verdict.ranks
    named = diagnose(
        Evidence(
            dumps=kept,
            expected_ranks=frozenset(range(4)),
            observations={2: Observation(life=Life.STOPPED, why="SIGSTOP")},
        )
    )
    assert (named.ranks, named.fault) == ((2,), Fault.STALLED)


def test_a_rank_in_gloo_waits_for_one_that_waits_in_nccl() -> None:
    """Two recorders a rank: the root is where the waiting ends over both."""
    groups = {"cpu0": (0, 1), "gpu0": (1, 2)}
    programs = {
        0: loop(4, Call("barrier", "cpu0")),
        1: loop(4, Call("all_reduce", "gpu0"), Call("wait"), Call("barrier", "cpu0"), Call("wait")),
        2: loop(4, Call("all_reduce", "gpu0")),
    }
    job = Job(programs, groups)
    job.ranks[2].stop_before = 2
    job.run()

    def part(item: RankDump, name: str) -> RankDump:
        entries = tuple(e for e in item.dump.entries if e.group.description == name)
        entries = tuple(replace(e, record=at) for at, e in enumerate(entries))
        return replace(item, dump=replace(item.dump, entries=entries, status={}))

    dumps = (
        *(part(item, "gpu") for item in job.dumps(LEGACY) if item.rank != 0),
        *(part(item, "cpu") for item in job.dumps(GLOO) if item.rank != 2),
    )
    verdict = diagnose(Evidence(dumps=dumps))
    assert (verdict.ranks, verdict.fault) == ((2,), Fault.STALLED)
    waits = {victim.rank: victim.waits_for for victim in verdict.victims}
    assert waits == {0: (1,), 1: (2,)}
    assert diagnose(Evidence(dumps=dumps[::-1])) == verdict


def test_of_two_attempts_only_the_newest_counts() -> None:
    old, new = world_loop(3), world_loop(3)
    old.ranks[1].stop_before = 2
    new.ranks[2].stop_before = 4
    old.run()
    new.run()
    later = [
        replace(
            item,
            attempt="1",
            dump=replace(
                item.dump,
                entries=tuple(
                    replace(e, created_ns=2 * 10**18 + e.record) for e in item.dump.entries
                ),
            ),
        )
        for item in new.dumps(LEGACY)
    ]
    earlier = [replace(item, attempt="0") for item in old.dumps(LEGACY)]
    verdict = diagnose(Evidence(dumps=(*earlier, *later)))
    assert verdict.ranks == (2,)
    assert any("2 attempts" in line for line in verdict.evidence)


@pytest.mark.parametrize(
    ("lives", "ranks", "fault", "confidence"),
    [
        ({2: Life.DEAD}, (2,), Fault.DEAD, Confidence.HIGH),
        ({1: Life.DEAD, 2: Life.DEAD, 3: Life.DEAD}, (1, 2, 3), Fault.DEAD, Confidence.MEDIUM),
        ({0: Life.STOPPED}, (0,), Fault.STALLED, Confidence.MEDIUM),
    ],
)
def test_gloo_dumps_taken_after_the_loss_say_that_nobody_waits(
    lives: dict[int, Life], ranks: tuple[int, ...], fault: Fault, confidence: Confidence
) -> None:
    """As `keepstep run` finds them: what failed looks finished, only the process tells."""
    job = world_loop(4)
    job.run()
    seen = {rank: Observation(life=lives.get(rank, Life.ALIVE)) for rank in job.ranks}
    dumps = tuple(dump for dump in job.dumps(GLOO) if dump.rank not in lives)
    verdict = diagnose(Evidence(dumps=dumps, observations=seen, expected_ranks=frozenset(range(4))))
    assert (verdict.outcome, verdict.ranks, verdict.fault) == (Outcome.CULPRIT, ranks, fault)
    assert verdict.confidence is confidence
