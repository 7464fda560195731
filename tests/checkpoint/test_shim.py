"""The shim: an old TensorProperties learns to read the new form, and nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from keepstep.checkpoint.shim import teach
from keepstep.cli.main import execute
from keepstep.exit_codes import ExitCode

Capture = pytest.CaptureFixture[str]

# A class that keeps its state as PyTorch does, with as many fields as the version has.
PROPERTIES = """
    from dataclasses import dataclass
    @dataclass
    class TensorProperties:
        dtype: str = "float32"
        {more}
        def __setstate__(self, state):
            {names} = state
            self.dtype = a
"""
OLD = {"more": "", "names": "a, b, c, d, e"}
NEW = {"more": "strides: object = None", "names": "a, b, c, d, e, f"}
MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed._shard.sharded_tensor.metadata",
)


def fake_torch(folder: Path, form: dict[str, str]) -> Path:
    for module in MODULES:
        path = folder / Path(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(PROPERTIES).format(**form))
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
    return folder


def python(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True
    )


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    assert execute(["checkpoint", "shim", "--out", str(tmp_path / "shim")]) == ExitCode.PASS
    return tmp_path / "shim"


@pytest.mark.parametrize("module", MODULES)
def test_the_old_class_reads_both_forms(module: str, shim: Path, tmp_path: Path) -> None:
    torch = fake_torch(tmp_path / "torch", OLD)
    program = (
        f"from {module} import TensorProperties\n"
        "for fields in (5, 6, 6):\n"
        "    made = TensorProperties.__new__(TensorProperties)\n"
        "    made.__setstate__(tuple(range(fields)))\n"
        "    print(made)\n"
    )
    refused = python(program, torch)
    assert "too many values to unpack (expected 5)" in refused.stderr
    taught = python(program, shim, torch)
    assert (taught.returncode, taught.stdout) == (0, "TensorProperties(dtype=0)\n" * 3)
    assert taught.stderr == (
        f"keepstep: reading a checkpoint of PyTorch 2.15 with the help of {shim}/sitecustomize.py\n"
    )


def test_a_form_that_nobody_knows_is_refused_as_before(shim: Path, tmp_path: Path) -> None:
    torch = fake_torch(tmp_path / "torch", OLD)
    program = f"import {MODULES[0]} as m; m.TensorProperties().__setstate__(range(7))"
    assert "too many values to unpack (expected 5)" in python(program, shim, torch).stderr


def test_a_version_that_reads_it_is_left_alone(shim: Path, tmp_path: Path) -> None:
    torch = fake_torch(tmp_path / "torch", NEW)
    program = (
        f"import {MODULES[0]} as m, inspect; m.TensorProperties().__setstate__(range(6))\n"
        "print(inspect.getsource(m).count('class Tensor'), m.__spec__.loader.get_filename())"
    )
    done = python(program, shim, torch)
    assert done.stdout == f"1 {torch}/{MODULES[0].replace('.', '/')}.py\n"
    assert done.stderr == ""


def test_the_sitecustomize_of_the_image_still_runs(shim: Path, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "sitecustomize.py").write_text("print('of the image', __file__)\n")
    done = python("print('program')", shim, tmp_path / "image")
    assert done.stdout == f"of the image {tmp_path}/image/sitecustomize.py\nprogram\n"


def test_teaching_changes_no_class_with_strides() -> None:
    class Strides:
        __dataclass_fields__ = ("strides",)

    before = dict(vars(Strides))
    teach(Strides)
    assert dict(vars(Strides)) == before


def test_importing_the_module_installs_nothing() -> None:
    assert not any(
        getattr(f, "__module__", "") == "keepstep.checkpoint.shim" for f in sys.meta_path
    )


def test_it_needs_nothing_but_python(shim: Path) -> None:
    program = "import sys; print('keepstep' in sys.modules, 'torch' in sys.modules)"
    assert python(program, shim).stdout.split() == ["False", "False"]
    assert "import keepstep" not in (shim / "sitecustomize.py").read_text()


def test_the_command_prints_the_same_file(shim: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert execute(["checkpoint", "shim"]) == ExitCode.PASS
    assert capsys.readouterr().out == (shim / "sitecustomize.py").read_text()


def test_another_file_is_not_overwritten(shim: Path, capsys: Capture) -> None:
    command = ["checkpoint", "shim", "--out", str(shim)]
    assert execute(command) == ExitCode.PASS
    (shim / "sitecustomize.py").write_text("print('mine')\n")
    assert execute(command) == ExitCode.FAIL
    assert "it exists and is another one" in capsys.readouterr().err
    assert (shim / "sitecustomize.py").read_text() == "print('mine')\n"
