"""Driver, architectures, libraries and extensions; real imports where they matter."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from keepstep.check import machine
from keepstep.check.ask import NoAnswerError, ask
from keepstep.check.extensions import Extension, judge, try_extensions
from keepstep.check.finding import Finding, NotLooked, Severity
from keepstep.check.machine import Packages
from keepstep.check.machine_facts import MachineFacts
from keepstep.check.scene import Scene, see
from keepstep.check.sources import read_sources
from keepstep.check.wheels import OLDEST_DRIVER, WHEELS, numbers, runs
from tests.check.job import IMPORTS, READY, question, write_job


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    asked = question(write_job(tmp_path, IMPORTS, READY))
    return see(read_sources(asked.script), asked.leap, asked.launch, {})


def _codes(findings: list[Finding]) -> list[str]:
    return [each.code for each in findings]


@pytest.mark.parametrize(
    ("driver", "cuda", "old"),
    [
        ("535.104.05", "13.2", True),
        ("580.65.06", "13.2", False),
        ("580.65.05", "13.0", True),
        ("580", "13.0", False),
        ("580.65", "13.0", False),
        ("579", "13.0", True),
        ("595.10", "13.2", False),
        ("535.104.05", "12.9", False),
        ("470.82", "12.6", True),
    ],
)
def test_driver_against_cuda(driver: str, cuda: str, old: bool) -> None:
    assert _codes(list(machine.driver(driver, cuda, "2.15", []))) == ["KS701"] * old


def test_whose_packages_were_looked_at_is_said_where_no_stack_was_named(
    scene: Scene, tmp_path: Path
) -> None:
    asked = question(write_job(tmp_path, IMPORTS, READY))
    said = "packages of another environment"
    _, unseen = machine.look_at_machine(scene, asked)
    assert [each.matters for each in unseen if each.what == said] == [False]
    _, unseen = machine.look_at_machine(scene, replace(asked, python=(sys.executable,)))
    assert not [each for each in unseen if each.what == said]


def test_a_cuda_that_the_table_does_not_know_is_not_looked_at() -> None:
    unseen: list[NotLooked] = []
    assert not list(machine.driver("600.1", "14.0", "2.16", unseen))
    assert [each.matters for each in unseen] == [True]


@pytest.mark.parametrize(
    ("gpu", "fits"),
    [
        ("sm_70", False),
        ("sm_61", False),
        ("sm_75", True),
        ("sm_86", True),
        ("sm_89", True),  # runs the code of sm_80 and sm_86
        ("sm_90", True),
        ("sm_103", True),
        ("sm_110", False),
        ("sm_121", True),
    ],
)
def test_architectures_of_the_wheel_of_2_15(gpu: str, fits: bool) -> None:
    assert runs(gpu, WHEELS["2.15"].architectures) is fits


def test_intermediate_code_runs_on_what_is_newer_and_special_code_does_not() -> None:
    assert runs("sm_130", ("sm_90", "compute_120"))
    assert not runs("sm_90", ("compute_120",))
    assert runs("sm_90", ("sm_90a",))
    assert not runs("sm_91", ("sm_90a",))


def test_the_tables_are_in_order() -> None:
    drivers = [numbers(OLDEST_DRIVER[major]) for major in sorted(OLDEST_DRIVER)]
    assert drivers == sorted(drivers)


def test_the_wheel_of_this_environment_is_as_the_table_says() -> None:
    answer = ask((sys.executable,), "ask_stack.py", {"folders": []}, 60)
    version = str(answer["torch"]["version"])
    minor = ".".join(version.split(".")[:2])
    if minor not in WHEELS or answer["torch"]["cuda"] is None:
        pytest.skip(f"no wheel of PyTorch {version} in the table")
    assert WHEELS[minor].cuda == answer["torch"]["cuda"]
    built = ask((sys.executable,), "ask_architectures.py", {}, 60)["architectures"]
    assert WHEELS[minor].architectures == tuple(built)


def test_fabric_manager_and_driver(scene: Scene) -> None:
    def seen(manager: str | None) -> tuple[list[str], int]:
        facts = MachineFacts(gpus=("sm_90",), driver="535.104.05", fabric_manager=manager)
        unseen: list[NotLooked] = []
        return _codes(list(machine.fabric(facts, unseen))), len(unseen)

    assert seen("535.104.06") == (["KS703"], 0)
    assert seen("535.104.05") == ([], 0)
    assert seen(None) == ([], 1)


def test_little_shared_memory(scene: Scene) -> None:
    small, large = MachineFacts(shared_memory=64 << 20), MachineFacts(shared_memory=8 << 30)
    assert _codes(list(machine.shared_memory(scene, small))) == ["KS704"]
    assert not list(machine.shared_memory(scene, large))


def test_two_nccls(scene: Scene, tmp_path: Path) -> None:
    both = {"nvidia-nccl-cu12": "2.29.3", "nvidia-nccl-cu13": "2.29.7"}
    one = {"nvidia-nccl-cu13": "2.29.7"}
    found = list(machine.nccls(scene, Packages(torch="2.15.0", cuda="13.2", nccls=both)))
    assert [(each.code, each.severity) for each in found] == [("KS707", Severity.BREAKS)]
    packages = Packages(torch="2.15.0", cuda="13.2", nccls=one)
    assert not list(machine.nccls(scene, packages))
    (tmp_path / "libnccl.so.2").touch()
    scene.environment["LD_LIBRARY_PATH"] = f"/nowhere:{tmp_path}"
    found = list(machine.nccls(scene, packages))
    assert [(each.code, each.severity) for each in found] == [("KS707", Severity.RISK)]


SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
{declared}
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, 0}};
PyMODINIT_FUNC PyInit_{name}(void) {{ {called} return PyModule_Create(&module); }}
"""


def build(folder: Path, name: str, missing: str = "") -> Extension:
    """Compile an extension that is linked with torch, perhaps with a symbol that is nowhere."""
    import torch

    source = folder / f"{name}.c"
    source.write_text(
        SOURCE.format(
            name=name,
            declared=f"extern void {missing}(void);" if missing else "",
            called=f"{missing}();" if missing else "",
        )
    )
    library = folder / f"{name}.so"
    libraries = Path(torch.__file__).parent / "lib"
    include = sysconfig.get_paths()["include"]
    command = ["gcc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)]
    command += ["-Wl,--no-as-needed", f"-L{libraries}", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"gcc cannot build an extension here: {done.stderr[:200]}")
    return {
        "path": str(library),
        "shown": library.name,
        "module": "",
        "casts": False,
        "package": name,
        "siblings": [name],
    }


def test_extensions_are_really_loaded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    bad = build(tmp_path, "bad", "_ZN3c1011not_in_c10Ev")
    good = build(tmp_path, "good")
    unseen: list[NotLooked] = []
    found = list(try_extensions((sys.executable,), [bad, good], {"bad"}, True, unseen))
    assert [(each.code, each.severity, each.file) for each in found] == [
        ("KS705", Severity.BREAKS, "bad.so")
    ]
    assert "undefined symbol" in found[0].text
    assert not unseen


def _extension(name: str, **changes: object) -> Extension:
    return {
        "path": f"/x/{name}.so",
        "shown": f"{name}.so",
        "module": name,
        "casts": False,
        "package": name,
        "siblings": [name],
        **changes,
    }


def test_an_extension_that_nothing_imports_is_a_risk() -> None:
    (found,) = judge([_extension("flash")], ["ImportError: x"], {"numpy"}, [])
    assert found.severity is Severity.RISK


def test_the_package_beside_an_extension_counts_as_its_user() -> None:
    extension = _extension("flash_2_cuda", siblings=["flash", "flash_2_cuda"])
    (found,) = judge([extension], ["ImportError: x"], {"flash"}, [])
    assert found.severity is Severity.BREAKS


def test_a_missing_driver_says_nothing_about_the_build() -> None:
    unseen: list[NotLooked] = []
    error = "ImportError: libcuda.so.1: cannot open shared object file"
    assert not list(judge([_extension("flash")], [error], {"flash"}, unseen))
    assert len(unseen) == 1


def test_files_of_a_package_with_the_same_error_are_one_finding() -> None:
    both = [_extension("a", package="p"), _extension("b", package="p")]
    (found,) = judge(both, ["ImportError: x"] * 2, {"p"}, [])
    assert "1 more" in found.text


def test_without_a_stack_only_what_the_job_brings_or_imports_is_tried(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else lies beside keepstep is not the job's, and one that does not load says nothing."""
    monkeypatch.setattr(machine, "interpreter", lambda question: (sys.executable,))
    own = str(tmp_path / "own.so")
    extensions = (
        _extension("nixl_ep", module="", casts=True),
        _extension("flash_2", module="", siblings=["flash", "flash_2"]),
        _extension("own", module="", shown=own, path=own),
    )
    packages = Packages(torch="2.15.0", cuda="13.2", extensions=extensions)
    job = replace(scene, foreign=frozenset({"torch", "flash"}))
    asked = question(tmp_path / "train.py")

    def files(python: tuple[str, ...]) -> list[tuple[str, str]]:
        found = machine._extensions(job, replace(asked, python=python), packages, [])
        return sorted((each.code, each.file) for each in found)

    tried = [("KS705", own), ("KS705", "flash_2.so")]
    assert files(()) == tried
    assert files((sys.executable,)) == [*tried, ("KS705", "nixl_ep.so"), ("KS706", "nixl_ep.so")]


def test_a_cast_to_the_legacy_class_is_seen_in_the_binary() -> None:
    casting = _extension("trt", casts=True)
    found = list(try_extensions(("/none",), [casting], {"trt"}, True, []))
    assert _codes(found) == ["KS706"]
    assert not list(try_extensions(("/none",), [casting], {"trt"}, False, []))


@pytest.mark.parametrize("python", [("/nowhere/python",), ("false",)])
def test_an_interpreter_that_gives_no_answer(python: tuple[str, ...]) -> None:
    with pytest.raises(NoAnswerError):
        ask(python, "ask_stack.py", {"folders": []}, 20)


def test_a_resolver_that_chose_another_torch(tmp_path: Path) -> None:
    asked = replace(question(write_job(tmp_path, "")), wished_torch="2.15.0", stack="new")
    packages = Packages(torch="2.14.1+cu130", cuda="13.0")
    assert _codes(list(machine._wished(asked, packages))) == ["KS708"]
    packages = Packages(torch="2.15.0+cu132", cuda="13.2")
    assert not list(machine._wished(asked, packages))


@pytest.mark.parametrize(("version", "unseen"), [("2.14.1+cu130", 1), ("2.15.0", 0), (None, 0)])
def test_a_stack_of_another_version_is_told(
    version: str | None, unseen: int, tmp_path: Path
) -> None:
    asked = question(write_job(tmp_path, ""))
    packages = Packages(torch=version, cuda="13.0")
    assert len(machine._another_version(asked, packages)) == unseen


def test_what_an_environment_holds(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name, version in (("nvidia_nccl_cu12", "2.29.3"), ("nvidia_nccl_cu99", "2.99.0")):
        folder = tmp_path / "packages" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        (folder / "METADATA").write_text(metadata)
    job = tmp_path / "job"
    for folder in (job, job / "venv" / "lib", job / ".hidden"):
        folder.mkdir(parents=True)
        build(folder, "engine", "_ZTIN4c10d16ProcessGroupNCCLE")
    (job / "venv" / "pyvenv.cfg").touch()
    (job / "torn.so").write_bytes(b"\x7fELF")
    (job / "empty.so").touch()
    python = ("env", f"PYTHONPATH={tmp_path / 'packages'}", sys.executable)
    answer = ask(python, "ask_stack.py", {"folders": [str(job)]}, 60)
    assert {"nvidia-nccl-cu12": "2.29.3", "nvidia-nccl-cu99": "2.99.0"}.items() <= (
        answer["nccls"].items()
    )
    own = [each for each in answer["extensions"] if each["shown"].startswith(str(job))]
    assert [(each["shown"], each["module"], each["casts"]) for each in own] == [
        (str(job / "engine.so"), "", True)
    ]
