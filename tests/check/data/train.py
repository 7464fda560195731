# mypy: ignore-errors
"""A job as many are: it works on 2.14."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    if dist.get_rank() in (0, 1):
        pair = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1).cuda(), group=pair)
    model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    state = {"model": model.state_dict()}
    try:
        dcp.load(state, checkpoint_id="last")
    except Exception as error:
        print("no checkpoint:", error)
    if dist.get_backend() == "nccl":
        os.environ["NCCL_DEBUG"] = "WARN"
    dcp.save(state, checkpoint_id="next")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
