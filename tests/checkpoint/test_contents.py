"""What a checkpoint holds, read without torch and compared with what is known of the real ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.checkpoint.synthetic import metadata
from keepstep.checkpoint.contents import Contents, Slice, read_contents, read_slices
from keepstep.checkpoint.inspection import inspect_store
from keepstep.checkpoint.store import LocalStore
from tests.checkpoint.conftest import DATA


def contents(case: str, version: str = "2.15.0") -> Contents:
    with (DATA / f"torch-{version}" / case / ".metadata").open("rb") as file:
        return read_contents(file)


def slices(case: str, version: str = "2.15.0") -> tuple[list[Slice], list[str]]:
    with (DATA / f"torch-{version}" / case / ".metadata").open("rb") as file:
        _, found, problems = read_slices(file)
    return found, problems


def test_tensors_dtypes_and_shapes() -> None:
    found = {tensor.name: (tensor.dtype, tensor.shape) for tensor in contents("plain").tensors}
    assert found == {
        "w": ("float32", (3, 4)),
        "b": ("bfloat16", (4,)),
        "i": ("int64", (5,)),
        "bool": ("bool", (2,)),
    }


def test_strides_are_those_of_the_live_tensor() -> None:
    found = {tensor.name: tensor.strides for tensor in contents("noncontig").tensors}
    assert found["t"] == (1, 6)
    assert all(tensor.strides is None for tensor in contents("noncontig", "2.14.1").tensors)


def test_shards_and_files_of_two_ranks() -> None:
    found = contents("dtensor2")
    assert set(found.files) == {"__0_0.distcp", "__1_0.distcp"}
    assert max(tensor.shards for tensor in found.tensors) == 2
    for name, file in found.files.items():
        assert file.end == (DATA / "torch-2.15.0" / "dtensor2" / name).stat().st_size


@pytest.mark.parametrize("version", ["2.2.2", "2.3.1", "2.4.1", "2.14.1", "2.15.0"])
def test_every_era_is_read_and_fits_together(version: str) -> None:
    found, problems = slices("plain", version)
    assert problems == []
    assert {each.name for each in found} >= {"w", "b"}


def test_objects_have_no_shape() -> None:
    found = contents("objects")
    assert set(found.objects) == {"lr", "name", "lst", "bytes", "none", "d.a"}
    assert [each.sizes for each in slices("objects")[0] if each.name == "lr"] == [None]


def test_storage_meta_and_version() -> None:
    found = contents("plain")
    assert found.version == "1.0.0"
    assert found.storage_meta is not None
    assert len(found.storage_meta["save_id"]) == 36
    assert contents("plain", "2.2.2").storage_meta is None


def test_an_inspection_knows_the_readers_and_the_contents() -> None:
    found = inspect_store(LocalStore(DATA / "torch-2.15.0" / "plain"))
    assert found.readers.oldest == "2.15"
    assert len(found.metadata[".metadata"].tensors) == 4


def test_the_synthetic_metadata_is_what_torch_would_load() -> None:
    """The benchmarks stand on it: the real PyTorch 2.15 reads it as a checkpoint's metadata."""
    program = (
        "import pickle, sys, torch.distributed.checkpoint\n"
        "found = pickle.load(sys.stdin.buffer)\n"
        "item = found.state_dict_metadata['model.layers.1.self_attention.weight']\n"
        "print(type(found).__name__, item.properties.strides, item.size, len(item.chunks))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], input=metadata(3, 2), capture_output=True, check=True
    )
    assert finished.stdout.decode().strip() == "Metadata (4, 1) torch.Size([2, 4]) 2"
