"""What workers say of themselves, by kind of message."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime.changes import begin_change, on_difference
from keepstep.runtime.faults import fence, record_fault
from keepstep.runtime.job_state import ALL, JobState
from keepstep.runtime.roster import Phase, Worker

TOLD_APART = 64  # members of a generation; of more only those that took longest are told
SLOWEST = 3
SUSPECTED_TOO_OFTEN = 2  # attempts to form a generation that failed because of one donor


def on_joined(job: JobState, worker: Worker, message: p.Joined) -> None:
    """It called ``keepstep.join()``."""
    worker.joined = True
    job.event("worker_joined", **job.who(worker.wid), agent=worker.agent, torch=message.torch)
    if message.torch not in job.torch_versions:
        job.torch_versions.append(message.torch)
        if len(job.torch_versions) > 1:
            job.event("torch_versions_differ", **job.who(worker.wid), found=job.torch_versions[:])


def on_ready(job: JobState, worker: Worker, message: p.Ready) -> None:
    """It can take a place."""
    worker.joined, worker.ready, worker.handle = True, message, message.handle
    job.steps = message.steps
    job.start_failures = 0
    job.event(
        "worker_ready",
        **job.who(worker.wid),
        agent=worker.agent,
        after_s=round(job.now - worker.launched, 3),
    )


def on_launched(job: JobState, worker: Worker, message: p.Launched) -> None:
    """Its process was started."""
    worker.pid = message.pid


def on_fired(job: JobState, worker: Worker, message: p.Fired) -> None:
    """A fault was injected on purpose."""
    if message.index in job.fired:
        return  # repeated after a loss of contact
    job.fired.add(message.index)
    job.changed = True
    job.recoveries.on_fired(worker.wid, job.now - message.ago)
    job.event(
        "fault_injected",
        **job.who(worker.wid),
        step=message.step,
        injection=message.index,
        spec=dict(enumerate(job.injections)).get(message.index),
    )


def on_formed(job: JobState, worker: Worker, message: p.Formed) -> None:
    """It is in the new generation and holds its state."""
    if message.generation == job.generation:
        worker.formed = message.generation
        worker.proposal = worker.failed = worker.done = None
        job.entered.append(
            {
                "worker": worker.wid,
                "rank": job.rank_of(worker.wid),
                "step": message.step,
                **{f"{k}_s": v for k, v in message.seconds.items()},
            }
        )
        if len(job.ranks) <= TOLD_APART:
            job.event("member_formed", **job.entered[-1])


def tell_slowest(job: JobState) -> None:
    """Tell who took longest to enter a generation of many; nobody reads a line for each."""
    entered, job.entered = job.entered, []
    if len(job.ranks) > TOLD_APART:
        slowest = heapq.nlargest(SLOWEST, entered, key=_seconds)
        job.event("members_formed", count=len(entered), step=job.start_step, slowest=slowest)


def _seconds(entry: dict[str, Any]) -> float:
    return float(sum(value for key, value in entry.items() if key.endswith("_s")))


def on_form_failed(job: JobState, worker: Worker, message: p.FormFailed) -> None:
    """It could not enter the new generation."""
    worker.handle = message.handle
    if message.generation == job.generation and job.phase is Phase.FORMING:
        job.event("form_failed", **job.who(worker.wid), error=message.error[:300])
        job.form_error = f"worker {worker.wid} could not enter: {message.error}"
        _suspect(job, message)
        if message.lacks == "snapshot":
            job.snapshots.forget(job.start_step)
        job.notes_lost |= message.lacks == "record"
        distrust = "what a rank left of its per-rank state is not there any more"
        begin_change(
            job,
            job.form_error[:120],
            distrust=distrust if message.lacks == "record" else "",
        )


def _suspect(job: JobState, message: p.FormFailed) -> None:
    """Fence who twice in a row has not done its part: it lives and is of no use.

    A donor that does not give the state; a process in which the script raises on its way in.
    """
    wid = message.suspect
    if wid not in job.ranks:
        return
    times = job.suspected.get(wid, 0) + 1
    job.suspected[wid] = times
    if times >= SUSPECTED_TOO_OFTEN and not job.is_leaving(wid):
        is_own = wid == message.wid
        what = "its script raised" if is_own else "it did not give the state that it holds"
        evidence = f"{times} times {what} while a generation formed: {message.error[:120]}"
        fault = "raise" if is_own else "hang"
        record_fault(job, wid, fault, "replace", job.form_began, evidence=evidence)
        fence(job, wid, evidence)


def on_resumed(job: JobState, worker: Worker, message: p.Resumed) -> None:
    """It committed the first step of a generation."""
    worker.proven = True
    if message.generation != job.generation or not _proves(job, message):
        return
    cost = job.recoveries.on_resumed(job.now - message.ago, full=job.is_full)
    if cost is not None:
        job.swap_cost = cost
        job.changed = True  # the book of faults must survive a restart of the coordinator
        job.event(
            "resumed",
            step=message.committed,
            after_s=round(cost, 4),
            world_size=len(job.members),
            wanted=job.settings.world_size,
            **({"why": job.start_why} if job.start_why else {}),
            **job.recoveries.last_healed(job.members),
        )


def _proves(job: JobState, message: p.Resumed) -> bool:
    """Return whether a repeated step has ended in the state in which it has to end."""
    proof = job.proof
    if proof is None or not message.digest:
        return True
    if message.digest != proof.digest:
        why = f"step {proof.committed} was repeated and ended in another state"
        on_difference(job, (), proof.committed, repeated=why)
        return False
    job.event("proven", step=proof.committed)
    job.proof, job.changed = None, True
    return True


def on_snapshot_taken(job: JobState, worker: Worker, message: p.SnapshotTaken) -> None:
    """It took its part of a snapshot."""
    if job.rank_of(worker.wid) != message.rank:
        return
    if job.distrust:  # taken by ranks that had not heard of it yet: of a state that nobody trusts
        return
    address = job.agents[worker.agent].address
    job.snapshots.note(message, address)
    outvoted = job.snapshots.judge(message.committed, job.ranks)
    job.changed |= job.snapshots.is_common(message.committed)
    if outvoted is not None and job.phase is Phase.LIVE:
        on_difference(job, outvoted, message.committed)
    every = job.snapshots.every(job.median_step)
    if every is not None:
        ahead = job.boundary()
        job.send(ALL, p.SnapshotEvery(every=every, from_step=ahead))


def on_snapshot_left_out(job: JobState, worker: Worker, message: p.SnapshotLeftOut) -> None:
    """There was no room for one. No more are taken: each would remove an older one that serves."""
    if job.snapshots.interval:
        job.snapshots.stop()
        job.changed = True
        job.send(ALL, p.SnapshotEvery(every=0, from_step=0))
        job.event(
            "snapshot_left_out",
            **job.who(worker.wid),
            step=message.committed,
            folder=message.folder,
            why=message.why,
        )


def on_checkpointed(job: JobState, worker: Worker, message: p.Checkpointed) -> None:
    """A checkpoint is there, or is not."""
    job.event(
        "checkpoint_left_out" if message.why else "checkpoint_saved",
        worker=worker.wid,
        step=message.step,
        folder=message.folder,
        seconds=round(message.seconds, 3),
        held_s=round(message.held, 4),
        **({"why": message.why[:300]} if message.why else {}),
    )


def on_changed_late(job: JobState, worker: Worker, message: p.ChangedLate) -> None:
    """What a rank left when it entered a collective was not what it had at the step's end."""
    if not job.changes_late:
        job.changes_late = job.changed = True
        job.event("changed_late", **job.who(worker.wid), step=message.step)


def on_done(job: JobState, worker: Worker, message: p.Done) -> None:
    """It did all steps."""
    worker.handle = message.handle
    if message.generation == job.generation:
        worker.done = message
        worker.proven = True


def on_proposal(job: JobState, worker: Worker, message: p.Proposal) -> None:
    """It left its step and says what it holds."""
    worker.handle = message.handle
    worker.proposal = message


def on_step_failed(job: JobState, worker: Worker, message: p.StepFailed) -> None:
    """Its step raised."""
    fatal = message.origin in p.FATAL
    if not _matters(job, worker, message, fatal=fatal):
        return
    worker.failed = message
    rank = job.rank_of(worker.wid)
    if message.origin == "collective":
        return  # a victim; the lost rank that explains it is on its way, or the next tick acts
    again = job.raised_at.get(worker.wid) == message.step
    job.event(
        "step_failed",
        **job.who(worker.wid),
        step=message.step,
        error=message.error[:300],
        origin=message.origin,
        action="replace" if fatal or again else "retry",
    )
    job.raised_at[worker.wid] = message.step
    fault = {"memory": "oom", "device": "device"}.get(message.origin, "raise")
    if fatal or again:
        record_fault(job, worker.wid, fault, "replace", job.now, evidence=message.error)
        fence(job, worker.wid, f"its step raised: {message.error[:80]}")
    else:
        record_fault(job, worker.wid, fault, "retry", job.now, evidence=message.error)
    why = f"rank {rank} raised in step {message.step}: {message.error[:120]}"
    begin_change(job, why, step=message.step)


def _matters(job: JobState, worker: Worker, message: p.StepFailed, *, fatal: bool) -> bool:
    """Whether a failure is of this generation, or of the one that is just being left.

    A generation that is left at once for another reason fails everywhere; what counts then is
    whether the process can go on.
    """
    if job.phase is Phase.HALTING and job.change is not None:
        is_member = worker.wid in job.ranks and not job.is_leaving(worker.wid)
        return is_member and (fatal or job.change.at_step is not None)
    return message.generation == job.generation and job.phase in (Phase.LIVE, Phase.FORMING)


HANDLERS: dict[type[p.Message], Callable[[JobState, Worker, Any], None]] = {
    p.Launched: on_launched,
    p.Joined: on_joined,
    p.Ready: on_ready,
    p.Fired: on_fired,
    p.Formed: on_formed,
    p.FormFailed: on_form_failed,
    p.Resumed: on_resumed,
    p.SnapshotTaken: on_snapshot_taken,
    p.SnapshotLeftOut: on_snapshot_left_out,
    p.Checkpointed: on_checkpointed,
    p.ChangedLate: on_changed_late,
    p.Done: on_done,
    p.Proposal: on_proposal,
    p.StepFailed: on_step_failed,
}
