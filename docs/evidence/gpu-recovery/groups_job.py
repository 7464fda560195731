"""DDP, sub-groups and a DeviceMesh through a replacement."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import keepstep

job = keepstep.join()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(
    job.device
)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
net = job.data_parallel(model, bucket_cap_mb=0.01)
pairs = job.new_group([0, 1])
rest = job.new_group([1, 2])
mesh = None


@job.on_generation
def make_mesh():
    global mesh
    mesh = init_device_mesh(job.device.type, (job.world_size,), mesh_dim_names=("dp",))


sampler = keepstep.Sampler(1000, 12, seed=1)
state = keepstep.State(replicated={"m": model, "o": opt})
torch.manual_seed(5 + job.rank)


def step(n):
    ids = job.share(sampler, n)
    x = torch.stack([torch.sin(torch.arange(64.0) * (i + 1)) for i in ids]).to(job.device)
    x = x + torch.randn_like(x) * 0.01
    loss = ((net(x) - x.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    r = dist.get_rank()
    if r in (0, 1):
        t = torch.ones(1, device=job.device) * (r + 1)
        dist.all_reduce(t, group=pairs)
        assert t.item() == 3, t
    if r in (1, 2):
        t = torch.ones(1, device=job.device) * (r + 1)
        dist.all_reduce(t, group=rest)
        assert t.item() == 5, t
    t = torch.ones(1, device=job.device)
    dist.all_reduce(t, group=mesh.get_group("dp"))
    assert t.item() == job.world_size
    opt.step()
    opt.zero_grad()


job.train(step, state, steps=int(sys.argv[1]))
