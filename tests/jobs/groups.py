"""DistributedDataParallel, sub-groups and a device mesh, used in every step."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import keepstep

job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
model = model.to(job.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
network = job.data_parallel(model, bucket_cap_mb=0.01)
left, right = job.new_group([0, 1]), job.new_group([1, 2])
sampler = keepstep.Sampler(1000, 12, seed=1)
state = keepstep.State(replicated={"model": model, "optimizer": optimizer})
mesh: list[DeviceMesh] = []
torch.manual_seed(5 + job.rank)


@job.on_generation
def make_mesh() -> None:
    """Make the mesh of the present members."""
    mesh[:] = [init_device_mesh(job.device.type, (job.world_size,), mesh_dim_names=("data",))]


def total(value: float, group: dist.ProcessGroup) -> float:
    """Sum ``value`` over the ranks of ``group``."""
    tensor = torch.tensor([value], device=job.device)
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def step(n: int) -> None:
    """Train a little and check every group."""
    rows = [torch.sin(torch.arange(64.0) * (i + 1)) for i in job.share(sampler, n)]
    x = torch.stack(rows).to(job.device)
    x = x + 0.01 * torch.randn_like(x)
    ((network(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    if job.rank in (0, 1):
        assert total(job.rank + 1, left) == 3
    if job.rank in (1, 2):
        assert total(job.rank + 1, right) == 5
    assert total(1, mesh[0].get_group("data")) == job.world_size
    assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(job.world_size))
    optimizer.step()
    optimizer.zero_grad()


job.train(step, state, steps=int(sys.argv[1]))
