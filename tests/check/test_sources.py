"""Reading a tree: imports that are followed, and everything that cannot be read."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from keepstep.check.finding import Severity
from keepstep.check.rules import RULES
from keepstep.check.sources import CannotLookError, read_sources
from keepstep.check.syntax import settle_syntax
from tests.check.job import IMPORTS, READY, codes, found, look_at, question, write_job

COMPARES = 'import torch.distributed as d\nfast = d.get_backend() == "nccl"\n'


@pytest.mark.parametrize(
    ("imports", "file"),
    [
        ("import comm", "comm.py"),
        ("import lib.comm", "lib/comm.py"),
        ("from lib import comm", "lib/comm.py"),
        ("from lib.comm import fast", "lib/comm.py"),
        ("from .comm import fast", "comm.py"),
        ("def f():\n    import comm", "comm.py"),
        ("import lib", "lib/__init__.py"),
    ],
)
def test_imports_of_the_tree_are_followed(imports: str, file: str, tmp_path: Path) -> None:
    write_job(tmp_path, COMPARES, name=file)
    (seen,) = found(look_at(tmp_path, imports), "KS201")
    assert seen.file.endswith(file)
    assert seen.line == 2


def test_names_are_followed_through_the_tree(tmp_path: Path) -> None:
    write_job(tmp_path, "import torch.distributed as dist\n", name="lib/comm.py")
    write_job(tmp_path, "from lib.comm import dist as talk\n", name="lib/again.py")
    source = 'from lib.again import talk\ntalk.init_process_group("nccl")'
    assert "KS101" in codes(look_at(tmp_path, source))


def test_a_circle_of_imports_ends(tmp_path: Path) -> None:
    write_job(tmp_path, "from b import x as y\nimport train\n", name="a.py")
    write_job(tmp_path, "from a import y as x\n", name="b.py")
    report = look_at(tmp_path, "import a\nfrom a import y\ny.init_process_group()")
    assert [Path(each).name for each in report.looked] == ["train.py", "a.py", "b.py"]


def test_installed_packages_are_not_read(tmp_path: Path) -> None:
    write_job(tmp_path, COMPARES, name="env/lib/site-packages/comm.py")
    assert look_at(tmp_path, "import comm, numpy").looked != ()
    assert "KS201" not in codes(look_at(tmp_path, "import comm, numpy"))


def test_a_folder_can_be_included(tmp_path: Path) -> None:
    write_job(tmp_path / "other", COMPARES, name="comm.py")
    script = write_job(tmp_path / "job", "import comm\n")
    assert len(read_sources(script).modules) == 1
    assert len(read_sources(script, (tmp_path / "other",)).modules) == 2


def test_a_framework_is_listed_as_not_looked_at(tmp_path: Path) -> None:
    report = look_at(tmp_path, "import deepspeed, json")
    assert [each.what for each in report.not_looked] == ["the package deepspeed"]


def test_an_import_by_a_computed_name_is_listed(tmp_path: Path) -> None:
    report = look_at(tmp_path, "import importlib\nimportlib.import_module(name)")
    assert any(each.what.endswith("train.py:2") for each in report.not_looked)


def test_a_syntax_error_breaks_and_the_rest_is_still_read(tmp_path: Path) -> None:
    write_job(tmp_path, "def f(:\n", name="broken.py")
    report = look_at(tmp_path, IMPORTS, "import broken\n" + READY.replace("device_id=", "x="))
    (seen,) = found(report, "KS001")
    assert (seen.severity, seen.line) == (Severity.BREAKS, 1)
    assert seen.file.endswith("broken.py")
    assert "KS101" in codes(report)
    assert report.code == 1


def test_a_syntax_error_of_the_script(tmp_path: Path) -> None:
    report = look_at(tmp_path, "x = 1\nprint 'two'\n")
    (seen,) = found(report, "KS001")
    assert (seen.line, seen.file.endswith("train.py")) == (2, True)
    assert report.code == 1


def test_what_the_python_of_the_stack_accepts_is_no_finding(tmp_path: Path) -> None:
    asked = question(write_job(tmp_path, "x = 1\n"))
    bad = write_job(tmp_path, "print 'two'\n", name="bad.py")
    newer = write_job(tmp_path, "y = 2\n", name="newer.py")  # as if only that Python knew it
    findings = [RULES["KS001"].here("invalid syntax", file=str(each)) for each in (bad, newer)]
    kept, unseen = settle_syntax(findings, replace(asked, python=(sys.executable,)))
    assert [each.file for each in kept] == [str(bad)]
    assert [(each.what, each.matters) for each in unseen] == [(str(newer), True)]
    for python in ((), ("false",)):
        assert settle_syntax(findings, replace(asked, python=python)) == (findings, [])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x7fELF\0\0", "binary"),
        (b"# caf\xe9\n", "not text in UTF-8"),
        (b"#\n#\n\n# caf\xe9\n", "not text in UTF-8"),
        (b"# -*- coding: no-such -*-\n", "declares no other"),
    ],
)
def test_a_script_that_is_no_source_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    with pytest.raises(CannotLookError, match=says):
        read_sources(path)


def test_a_declared_encoding_is_honoured(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    assert read_sources(path).broken == ()


def test_an_imported_module_that_cannot_be_read_matters(tmp_path: Path) -> None:
    (tmp_path / "comm.py").write_bytes(b"\0")
    report = look_at(tmp_path, "import comm")
    assert [each.matters for each in report.not_looked] == [True]
    assert report.code == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_script_without_permission_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path, "")
    path.chmod(0)
    with pytest.raises(CannotLookError, match="Permission denied"):
        read_sources(path)


def test_missing_folder_notebook_and_device(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("{}")
    for path, says in (
        (tmp_path / "none.py", "no such file"),
        (tmp_path, "is a folder"),
        (tmp_path / "a.ipynb", "jupyter nbconvert"),
        (Path("/dev/null"), "no regular file"),
    ):
        with pytest.raises(CannotLookError, match=says):
            read_sources(path)


def test_deep_nesting_does_not_end_the_look(tmp_path: Path) -> None:
    report = look_at(tmp_path, "x = " + "(" * 5000 + ")" * 5000)
    assert codes(report) == {"KS001"}
