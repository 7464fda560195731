"""The next generation: its members, where it starts, and the ``Form`` that tells them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keepstep.runtime import protocol as p
from keepstep.runtime.changes import DIFFER
from keepstep.runtime.decide import (
    Decision,
    NoCommonStateError,
    Proof,
    decide,
    from_first,
)
from keepstep.runtime.faults import abort, close_incident, fence, record_fault
from keepstep.runtime.hosts import mirror_rows
from keepstep.runtime.job_state import ALL, JobState
from keepstep.runtime.roster import Phase
from keepstep.runtime.settings import START_ALLOWANCE

CRASH_LOOP = 3  # times that one step may fail after its generation was formed
MOST_DONORS = 16  # a receiver opens a connection to each
FORM_ATTEMPTS = 6  # attempts in a row to form a generation


def try_first_generation(job: JobState) -> None:
    """Form the first generation if as many workers as wanted are ready."""
    digests = {
        wid: ready.digest for wid in job.members if (ready := job.workers[wid].ready) is not None
    }
    if len(digests) < job.settings.world_size:
        return
    starts = _starts(job)
    if len(set(starts.values())) > 1:
        found = ", ".join(f"rank {job.rank_of(wid)} step {step}" for wid, step in starts.items())
        abort(job, f"ranks found different checkpoints ({found}): is it one folder for all?", 1)
        return
    start = next(iter(starts.values()), 0)
    if start:
        job.event("from_checkpoint", step=start)
    job.owners = list(job.slots)
    job.generation = 1
    _form_generation(job, from_first(job.members, digests, start=start))


def _starts(job: JobState) -> dict[int, int]:
    """Return worker -> step count of what it holds, of members that looked for a checkpoint."""
    ready = {wid: job.workers[wid].ready for wid in job.members}
    return {wid: said.start for wid, said in ready.items() if said is not None and said.start >= 0}


def try_form(job: JobState) -> None:
    """Form the next generation if everything is known that it depends on."""
    change = job.change
    assert change is not None
    survivors = [wid for wid in job.members if not job.is_leaving(wid)]
    if any(job.workers[wid].fencing and not job.workers[wid].gone for wid in job.members):
        return
    if any(job.is_recalled(wid) for wid in job.members) or _awaits_host(job):
        return
    proposals = {wid: job.workers[wid].proposal for wid in survivors}
    if any(held is None or held.generation != job.generation for held in proposals.values()):
        return
    if change.drain is not None and not job.workers[change.drain].gone:
        fence(job, change.drain, "replaced by a spare at a step boundary")
        return
    before, slots = job.slots, _next_slots(job)
    if slots is None:
        return
    job.slots = slots
    decision = _decide_start(job, {w: held for w, held in proposals.items() if held is not None})
    if decision is not None and decision.suspects:
        job.slots = before  # a spare that has no part in this keeps out of it
        _expel(job, decision.suspects)
    elif decision is not None:
        _form_generation(job, decision)


def _awaits_host(job: JobState) -> bool:
    """Return whether a lost worker's records lie on a host whose lease is running out."""
    lost = [job.workers[wid] for wid in job.owners if wid is not None]
    agents = [job.agents.get(worker.agent) for worker in lost if worker.gone]
    return any(agent is not None and not agent.connected for agent in agents)


def _next_slots(job: JobState) -> list[int | None] | None:
    """Return the worker of each place of the next generation; None: wait."""
    assert job.change is not None
    kept = [None if wid is None or job.is_leaving(wid) else wid for wid in job.slots]
    spares = sorted(job.ready_spares())
    for place, wid in enumerate(kept):
        if wid is None and spares:
            kept[place] = spares.pop(0)
    if None not in kept:
        return kept
    if job.settings.on_loss == "shrink" and any(wid is not None for wid in kept):
        empty = [place for place, wid in enumerate(kept) if wid is None]
        job.recoveries.set_action("shrink", {job.slots[place] for place in empty})
        return kept
    _wait_for_spare(job)
    return None


def _wait_for_spare(job: JobState) -> None:
    change = job.change
    assert change is not None
    if change.waiting_since is None:
        change.waiting_since = job.now
        job.event("waiting_for_spare", starting=job.starting())
        close_incident(job, "no spare was ready: the job waits for one")
    waited = job.waited(change.waiting_since)
    bounded = job.settings.on_loss == "replace"
    if bounded and (waited > START_ALLOWANCE or not job.starting()):
        abort(
            job,
            "a rank was lost, no spare is ready and none is starting. Run with more --spares, "
            "with --on-loss shrink to go on with fewer ranks, or --on-loss wait",
            1,
        )


def _decide_start(job: JobState, proposals: dict[int, p.Proposal]) -> Decision | None:
    """Return where to start from; None (and the job has ended) if there is nothing."""
    job.lived |= any(held.committed > 0 for held in proposals.values())
    if not job.lived and not job.distrust:
        digests = {wid: held.digest for wid, held in proposals.items()}
        for wid in job.members:
            ready = job.workers[wid].ready
            digests.setdefault(wid, ready.digest if ready is not None else "")
        return _first_again(job, digests)
    try:
        decision = decide(
            members=job.members,
            owners=_known_owners(job),
            holdings={
                w: _as_far_as_sure(job, held) for w, held in proposals.items() if held.member_of
            },
            left={wid: worker.known for wid, worker in job.workers.items() if worker.gone},
            snapshot=job.snapshots.newest(),
            distrust=job.distrust,
            proof=job.proof,
            same_world=len(job.members) == sum(wid is not None for wid in job.owners),
        )
    except NoCommonStateError as error:
        abort(job, f"no state to go on from: {error}", 1)
        return None
    if decision.source == "snapshot" and not decision.suspects:
        job.event("back_to_snapshot", step=decision.start_step, why=decision.why)
        if decision.differ:
            # Also if the generation does not come to life: some hold that state still.
            job.distrust = DIFFER
            job.recoveries.add_unnamed_corruption(job.now, decision.start_step)
    return decision


def _as_far_as_sure(job: JobState, held: p.Proposal) -> p.Proposal:
    """Return what a worker holds without its entry of the next step, if that may not be final."""
    return dataclasses.replace(held, entry=job.sure_count(held.committed, held.entry))


def _first_again(job: JobState, digests: dict[int, str]) -> Decision | None:
    """Return the start of a job whose first generation did not come to life."""
    start = job.generations[0][1] if job.generations else 0
    starts = dict.fromkeys(job.members, -1) | _starts(job)
    owners = _known_owners(job)
    try:
        return from_first(job.members, digests, owners, start=start, starts=starts)
    except NoCommonStateError as error:
        abort(job, f"no state to go on from: {error}", 1)
        return None


def _known_owners(job: JobState) -> dict[int, int]:
    """Return rank -> the worker whose records hold its per-rank state."""
    found = {}
    for place, wid in enumerate(job.slots):
        owner = job.owners[place] if place < len(job.owners) else None
        if wid is None or owner is None:
            continue
        left_something = not job.workers[owner].gone or job.workers[owner].known >= 0
        if job.lived or left_something:
            found[job.ranks[wid]] = owner
    return found


def _expel(job: JobState, suspects: tuple[int, ...]) -> None:
    """Replace the members that the majority contradicts, then decide again."""
    job.distrust = DIFFER
    for wid in suspects:
        evidence = "its replica differs from the others'"
        record_fault(job, wid, "corrupt", "replace", job.now, evidence=evidence)
        fence(job, wid, evidence)


def _form_generation(job: JobState, decision: Decision) -> None:
    reached = max(job.committed_counts(), default=0)
    lost = job.recoveries.on_decision(decision.start_step, decision.source, reached)
    limit = _crash_loop(job, job.failing_step)
    if limit is not None:
        abort(job, limit, 1)
        return
    job.phase = Phase.FORMING
    job.change = None
    job.entered = []
    job.start_step = decision.start_step
    job.proof, job.start_why = _since(decision.proof, job.generation), decision.why
    members = job.members
    job.generations.append([job.generation, job.start_step, len(members)])
    job.snapshots.drop_after(decision.start_step)
    for wid in members:
        job.workers[wid].formed = 0
        job.workers[wid].done = job.workers[wid].failed = None
    form = p.Form(
        generation=job.generation,
        uuid=job.generation,
        members=members,
        handles=[job.workers[wid].handle for wid in members],
        start_step=decision.start_step,
        source=decision.source,
        donors=_donor_rows(job, decision),
        receivers=list(decision.receivers),
        digest=decision.digest,
        rank_state=_rank_rows(job, decision),
        snapshot_every=job.snapshots.interval,
        fired=sorted(job.fired),
        prove=decision.proof is not None,
        timeout=job.times.form,
        mirrors=mirror_rows(job),
    )
    job.send(ALL, form)
    job.event(
        "form",
        start_step=job.start_step,
        members=members,
        source=decision.source,
        receivers=list(decision.receivers),
        lost_steps=lost,
        **({"why": job.start_why} if job.start_why else {}),
    )
    job.changed = True
    job.form_began = job.now


def _since(proof: Proof | None, generation: int) -> Proof | None:
    """Return what has to be proven from ``generation`` on, if not from an earlier one."""
    if proof is None or proof.generation:
        return proof
    return dataclasses.replace(proof, generation=generation)


def _donor_rows(job: JobState, decision: Decision) -> list[list[Any]]:
    if decision.snapshot is not None:
        return [[-1, address] for address in decision.snapshot.payload]
    rows = []
    for wid in _chosen(decision.donors, job.form_failures):
        ready = job.workers[wid].ready
        if ready is not None:
            rows.append([wid, ready.address])
    return rows


def _chosen(donors: Sequence[int], attempt: int) -> list[int]:
    """Return some of ``donors``, far from each other; others in the next attempt."""
    size, count = len(donors), min(len(donors), MOST_DONORS)
    return [donors[(place * size // count + attempt) % size] for place in range(count)]


def _rank_rows(job: JobState, decision: Decision) -> dict[str, list[Any]]:
    if decision.snapshot is not None:
        count = decision.snapshot.committed
        places = decision.snapshot.ranks
        return {
            str(rank): [places[rank][0], f"snapshot/{count}/rank/{places[rank][1]}"]
            for rank in range(len(job.members))
            if rank in places
        }
    rows = {}
    for rank, source in decision.rank_sources.items():
        worker = job.workers[source.wid]
        agent = job.agents.get(worker.agent)
        address = agent.address if agent is not None else worker.keeper
        rows[str(rank)] = [address, f"rank/{source.wid}/{source.count}"]
    return rows


def _crash_loop(job: JobState, step: int) -> str | None:
    if job.failures_at.get(step, 0) >= CRASH_LOOP:
        return (
            f"step {step} failed {CRASH_LOOP} times in a row, each time with a freshly formed "
            f"generation; the last reason: {job.recoveries.last_reason()}. The step itself is "
            "broken: look at the script and its data"
        )
    if job.form_failures >= FORM_ATTEMPTS:
        return (
            f"{FORM_ATTEMPTS} attempts in a row to form a generation failed. The last: "
            f"{job.form_error[:300] or job.recoveries.last_reason()}. See form_failed in the "
            "events, and the output of that worker"
        )
    if job.recoveries.count > job.settings.max_recoveries:
        return (
            f"{job.recoveries.count} recoveries needed, --max-recoveries is "
            f"{job.settings.max_recoveries}"
        )
    return None
