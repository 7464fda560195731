"""No all-reduce is left behind: its buffer is used again."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from keepstep.runtime.group import GradientAverager


class Exchange:
    """Stands for the work of torch."""

    waited: ClassVar[list[torch.dtype]] = []
    failing: ClassVar[torch.dtype | None] = None

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype

    def wait(self) -> None:
        self.waited.append(self.dtype)
        if self.dtype == self.failing:
            raise RuntimeError("Connection closed by peer")


@pytest.fixture
def parameters(monkeypatch: pytest.MonkeyPatch) -> list[torch.nn.Parameter]:
    def all_reduce(tensor: torch.Tensor, async_op: bool) -> Any:
        assert async_op
        tensor.mul_(2)  # two ranks with equal gradients
        return Exchange(tensor)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(Exchange, "waited", [])
    monkeypatch.setattr(Exchange, "failing", None)
    found = []
    for dtype in (torch.float32, torch.float64):
        found.append(torch.nn.Parameter(torch.ones(3, dtype=dtype)))
        found[-1].grad = torch.arange(3, dtype=dtype)
    found.append(torch.nn.Parameter(torch.ones(2)))  # without a gradient
    return found


BOTH = [torch.float32, torch.float64]


def test_gradients_of_every_kind_are_averaged(parameters: list[torch.nn.Parameter]) -> None:
    during: list[int] = []
    GradientAverager().average(parameters, 1.0, lambda: during.append(len(Exchange.waited)))
    assert during == [0]
    assert Exchange.waited == BOTH
    assert [each.grad.tolist() for each in parameters if each.grad is not None] == [
        [0.0, 1.0, 2.0],
        [0.0, 1.0, 2.0],
        [0.0, 0.0],
    ]


@pytest.mark.parametrize("failing", [None, torch.float32])
def test_what_is_raised_meanwhile_is_raised_after_all_exchanges_have_ended(
    parameters: list[torch.nn.Parameter],
    failing: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Exchange, "failing", failing)

    def fail() -> None:
        raise ValueError("this state cannot be read")

    with pytest.raises(ValueError, match="cannot be read"):
        GradientAverager().average(parameters, 1.0, fail)
    assert Exchange.waited == BOTH


@pytest.mark.parametrize("failing", BOTH)
def test_where_one_exchange_fails_the_others_are_waited_for(
    parameters: list[torch.nn.Parameter], failing: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Exchange, "failing", failing)
    with pytest.raises(RuntimeError, match="closed by peer"):
        GradientAverager().average(parameters, 1.0)
    assert Exchange.waited == BOTH
