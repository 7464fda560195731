"""A job of keepstep with a larger model, so that its steps are work and not the launch of kernels.

    python heavy.py JOB [--lazy-init] ...       the rest as jobs/JOB.py takes it

``--lazy-init`` makes the group of all ranks with ``ProcessGroupNCCL.Options().lazy_init = True``.
Ranks that share one GPU talk through sockets: the model is small enough that they do not decide.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

SIZES = {"CONTEXT": 256, "WIDTH": 512, "LAYERS": 4, "HEADS": 8, "BATCH": 64}


def main() -> None:
    """Run the job."""
    name, rest = sys.argv[1], sys.argv[2:]
    given = os.environ.get("KEEPSTEP_JOBS")
    jobs = Path(given) if given else Path(__file__).resolve().parents[4] / "jobs"
    if "--lazy-init" in rest:
        rest.remove("--lazy-init")
        initialise = dist.init_process_group

        def lazily(*args: Any, **more: Any) -> None:
            options = dist.ProcessGroupNCCL.Options()
            options.lazy_init = True
            initialise(*args, **{**more, "pg_options": options, "device_id": None})

        dist.init_process_group = lazily
    spec = importlib.util.spec_from_file_location(name, jobs / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    for key, value in SIZES.items():
        setattr(job, key, value)
    sys.argv = [sys.argv[0], *rest]
    job.main()


if __name__ == "__main__":
    main()
