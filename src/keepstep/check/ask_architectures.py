"""Says which GPU architectures the wheel has code for. CUDA is not initialised."""

import json

import torch

# Not torch.cuda.get_arch_list(): before 2.15 it is empty where no GPU is available.
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
print("keepstep-answer " + json.dumps({"architectures": (flags or "").split()}))
