"""What does not happen: stalls, stragglers, members that do not do in time what they were told."""

from __future__ import annotations

from keepstep.runtime import protocol as p
from keepstep.runtime.blame import blamed_member
from keepstep.runtime.changes import begin_change, plan_change
from keepstep.runtime.detect import Suspicion, find_stalls, is_stalled, worth_swapping
from keepstep.runtime.faults import fence, record_fault
from keepstep.runtime.job_state import JobState
from keepstep.runtime.roster import Change, Phase, Worker

PEER_GRACE = 1.0  # seconds that a lost connection may stay without a lost rank to explain it
STALL_LOOK = 1e-5  # seconds a member between two looks: about a tenth of the time at most
STRAGGLER_LOOK = 1e-4  # the same: this look is longer and not urgent


def on_beat(job: JobState, beat: p.Beat, patience: float) -> None:
    """Take the progress of one agent's workers."""
    for row in beat.workers:
        progress = p.Progress.of(row)
        worker = job.workers.get(progress.wid)
        if worker is None or worker.gone:
            continue
        before = worker.progress
        worker.progress = progress
        if (
            progress.generation == job.generation
            and progress.step_seconds > 0
            and (before is None or before.committed != progress.committed)
        ):
            job.step_seconds.append(progress.step_seconds)
            del job.step_seconds[:-64]
            job.stragglers.add(progress)
        job.stall_reported |= is_stalled(progress, patience)
    if job.phase is Phase.LIVE:
        look_around(job)


def look_around(job: JobState) -> None:
    """Look at all members, a large job less often: there are many beats and many members."""
    size = len(job.ranks)
    if job.stall_reported and job.now >= job.next_stall_look:
        job.stall_reported = False
        job.next_stall_look = job.now + STALL_LOOK * size
        _look_for_stalls(job)
    if job.now >= job.next_straggler_look:
        job.next_straggler_look = job.now + STRAGGLER_LOOK * size
        _notice_unreported_steps(job)
        _look_for_stragglers(job)


def _notice_unreported_steps(job: JobState) -> None:
    """Close a recovery whose end nobody could report: the coordinator was away."""
    if job.recoveries.open and max(job.committed_counts(), default=0) > job.start_step:
        job.recoveries.on_resumed(job.now, full=job.is_full)
        job.changed = True


def _live_progress(job: JobState) -> list[p.Progress]:
    return [
        worker.progress
        for worker in (job.workers[wid] for wid in job.members)
        if worker.progress is not None
        and worker.failed is None
        and worker.progress.generation == job.generation
    ]


def _look_for_stalls(job: JobState) -> None:
    members = _live_progress(job)
    unproven = frozenset(m.wid for m in members if not job.workers[m.wid].proven)
    suspicions = find_stalls(members, job.times.patience, unproven)
    step = job.start_or_committed() if suspicions else -1
    for suspicion in suspicions:
        on_suspicion(job, suspicion, step)


def on_suspicion(job: JobState, suspicion: Suspicion, step: int) -> None:
    """Act on a stall in ``step``: replace whom it names, or try again where it names nobody."""
    job.event(
        "stall",
        **({} if suspicion.wid is None else job.who(suspicion.wid)),
        step=step,
        fault=suspicion.fault,
        age_s=round(suspicion.age, 3),
        evidence=suspicion.evidence,
    )
    since = job.now - suspicion.age
    blamed = blamed_member(job) if suspicion.wid is None else None
    if blamed is not None:
        fault, headline = job.blamed.pop(blamed)
        record_fault(job, blamed, fault, "replace", since, evidence=headline)
        fence(job, blamed, f"{fault}: {headline}")
        begin_change(job, f"stalled again; worker {blamed} was named for the last time: {headline}")
        return
    if suspicion.wid is None:
        record_fault(job, None, "unknown", "retry", since, evidence=suspicion.evidence)
        begin_change(job, suspicion.evidence)
        return
    record_fault(job, suspicion.wid, suspicion.fault, "replace", since, evidence=suspicion.evidence)
    fence(job, suspicion.wid, f"{suspicion.fault}: {suspicion.evidence}")
    begin_change(job, f"worker {suspicion.wid}: {suspicion.fault}")


def _look_for_stragglers(job: JobState) -> None:
    if job.phase is not Phase.LIVE or job.change is not None or not job.ready_spares():
        return
    straggler = job.stragglers.find(job.members)
    newest = max(job.committed_counts(), default=job.start_step)
    if straggler is None or not worth_swapping(straggler, job.steps - newest, job.swap_cost):
        return
    gain = straggler.gain_per_step
    job.event(
        "straggler",
        **job.who(straggler.wid),
        step=newest,
        score=round(straggler.score, 3),
        gain_per_step_s=round(gain, 4),
        steps_left=job.steps - newest,
        cost_s=round(job.swap_cost, 3),
    )
    evidence = f"its own part of a step takes {straggler.score:.1f} times the others'"
    record_fault(job, straggler.wid, "slow", "replace", job.now, evidence=evidence)
    job.recoveries.expect_gain(job.median_step, straggler.score)
    plan_change(job, drain=straggler.wid)


def unexplained_failures(job: JobState, now: float) -> None:
    """Form anew when connections broke and no lost rank explained it in time."""
    failed = [wid for wid in job.members if job.workers[wid].failed is not None]
    if not failed:
        job.failed_since = None
        return
    if job.failed_since is None:
        job.failed_since = now
    if job.waited(job.failed_since) > PEER_GRACE:
        job.failed_since = None
        first = job.workers[failed[0]].failed
        assert first is not None
        record_fault(job, None, "network", "retry", now - PEER_GRACE, evidence=first.error)
        begin_change(job, f"connections broke and every process lives: {first.error[:120]}")


def overdue_halt(job: JobState, now: float) -> None:
    """Fence the members that have not left their step in time."""
    change = job.change
    assert change is not None
    limit = job.times.leave_step
    if change.at_step is not None:
        limit += 10 * job.median_step + 10 * job.times.patience
    if job.waited(change.began) <= limit:
        return
    for wid in job.alive(job.members):
        worker = job.workers[wid]
        agent = job.agents.get(worker.agent)
        if agent is None or now - agent.heard > limit:
            continue  # a host that is silent as a whole: its lease decides
        if worker.fencing or (worker.proposal and worker.proposal.generation == job.generation):
            continue
        if job.waited(_could_leave(job, worker, change)) <= limit:
            continue
        evidence = f"did not leave its step within {limit:.1f} s"
        record_fault(job, wid, "hang", "replace", change.began, evidence=evidence)
        fence(job, wid, evidence)
    if change.at_step is not None:
        change.at_step = None


def _could_leave(job: JobState, worker: Worker, change: Change) -> float:
    """Return since when a halted member can have left what it does.

    One that has not entered the generation that is being left may wait for a peer that will never
    come: nothing ends that before the limit of a reconfiguration.
    """
    if worker.formed == job.generation - 1:
        return change.began
    return max(change.began, job.form_began + job.times.form)


def overdue_form(job: JobState) -> None:
    """Fence the members that have not entered the new generation in time."""
    if job.waited(job.form_began) <= job.times.form_and_transfer:
        return
    for wid in job.alive(job.members):
        if job.workers[wid].formed != job.generation:
            evidence = "did not enter the new generation in time"
            record_fault(job, wid, "hang", "replace", job.form_began, evidence=evidence)
            fence(job, wid, evidence)
    begin_change(job, "a member did not enter the new generation in time")
