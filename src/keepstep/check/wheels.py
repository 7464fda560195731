"""What the wheels of PyTorch are built for, and what a driver must be for them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wheel:
    """One build of the package index for Linux on x86-64."""

    cuda: str
    architectures: tuple[str, ...]


# torch._C._cuda_getArchFlags() of torch 2.14.1+cu130 and 2.15.0+cu132, without a GPU.
_SINCE_TURING = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
WHEELS = {"2.14": Wheel("13.0", _SINCE_TURING), "2.15": Wheel("13.2", _SINCE_TURING)}

# The oldest driver for each major version of CUDA (minor version compatibility):
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html and the CUDA
# release notes, table "CUDA Toolkit and Minimum Required Driver Version".
OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, for comparison: 580.65.06 is (580, 65, 6)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def runs(gpu: str, architectures: tuple[str, ...]) -> bool:
    """Return whether a wheel has code that a GPU runs.

    Machine code runs on the same major version and the same or a newer minor one; intermediate code
    (compute_90) is compiled for any newer GPU; code with a letter (sm_90a) is for that GPU alone.
    """
    return any(_runs(_split(gpu), each) for each in architectures)


def _runs(gpu: tuple[int, int], architecture: str) -> bool:
    kind, _, number = architecture.partition("_")
    built = _split(number)
    if number[-1:].isalpha():
        return built == gpu
    if kind == "compute":
        return built <= gpu
    return built[0] == gpu[0] and built[1] <= gpu[1]


def _split(text: str) -> tuple[int, int]:
    digits = re.sub(r"\D", "", text)
    return int(digits[:-1] or 0), int(digits[-1:] or 0)
