"""The workload under torchft 0.2.0: one replica group of one process.

Runs in torchft's environment. The loop is that of torchft's README; `torchft.Optimizer` is written
out (it calls `start_quorum` and `should_commit`), because it does not say whether it committed.
"""

# No `from __future__ import annotations`: torch compares the annotations of a hook with types.

import argparse
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import (  # type: ignore[import-not-found]  # not in the project's environment
    DistributedDataParallel,
    Manager,
    ProcessGroupGloo,
)

from benchmarks.recovery.marks import ENTER, READY, MarkLog, folder
from benchmarks.recovery.settings import STEPS, WORLD_SIZE
from benchmarks.recovery.training.workload import Workload, seed_rank


class MendedDataParallel(DistributedDataParallel):  # type: ignore[misc]  # its base is unknown here
    """torchft's wrapper without the defect that ends the survivors.

    Where a collective of gloo fails, `Work.wait` of torchft 0.2.0 reports it to the manager as it
    should, but its future is never set, and the hook of 0.2.0 asserts that it is: the survivors
    die in `backward` and nobody is left to heal from. This hook does what that one means to do.
    """

    @staticmethod
    def _comm_hook(manager: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        manager.allreduce(bucket.buffer()).wait()
        reduced: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        reduced.set_result(bucket.buffer())
        return reduced


def main() -> None:
    """Train; the benchmark ends this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--group-timeout", type=float, required=True)
    parser.add_argument("--min-replicas", type=int, required=True)
    options = parser.parse_args()

    work = Workload.build()
    seed_rank(options.replica)
    # The store of a replica group; with one process a group nobody else uses it.
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = create_manager(work, store, options)
    network = MendedDataParallel(manager, work.model)
    log = MarkLog()
    log.write(READY, options.replica, 0)
    wait_for_go()
    while manager.current_step() < STEPS:
        train_step(work, network, manager, log, options.replica)


def create_manager(work: Workload, store: dist.TCPStore, options: argparse.Namespace) -> Any:
    """Return torchft's manager with the settings under test."""

    def state_dict() -> dict[str, Any]:
        return {"model": work.model.state_dict(), "optimizer": work.optimizer.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        work.model.load_state_dict(state["model"])
        work.optimizer.load_state_dict(state["optimizer"])

    return Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=options.group_timeout)),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=options.min_replicas,
        replica_id=f"replica_{options.replica}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=options.lighthouse,
        hostname="localhost",
        init_sync=False,  # as its documentation advises where all begin with equal weights
    )


def wait_for_go() -> None:
    """Wait until all replicas of the beginning are there, so that none trains alone."""
    while not (folder() / "go").exists():
        time.sleep(0.01)


def train_step(work: Workload, network: Any, manager: Any, log: MarkLog, replica: int) -> None:
    """Try one step; torchft drops it when a member was lost meanwhile."""
    step = manager.current_step()
    manager.start_quorum()
    work.optimizer.zero_grad()
    # Its share of the global batch is fixed: what a lost replica would have used is left out.
    loss = work.loss(network, work.sampler.share(step, replica, WORLD_SIZE))
    log.write(ENTER, replica, step)
    loss.backward()
    if manager.should_commit():
        work.optimizer.step()
        # A replica that was given its state in this step has been moved to the others' step.
        done = manager.current_step() - 1
        work.mark_commit(log, rank=replica, step=done, members=manager.num_participants())


if __name__ == "__main__":
    main()
