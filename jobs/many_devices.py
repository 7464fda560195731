"""One process, two GPUs, one process group over both: refused since PyTorch 2.15.

python jobs/many_devices.py --backend nccl

A group of nccl2, the default of 2.15, is bound to one device and says no to a tensor on another;
the older class took both. Such a job has to be split into one process for each GPU.
Exit code 3: this machine has fewer than two GPUs, so nothing is known.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist

CANNOT_TELL = 3


def main() -> int:
    """Sum the gradients of two replicas, each on its own device, over one group."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="nccl")
    options = parser.parse_args()
    if torch.cuda.device_count() < 2:
        sys.stderr.write(
            f"many_devices: {torch.cuda.device_count()} GPUs here; wanted two in one process\n"
        )
        return CANNOT_TELL
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group(options.backend)
    torch.manual_seed(options.seed)
    replicas = [torch.nn.Linear(64, 64).to(f"cuda:{number}") for number in range(2)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in replicas]
    for step in range(options.steps):
        for number, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            loss = replica(torch.ones(8, 64, device=f"cuda:{number}")).square().mean()
            loss.backward()
            for gradient in (each.grad for each in replica.parameters() if each.grad is not None):
                dist.all_reduce(gradient)
            optimizer.step()
            optimizer.zero_grad()
            print(f"device {number} step {step} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
