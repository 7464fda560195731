"""The probe's parts, each alone."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from keepstep.canary.record import RankRecord
from keepstep.probe import companion, digests, plants, record
from keepstep.probe.checkpoints import Checkpoints
from keepstep.probe.imports import Finder


@pytest.fixture
def seen(tmp_path: Path) -> record.Record:
    return record.Record(tmp_path / "rank-0.json", "script.py", [])


# Digests.


def digest_of(*args: object, **kwargs: object) -> str | None:
    data = digests.Data()
    data.add(args, kwargs)
    return data.hexdigest()


def test_the_digest_of_data_depends_on_values_shape_dtype_and_names() -> None:
    rows = torch.arange(6)
    different = [
        digest_of(rows),
        digest_of(rows + 1),
        digest_of(rows.view(2, 3)),
        digest_of(rows.int()),
        digest_of(rows=rows),
        digest_of([rows], None),
        digest_of([rows], 2),
        digest_of({"a": rows}),
    ]
    assert len(set(different)) == len(different)
    assert digest_of(rows.view(2, 3).t()) == digest_of(rows.view(2, 3).t().contiguous())


def test_results_of_the_model_count_with_their_shape_only() -> None:
    first, second = (torch.full((2, 2), value, requires_grad=True) for value in (1.0, 2.0))
    assert digest_of(first) == digest_of(second)
    assert digest_of(first) != digest_of(torch.ones(3, requires_grad=True))


def test_without_a_call_there_is_no_digest_of_data() -> None:
    assert digests.Data().hexdigest() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool, torch.complex64])
def test_a_small_model_is_digested_whole(dtype: torch.dtype) -> None:
    weights = [torch.zeros(3, 4).to(dtype), torch.zeros(0).to(dtype)]
    digest, elements, read = digests.model(weights)
    weights[0][2, 3] = 1
    assert (elements, read) == (12, "all elements")
    assert digests.model(weights)[0] != digest


def test_of_a_large_model_a_sample_is_digested_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digests, "_WHOLE", 100)
    monkeypatch.setattr(digests, "_SAMPLE", 4)
    weights = [torch.arange(1000.0)]
    digest, elements, read = digests.model(weights)
    assert (elements, read) == (1000, "4 elements of each of 1 parameters")
    weights[0][250] = 7.0  # the second of the sample
    assert digests.model(weights)[0] != digest


def test_a_look_at_shapes_is_no_data() -> None:
    assert digests.is_without_data(torch.empty(3, device="meta"))
    assert not digests.is_without_data(torch.empty(3))


# Planted faults.


@pytest.mark.parametrize("value", [1.0, -3.5, 1e-30, 3e38])
def test_a_flipped_bit_is_a_factor_of_four_in_the_largest_element(value: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    parameter.grad = torch.zeros(2, 3)
    parameter.grad[1, 2] = value
    plants.flip_one_bit(torch.optim.SGD([parameter], lr=0.1))
    assert parameter.grad[1, 2].item() / torch.tensor(value).item() in (4.0, 0.25)
    assert parameter.grad.count_nonzero() == 1


# Imports.


@pytest.fixture
def finder() -> Iterator[Finder]:
    made = Finder()
    sys.meta_path.insert(0, made)
    yield made
    sys.meta_path.remove(made)


def test_an_importer_gets_what_the_action_put_in_place(
    finder: Finder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "watched_module.py").write_text("def f():\n    return 'original'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    took = []

    def replace(module: ModuleType, seconds: float) -> None:
        took.append(seconds)
        module.f = lambda: "replaced"  # type: ignore[attr-defined]

    finder.when_imported("watched_module", replace)
    assert took == []
    try:
        namespace: dict[str, object] = {}
        exec("from watched_module import f\nanswer = f()", namespace)
        assert namespace["answer"] == "replaced"
        importlib.import_module("watched_module")
        assert len(took) == 1
        assert sys.modules["watched_module"].__file__ == str(tmp_path / "watched_module.py")
    finally:
        sys.modules.pop("watched_module", None)


def test_a_module_that_is_there_is_acted_on_at_once(finder: Finder) -> None:
    acted = []
    finder.when_imported("json", lambda module, seconds: acted.append((module.__name__, seconds)))
    assert acted == [("json", 0.0)]


# The record.


def test_a_fresh_record_is_valid_and_running(seen: record.Record) -> None:
    seen.write()
    found = RankRecord.model_validate_json(seen.path.read_bytes())
    assert (found.end, found.steps, found.groups) == ("running", (), ())
    assert [each.name for each in seen.path.parent.iterdir()] == ["rank-0.json"]


def test_of_a_long_job_the_first_ten_and_the_newest_steps_are_kept(
    seen: record.Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_MOST_STEPS", 5)
    for number in range(30):
        seen.add_step(record.SeenStep(float(number)))
    assert [step.seconds for step in seen.steps] == [*range(10), *range(25, 30)]
    assert seen.step_count == 30


def test_what_json_cannot_say_is_left_out(seen: record.Record) -> None:
    seen.add_step(record.SeenStep(1.0, loss=float("nan"), gradient_norm=float("inf")))
    seen.write()
    (step,) = RankRecord.model_validate_json(seen.path.read_bytes()).steps
    assert (step.loss, step.gradient_norm) == (None, None)


def test_a_child_does_not_write_the_record(seen: record.Record) -> None:
    seen.write()
    seen.end = "complete"
    child = os.fork()
    if child == 0:
        seen.write()
        os._exit(0)
    os.waitpid(child, 0)
    assert RankRecord.model_validate_json(seen.path.read_bytes()).end == "running"


def test_a_record_that_cannot_be_written_does_not_stop_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    seen = record.Record(tmp_path / "file" / "rank-0.json", "script.py", [])
    seen.write()
    assert str(tmp_path / "file") in seen.about["not written"]


def test_the_median_of_the_first_calls_counts_and_all_calls_are_counted(
    seen: record.Record,
) -> None:
    for seconds in (3.0, 1.0, 2.0, 4.0, 100.0):
        seen.add_latency("all_reduce", 8, seconds, most=4)
    (latency,) = seen.to_json()["latencies"]
    assert latency == {"operation": "all_reduce", "bytes": 8, "median_s": 2.5, "calls": 5}


# The companion.


def test_the_last_words_of_a_rank_are_added_to_its_record(
    seen: record.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "dump_"))
    monkeypatch.setenv("RANK", "0")
    seen.add_warning("C++ warning", "first")
    seen.write()
    dump = tmp_path / "dump_0"
    dump.write_bytes(b"x")
    amend = {("C++ warning", "first"): 3, ("C++ error", "last"): 1}
    companion.amend(seen.path, seen.began, amend, without_dump=False)
    found = RankRecord.model_validate_json(seen.path.read_bytes())
    assert {each.text: each.times for each in found.warnings} == {"first": 3, "last": 1}
    assert found.artifacts == (str(dump),)
    companion.amend(seen.path, seen.began, amend, without_dump=True)
    assert RankRecord.model_validate_json(seen.path.read_bytes()).artifacts == ()
    assert not dump.exists()


# Checkpoints.


def test_what_a_save_uses_inside_is_not_a_save_of_its_own(seen: record.Record) -> None:
    module = ModuleType("torch.serialization")
    module.load = lambda: "loaded"  # type: ignore[attr-defined]
    module.save = lambda: module.load()  # type: ignore[attr-defined]
    Checkpoints(seen).watch(module)
    assert module.save() == "loaded"
    assert module.load() == "loaded"
    assert [(e["action"], e["function"]) for e in seen.checkpoints] == [
        ("save", "torch.save"),
        ("load", "torch.load"),
    ]
