"""One rank of a job that goes wrong on purpose in its fifth step; ``make_dumps.py`` starts it.

    RANK=0 WORLD_SIZE=4 ... python hang.py CASE --culprit 2 --backend nccl --out FOLDER

Two ranks use the group of all ranks alone. Four have two tensor-parallel groups, [0, 1] and [2, 3],
and two data-parallel ones, [0, 2] and [1, 3]; in a pipeline they form one chain. The host does not
wait for the device inside a step, as in real training: a rank whose collective hangs has also
issued what follows it in that step.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

STEPS = 7
WRONG = 5  # the step in which it happens
ELEMENTS = 1024
SLEEP_S = 600.0  # a stalled rank sleeps until it is ended from outside
ASK_AFTER_S = 3.0  # from the wrong step on: everybody who can wait does
RECORDERS = ("nccl2", "nccl-lazy", "gloo")  # those of torch that take part by name
CASES = (
    *("stall", "size", "skip", "skip-world", "extra", "extra-equal"),
    *("pipeline", "pipeline-stall", "cascade", "none"),
)


@dataclass
class Job:
    """What a step needs."""

    case: str
    culprit: int
    rank: int
    ranks: int
    device: torch.device
    out: Path
    tensor_parallel: dist.ProcessGroup | None = None
    data_parallel: dist.ProcessGroup | None = None
    facts: dict[str, object] = field(default_factory=dict)

    def wrong(self, case: str, number: int) -> bool:
        """Whether this rank does what ``case`` says in this step."""
        return self.case == case and number == WRONG and self.rank == self.culprit

    def ones(self, elements: int) -> torch.Tensor:
        """A tensor on this rank's device."""
        return torch.ones(elements, device=self.device)

    def tell(self, **facts: object) -> None:
        """Keep facts of this rank on disk, whatever happens to it."""
        self.facts.update(facts)
        path = self.out / f"rank-{self.rank}.json"
        path.with_suffix(".tmp").write_text(json.dumps(self.facts, indent=1))
        os.replace(path.with_suffix(".tmp"), path)


def step(job: Job, number: int) -> None:
    """One step: a pipeline or tensor and data parallelism, then gradients and loss of all."""
    if job.case.startswith("pipeline"):
        pass_on(job, number)
    if job.tensor_parallel is not None:
        forward(job, number)
    gather_parameters(job)
    average_gradients(job, number)
    share_loss(job, number)
    if job.device.type == "cuda":
        torch.cuda.synchronize()


def pass_on(job: Job, number: int) -> None:
    """Receive from the rank before, send to the one behind."""
    if job.rank > 0:
        dist.recv(job.ones(ELEMENTS), job.rank - 1)
    if job.wrong("pipeline-stall", number):
        stall(job)
    if job.rank < job.ranks - 1 and not job.wrong("pipeline", number):
        dist.send(job.ones(ELEMENTS), job.rank + 1)


def forward(job: Job, number: int) -> None:
    """An all-reduce of the tensor-parallel group."""
    if job.wrong("cascade", number):
        stall(job)
    if not job.wrong("skip", number):
        dist.all_reduce(job.ones(ELEMENTS), group=job.tensor_parallel)


def gather_parameters(job: Job) -> None:
    """An all-gather of the data-parallel group; of all ranks where there are two."""
    size = ELEMENTS * (job.ranks if job.data_parallel is None else 2)
    dist.all_gather_into_tensor(job.ones(size), job.ones(ELEMENTS), group=job.data_parallel)


def average_gradients(job: Job, number: int) -> None:
    """An all-reduce of all ranks."""
    if job.wrong("stall", number):
        stall(job)
    if job.wrong("skip-world", number) or (job.ranks == 2 and job.wrong("skip", number)):
        return
    if job.wrong("extra-equal", number):
        dist.all_reduce(job.ones(ELEMENTS))
    dist.all_reduce(job.ones(1 << 20 if job.wrong("size", number) else ELEMENTS))


def share_loss(job: Job, number: int) -> None:
    """A small all-reduce of all ranks; one rank alone makes another one to log something."""
    size = ELEMENTS if job.case == "extra-equal" else 1
    dist.all_reduce(job.ones(size))
    if job.wrong("extra", number):
        dist.all_reduce(job.ones(size))


def stall(job: Job) -> None:
    """Sleep in Python, as a rank does whose data do not come."""
    job.tell(stalled_at=time.time())
    time.sleep(SLEEP_S)


class Witness:
    """Asks this process's recorders for their dumps from a side thread, once."""

    def __init__(self, job: Job, stacks: bool) -> None:
        self.job = job
        self.forms = {"asked": False, "asked-stacks": True} if stacks else {"asked": False}
        self.lock = threading.Lock()
        self.done = False

    def ask(self) -> None:
        """Write what each recorder holds."""
        with self.lock:
            if self.done:
                return
            self.done = True
            began = time.time()
            held: dict[str, object] = {}
            for form, stacks in self.forms.items():
                for recorder in (*RECORDERS, "nccl-legacy"):
                    dump = self._dump(recorder, stacks)
                    held[f"{form}/{recorder}"] = dump if isinstance(dump, str) else len(dump)
                    if isinstance(dump, bytes) and b"profiling_name" in dump:
                        folder = self.job.out / form / recorder
                        folder.mkdir(parents=True, exist_ok=True)
                        (folder / f"comm_lib_trace_rank_{self.job.rank}").write_bytes(dump)
                took = round(time.time() - began, 3)
                self.job.tell(asked_at=began, asking_took_s=took, recorder_bytes=held)

    def _dump(self, recorder: str, stacks: bool) -> bytes | str:
        try:
            if recorder != "nccl-legacy":
                return _dump_fr_trace(True, stacks, False, recorder)
            # The stubs do not name it.
            from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
                _dump_nccl_trace,
            )

            found: bytes = _dump_nccl_trace(True, stacks, False)
            return found
        except (ImportError, RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"[:200]


def join(case: str, culprit: int, backend: str, out: Path, timeout_s: float) -> Job:
    """Make the groups."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if "nccl" in backend:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    job = Job(case=case, culprit=culprit, rank=rank, ranks=ranks, device=device, out=out)
    if ranks == 4:
        for members in ([0, 1], [2, 3]):
            group = dist.new_group(members, group_desc="tp")
            if isinstance(group, dist.ProcessGroup):  # a rank outside gets a number
                job.tensor_parallel = group
        for members in ([0, 2], [1, 3]):
            group = dist.new_group(members, group_desc="dp")
            if isinstance(group, dist.ProcessGroup):  # a rank outside gets a number
                job.data_parallel = group
    built = dist.group.WORLD._get_backend(device) if dist.group.WORLD is not None else None
    job.tell(asked_for=backend, built=type(built).__name__, pid=os.getpid(), joined_at=time.time())
    return job


def main() -> None:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--culprit", type=int, required=True, help="the rank that does it")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=15.0)
    options = parser.parse_args()
    faulthandler.enable()
    job = join(options.case, options.culprit, options.backend, options.out, options.timeout)
    witness = Witness(job, stacks=options.backend in ("nccl-lazy", "gloo"))
    for number in range(1, STEPS + 1):
        if number == WRONG:
            job.tell(wrong_step_at=time.time())
            timer = threading.Timer(ASK_AFTER_S, witness.ask)
            timer.daemon = True
            timer.start()
        step(job, number)
        job.tell(last_step=number)
    witness.ask()
    job.tell(finished_at=time.time())
    dist.destroy_process_group()
    job.tell(left_at=time.time())


if __name__ == "__main__":
    main()
