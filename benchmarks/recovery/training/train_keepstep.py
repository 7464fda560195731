"""The workload under `keepstep run`; also under plain torchrun, to measure the overhead."""

from __future__ import annotations

import argparse
import signal

import keepstep
from benchmarks.recovery.between import Between
from benchmarks.recovery.marks import ENTER, READY, MarkLog
from benchmarks.recovery.settings import STEPS
from benchmarks.recovery.training.workload import Workload, seed_rank


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()

    job = keepstep.join()
    work = Workload.build()
    state = keepstep.State(replicated={"model": work.model, "optimizer": work.optimizer})
    seed_rank(job.rank)
    log, between = MarkLog(), Between()
    signal.signal(signal.SIGUSR1, lambda *_: between.write())

    def step(n: int) -> None:
        between.enter()
        work.loss(work.model, job.share(work.sampler, n)).backward()
        log.write(ENTER, job.rank, n)
        job.average_gradients(work.model)
        work.optimizer.step()
        work.optimizer.zero_grad()
        work.mark_commit(log, rank=job.rank, step=n, members=job.world_size)
        between.leave()

    log.write(READY, job.rank, 0)
    job.train(step, state, steps=options.steps)


if __name__ == "__main__":
    main()
