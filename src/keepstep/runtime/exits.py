"""What the exit of a worker process means."""

from __future__ import annotations

from keepstep.runtime import protocol as p
from keepstep.runtime.changes import begin_change
from keepstep.runtime.faults import abort, record_fault
from keepstep.runtime.hosts import give_up_place, replace_process
from keepstep.runtime.job_state import JobState
from keepstep.runtime.roster import Phase, Worker

START_FAILURES = 3  # workers in a row that may die before they are ready


def on_exited(job: JobState, message: p.Exited) -> None:
    """A process is gone; its agent has seen it."""
    worker = job.workers.get(message.wid)
    if worker is None or worker.gone:
        return
    rank = job.rank_of(worker.wid)
    worker.gone, worker.exit_code = True, message.code
    worker.known = job.sure_count(message.committed, message.entry)
    worker.joined = worker.joined or message.joined
    if job.phase is Phase.ENDED and rank is not None:
        job.reached = max(job.reached, message.committed)  # what beats said was a second old
    if job.phase in (Phase.FINISHING, Phase.ENDED):
        return
    job.changed = True
    job.event(
        "worker_exited",
        **job.who(worker.wid),
        fault=message.fault,
        code=message.code,
        step=None if rank is None else _reached(job, worker, message),
        fenced=worker.fencing or None,
        ready=worker.ready is not None,
        spares=sorted(job.ready_spares()),
        on_loss=job.settings.on_loss,
    )
    if job.generation == 0:
        give_up_place(job, worker.wid)
        _outsider_lost(job, worker, message)
    elif rank is not None:
        _member_lost(job, worker, message)
    else:
        _outsider_lost(job, worker, message)
    replace_process(job, worker)


def _reached(job: JobState, worker: Worker, message: p.Exited) -> int:
    """Return how far it was by its records, or by its last beat where they are gone (noted)."""
    progress = worker.progress
    is_current = progress is not None and progress.generation == job.generation
    told = progress.committed if progress is not None and is_current else 0
    job.notes_lost |= message.committed < told
    return max(job.start_step, message.committed, told)


def _member_lost(job: JobState, worker: Worker, message: p.Exited) -> None:
    if not worker.fencing:
        since = job.now - message.ago
        record_fault(
            job,
            worker.wid,
            message.fault,
            "replace",
            since,
            message.committed,
            _how_it_ended(message.code),
        )
        why = f"worker {worker.wid} is gone: {message.fault} {message.code}"
        begin_change(job, why, step=message.committed)


def _outsider_lost(job: JobState, worker: Worker, message: p.Exited) -> None:
    if worker.ready is not None:
        job.recoveries.spare_lost()
        return
    if worker.fencing or message.fault == "fence":
        return  # by us, or by its agent when that was cut off: the script did nothing wrong
    job.start_failures += 1
    if not worker.joined and message.code == 0:
        abort(
            job,
            f"the script ended without calling keepstep.join() (worker {worker.wid}). Add "
            "`job = keepstep.join()` and `job.train(step, state, steps=N)` to it",
            2,
        )
    elif job.generation == 0 or job.start_failures >= START_FAILURES:
        how = _how_it_ended(message.code)
        abort(
            job,
            f"worker {worker.wid} {how} before it reached Job.train; its output above says why",
            1,
        )


def _how_it_ended(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
