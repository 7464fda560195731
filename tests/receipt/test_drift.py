"""What a receipt is bound to, against a stack that is the same, has changed, or does not answer."""

from __future__ import annotations

from typing import Any

import pytest

from keepstep.receipt.drift import Drift, Live, ask, compare
from keepstep.receipt.material import by_rank
from keepstep.receipt.sealed import Receipt, open_receipt
from keepstep.stack.material import material
from keepstep.stack.named import Stack
from tests.receipt.receipts import TRUSTED, sealed

FINGERPRINT: dict[str, Any] = {
    "torch": {"version": "2.15.0+cu132", "git": "d0f2af8", "cuda": "13.2", "hip": None},
    "python": "3.11.7",
    "packages": {"numpy": "2.4.6"},
    "libraries": [{"name": "libtorch_cpu.so", "path": "lib/libtorch_cpu.so", "build_id": "ab12"}],
    "duplicates": [],
    "nccl": {"version": "2.30.7"},
    "driver": "580.1",
    "gpus": [{"name": "H200"}],
    "backend_impls": {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL2"},
    "groups": [],
    "environment": {},
}
IN_A_JOB = {
    **FINGERPRINT,
    "groups": [{"name": "0", "classes": {"cuda": "ProcessGroupNCCL2"}, "timeout_s": 600.0}],
    "environment": {"TORCH_DIST_USE_NCCL2": {"value": "0", "status": "read", "note": ""}},
}
LIVE = Live(stack="new", facts=material(FINGERPRINT))


def receipt(fingerprint: dict[str, Any] = IN_A_JOB, stack: str = "new") -> Receipt:
    """A receipt of two ranks that said this of what they ran on."""
    facts = material(fingerprint)
    return open_receipt(sealed(material=by_rank(stack, [{0: facts, 1: facts}])), TRUSTED)


def changed(**changes: Any) -> Live:
    """The stack as it is now, when something in it is another."""
    return Live(stack="new", facts=material({**FINGERPRINT, **changes}))


def found(live: Live, seen: Receipt | None = None) -> Drift:
    drift = compare(seen or receipt(), live)
    assert drift is not None
    return drift


def test_an_idle_process_of_the_same_stack_is_the_same() -> None:
    """It has no groups, and not the variables that the launcher of a cell set."""
    drift = found(LIVE)
    assert drift.changed == ()
    assert drift.unknown == ""
    assert drift.compared == sum(not fact.startswith("group.") for fact in LIVE.facts) > 5


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"torch": {**FINGERPRINT["torch"], "version": "2.15.1+cu132"}}, "torch.version"),
        ({"torch": {**FINGERPRINT["torch"], "git": "0000000"}}, "torch.git"),
        ({"driver": "550.9"}, "driver"),
        ({"driver": None}, "driver"),
        ({"gpus": []}, "gpus"),
        ({"gpus": [{"name": "H200"}, {"name": "H200"}]}, "gpus"),
        ({"nccl": {"version": "2.31.0"}}, "nccl"),
        ({"packages": {"numpy": "2.4.7"}}, "packages"),
        (
            {"libraries": [{**FINGERPRINT["libraries"][0], "build_id": "cd34"}]},
            "library.libtorch_cpu.so",
        ),
        ({"libraries": []}, "library.libtorch_cpu.so"),
        ({"environment": {"NCCL_P2P_DISABLE": {"value": "1"}}}, "variable.NCCL_P2P_DISABLE"),
        (
            {"environment": {"TORCH_DIST_USE_NCCL2": {"value": "1"}}},
            "variable.TORCH_DIST_USE_NCCL2",
        ),
    ],
)
def test_whatever_is_material_counts(changes: dict[str, Any], fact: str) -> None:
    assert [each.fact for each in found(changed(**changes)).changed] == [fact]


def test_what_follows_from_the_place_does_not_count() -> None:
    assert found(changed(host="node-b", kernel="6.9", limits={"cpus": 64})).changed == ()


def test_another_stack_is_not_asked_about() -> None:
    assert compare(receipt(stack="old"), LIVE) is None


def test_a_stack_is_known_by_its_own_name_and_by_that_in_the_plan() -> None:
    live = Live(stack="2.15", name="2.15.0", facts=LIVE.facts)
    for label in ("2.15", "2.15.0"):
        drift = compare(receipt(stack=label), live)
        assert drift is not None
        assert (drift.stack, drift.changed) == ("2.15", ())
    assert compare(receipt(stack="2.14"), live) is None


def test_a_rank_that_died_before_it_said_anything_proves_nothing() -> None:
    nothing = material({})
    facts = material(IN_A_JOB)
    one = open_receipt(sealed(material={"new": {"rank 0": facts, "rank 1": nothing}}), TRUSTED)
    assert found(LIVE, one).changed == ()
    none = open_receipt(sealed(material={"new": {"rank 0": nothing}}), TRUSTED)
    assert found(LIVE, none).unknown == "no process said what it ran on"
    empty = open_receipt(sealed(material={"new": {}}), TRUSTED)
    assert found(LIVE, empty).unknown


def test_ranks_that_differ_are_each_compared() -> None:
    facts = material(IN_A_JOB)
    mixed = {"new": {"rank 0": facts, "rank 1": {**facts, "driver": "550.9"}}}
    (one,) = found(LIVE, open_receipt(sealed(material=mixed), TRUSTED)).changed
    assert (one.fact, one.then, one.now) == ("driver", "550.9", "580.1")


def test_a_stack_that_does_not_start_is_not_known_to_be_the_same() -> None:
    live = ask(Stack(name="gone", python="/nowhere/bin/python"), "new")
    assert "/nowhere/bin/python" in live.unknown
    assert found(live).unknown == live.unknown
