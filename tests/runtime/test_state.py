"""A state is written, compared and restored to the bit, and changes to it are noticed."""

from __future__ import annotations

import enum
import json
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.runtime import generators
from keepstep.runtime.buffers import buffer_of
from keepstep.runtime.state import (
    State,
    decode,
    digest_of,
    empty_tensors,
    encode,
)

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]


def digest(value: Any) -> str:
    return digest_of(encode(value).manifest())


def over_the_wire(value: Any) -> Any:
    """What a receiver makes of it: tree through JSON, tensors through their bytes alone."""
    encoded = encode(value)
    manifest = json.loads(encoded.manifest())
    tensors = empty_tensors(manifest)
    for sent, received in zip(encoded.tensors, tensors, strict=True):
        if sent.numel():
            buffer_of(received)[:] = buffer_of(sent)
    return decode(manifest["tree"], tensors)


def assert_same(left: Any, right: Any) -> None:
    """Equal in value and type, tensors in bits."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert digest(left) == digest(right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right, strict=True)
    else:
        assert left == right or (left != left and right != right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_tensors_of_every_type_and_shape_survive(dtype: torch.dtype, shape: Any) -> None:
    size = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.randint(0, 2, (size,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    assert_same(over_the_wire({"x": tensor}), {"x": tensor})


def test_a_tensor_that_is_not_contiguous_survives() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    for part in (whole.t(), whole[:, ::2], whole[1], whole[0, 0], whole.expand(2, 4, 6)):
        assert torch.equal(over_the_wire(part), part)


def test_a_tensor_is_a_view_of_live_memory_and_needs_no_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    (held,) = encode({"w": weight}).tensors
    assert held.data_ptr() == weight.data_ptr()
    assert not held.requires_grad


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
nested = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(value=nested)
def test_nested_plain_values_survive_with_their_types(value: Any) -> None:
    assert_same(over_the_wire(value), value)


@settings(max_examples=40, deadline=None)
@given(entries=st.dictionaries(keys, plain, max_size=6), order=st.randoms(use_true_random=False))
def test_the_order_of_insertion_does_not_matter(entries: dict[Any, Any], order: Any) -> None:
    shuffled = list(entries.items())
    order.shuffle(shuffled)
    assert digest(dict(shuffled)) == digest(entries)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0, None),
        (0.0, -0.0),
        ("1", 1),
        ([1, 2], (1, 2)),
        ([1, 2], [2, 1]),
        ({"a": 1}, [["a", 1]]),
        ({1: 0}, {"1": 0}),
        (b"a", "a"),
        ({"t": 0}, torch.zeros(1)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.zeros(2), np.zeros(2, dtype=np.float32)),
    ],
)
def test_what_is_not_the_same_has_another_digest(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


@settings(max_examples=40, deadline=None)
@given(bit=st.integers(0, 8 * 40 - 1))
def test_any_flipped_bit_changes_the_digest(bit: int) -> None:
    tensor = torch.arange(10.0)
    before = digest({"w": tensor})
    buffer_of(tensor)[bit // 8] ^= 1 << bit % 8
    assert digest({"w": tensor}) != before
    buffer_of(tensor)[bit // 8] ^= 1 << bit % 8
    assert digest({"w": tensor}) == before


def test_a_nan_is_equal_to_itself_bit_by_bit() -> None:
    assert digest([float("nan"), torch.tensor(float("nan"))]) == digest(
        [float("nan"), torch.tensor(float("nan"))]
    )


def test_a_conjugated_tensor_is_not_taken_for_the_plain_one() -> None:
    plain_tensor = torch.tensor([1 + 2j])
    assert digest(plain_tensor) != digest(plain_tensor.conj())
    assert torch.equal(over_the_wire(plain_tensor.conj()), plain_tensor.conj().resolve_conj())


class Colour(enum.IntEnum):
    RED = 1


def test_subclasses_of_plain_types_become_what_they_extend() -> None:
    value = [Colour.RED, np.float64(0.5), np.float32(0.5), np.int64(3), torch.Size([2, 3])]
    assert_same(over_the_wire(value), [1, 0.5, 0.5, 3, (2, 3)])


def test_arrays_stay_arrays() -> None:
    every_second: Any = np.arange(6, dtype=np.uint32)[::2]
    value = {"a": every_second, "b": np.zeros((0, 2)), "c": np.ones((1, 2))}
    assert_same(over_the_wire(value), {**value, "a": every_second.copy()})


@pytest.mark.parametrize("wrong", [{1, 2}, 1j, object(), lambda: None])
def test_what_cannot_be_written_is_refused_with_its_place(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"state\.model\.1 is a"):
        encode({"model": [0, wrong]})


def test_each_tensor_has_a_name_of_its_own() -> None:
    x = torch.ones(1)
    value = {"b": [{"y": x}, (x, 3)], "a.b": x, "a": {"b": x, 0: np.ones(2)}}
    found = encode(value)
    assert found.names == ["a.0", "a.b", "a.b'", "b.0.y", "b.1.0"]
    assert_same(decode(found.tree, found.tensors), value)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def test_model_and_optimizer_after_a_step_survive_and_go_on_equally() -> None:
    model, optimizer = trained()
    value = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    received = over_the_wire(value)
    assert digest(received) == digest(value)
    other_model, other_optimizer = trained()
    with torch.no_grad():
        next(other_model.parameters()).zero_()
    other_model.load_state_dict(received["model"])
    other_optimizer.load_state_dict(received["optimizer"])
    for one, by in ((model, optimizer), (other_model, other_optimizer)):
        by.zero_grad()
        one(torch.ones(5, 3) * torch.arange(5.0)[:, None]).square().sum().backward()
        by.step()
    assert digest(model.state_dict()) == digest(other_model.state_dict())
    assert digest(optimizer.state_dict()) == digest(other_optimizer.state_dict())


def test_loading_what_another_rank_had_makes_the_states_equal_and_clean() -> None:
    (model, optimizer), (other, other_optimizer) = trained(), trained()
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    here = State({"model": model, "optimizer": optimizer})
    there = State({"model": other, "optimizer": other_optimizer})
    there.load_replicated(over_the_wire({n: i.state_dict() for n, i in here.replicated.items()}))
    assert there.is_clean()
    digests = {digest_of(state.encode_replicated().manifest()) for state in (here, there)}
    assert len(digests) == 1


# --- clean or dirty -------------------------------------------------------------------------------


class Counter:
    """A small stateful object, as users write them."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


class Counting(torch.nn.Module):
    """A module with a state of its own, beside parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Watched:
    """A model with every kind of state, and a State that was just committed."""

    def __init__(self) -> None:
        self.model, self.optimizer = trained()
        self.model.register_buffer("ema", torch.zeros(2))
        self.model.add_module("counting", Counting())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.counter = Counter()
        self.state = State(
            {
                "model": self.model,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "counter": self.counter,
            }
        )
        self.state.mark_clean()


def test_a_forward_and_backward_alone_leave_the_state_clean() -> None:
    watched = Watched()
    watched.model.eval()
    watched.model(torch.randn(5, 3)).sum().backward()
    watched.optimizer.zero_grad()
    assert watched.state.is_clean()


def change_parameter(watched: Watched) -> None:
    with torch.no_grad():
        next(watched.model.parameters()).add_(1.0)


def change_parameter_unseen(watched: Watched) -> None:
    for parameter in watched.model.parameters():
        parameter.data.add_(1.0)


def exchange_data(watched: Watched) -> None:
    for parameter in watched.model.parameters():
        parameter.data = parameter.data + 1.0


def change_buffer(watched: Watched) -> None:
    watched.model.get_buffer("ema").add_(0.5)


def train_batch_norm(watched: Watched) -> None:
    watched.model(torch.randn(5, 3))


def step_optimizer(watched: Watched) -> None:
    watched.optimizer.step()


def begin_optimizer(watched: Watched) -> None:
    for parameter in watched.model.parameters():
        parameter.grad = None
    watched.optimizer.step()


def step_scheduler(watched: Watched) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scheduler step without an optimizer step
        watched.scheduler.step()


def count_up(watched: Watched) -> None:
    watched.counter.count += 1


def count_in_extra_state(watched: Watched) -> None:
    counting = watched.model.get_submodule("counting")
    assert isinstance(counting, Counting)
    counting.count += 1


def load_model(watched: Watched) -> None:
    watched.model.load_state_dict(watched.model.state_dict())


CHANGES = [
    change_parameter,
    change_parameter_unseen,
    exchange_data,
    change_buffer,
    train_batch_norm,
    step_optimizer,
    begin_optimizer,
    step_scheduler,
    count_in_extra_state,
    count_up,
    load_model,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_a_change_is_noticed_until_the_next_commit(change: Any) -> None:
    watched = Watched()
    assert watched.state.is_clean()
    change(watched)
    assert not watched.state.is_clean()
    watched.state.mark_clean()
    assert watched.state.is_clean()


def test_an_exchanged_parameter_is_a_change_and_is_watched_from_the_next_commit_on() -> None:
    model = torch.nn.Linear(3, 2)
    state = State(replicated={"model": model})
    state.mark_clean()
    model.weight = torch.nn.Parameter(torch.ones(2, 3))
    assert not state.is_clean()
    state.mark_clean()
    assert state.is_clean()
    with torch.no_grad():
        model.weight.add_(1)
    assert not state.is_clean()


def test_a_parameter_that_appears_and_one_that_goes_are_changes() -> None:
    model = torch.nn.Linear(3, 2)
    state = State(replicated={"model": model})
    state.mark_clean()
    model.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    assert not state.is_clean()
    state.mark_clean()
    assert state.is_clean()
    del model.scale
    assert not state.is_clean()
    state.mark_clean()
    assert state.is_clean()


def test_a_buffer_that_is_assigned_anew_is_a_change() -> None:
    watched = Watched()
    watched.model.ema = torch.ones(2)
    assert not watched.state.is_clean()


def test_a_buffer_that_was_assigned_anew_is_watched_from_the_next_commit_on() -> None:
    watched = Watched()
    watched.model.ema = torch.ones(2)
    watched.state.mark_clean()
    watched.model.get_buffer("ema").add_(1.0)
    assert not watched.state.is_clean()


def test_running_statistics_of_a_functional_batch_norm_are_a_change() -> None:
    watched = Watched()
    norm = torch.nn.BatchNorm1d(4)
    state = State({"norm": norm})
    state.mark_clean()
    mean, var = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    torch.nn.functional.batch_norm(torch.randn(5, 4), mean, var, training=True)
    assert watched.state.is_clean()
    assert not state.is_clean()


def test_a_learning_rate_that_is_set_by_hand_is_a_change() -> None:
    watched = Watched()
    watched.optimizer.param_groups[0]["lr"] = 0.01
    assert not watched.state.is_clean()


@pytest.mark.parametrize("wrong", [3, None, torch.ones(1), "model"])
def test_an_object_without_state_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(TypeError, match="'model'"):
        State({"model": wrong})
    with pytest.raises(TypeError, match="'loader'"):
        State({"model": Counter()}, per_rank={"loader": wrong})


def test_a_wrong_object_is_refused_although_its_name_is_used_twice() -> None:
    with pytest.raises(TypeError, match="without state_dict"):
        State({"x": 3}, per_rank={"x": Counter()})  # type: ignore[dict-item]


# --- per-rank state -------------------------------------------------------------------------------


def draw() -> list[float]:
    """One number of each stream, the Gaussian ones included: they carry half a pair over."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.standard_normal()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_random_streams_go_on_where_they_were() -> None:
    state = State({"model": Counter()})
    draw()
    record = state.capture_rank()
    wanted = [draw(), draw()]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert draw() != wanted[0]
    state.restore_rank(record)
    assert [draw(), draw()] == wanted


def test_capturing_does_not_disturb_the_streams_and_is_repeatable() -> None:
    state = State({"model": Counter()})
    first = state.capture_rank()
    assert state.capture_rank() == first
    draw()
    assert state.capture_rank() != first


class Loader(Counter):
    """A loader with tensors, an empty one among them, as per-rank state."""

    def __init__(self) -> None:
        super().__init__()
        self.order = torch.arange(5)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "order": self.order, "none": torch.empty(0, 3), "raw": b"\0\n"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict["none"].shape == (0, 3)
        assert state_dict["raw"] == b"\0\n"
        self.count, self.order = state_dict["count"], state_dict["order"]


def test_objects_of_a_rank_are_restored_in_another_process_state() -> None:
    loader, other = Loader(), Loader()
    loader.count, loader.order = 7, torch.tensor([3, 1, 2])
    record = State({"m": Counter()}, per_rank={"loader": loader}).capture_rank()
    State({"m": Counter()}, per_rank={"loader": other}).restore_rank(record)
    assert other.count == 7
    assert torch.equal(other.order, loader.order)


def test_a_record_is_json_and_raw_bytes_and_executes_nothing() -> None:
    line, _, raw = State({"m": Counter()}).capture_rank().partition(b"\n")
    head = json.loads(line)
    assert head.keys() == {"generators", "tree", "tensors"}
    assert sum(length for _, _, length in head["generators"]) == len(raw)
    captured = generators.capture()
    assert all(json.loads(json.dumps(settings)) == settings for settings, _ in captured.values())


def test_capturing_the_generators_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    plain_getitem: Any = torch.UntypedStorage.__getitem__

    def counted(self: torch.UntypedStorage, index: Any) -> Any:
        nonlocal asked
        asked += 1
        return plain_getitem(self, index)

    monkeypatch.setattr(torch.UntypedStorage, "__getitem__", counted)
    generators.capture()
    assert asked < 10


def test_captured_generators_are_a_copy_of_what_torch_had() -> None:
    # Not the memory of a tensor that is gone: many captures, so that freed memory is used again.
    torch.manual_seed(3)
    wanted = torch.get_rng_state()
    for _ in range(50):
        captured = generators.capture()
        clutter = [torch.full((5056,), 7, dtype=torch.uint8) for _ in range(4)]
        generators.restore(captured)
        assert torch.equal(torch.get_rng_state(), wanted)
        del clutter


@pytest.mark.parametrize(
    ("one", "other"), [(float("inf"), torch.finfo(torch.float32).max), (0.0, -0.0), (1.0, 2.0)]
)
def test_buffers_are_compared_bit_by_bit(one: float, other: float) -> None:
    # Infinity is not the largest number, and 0.0 is not -0.0.
    watched = Watched()
    watched.model.get_buffer("ema").fill_(one)
    watched.state.mark_clean()
    watched.model.get_buffer("ema").fill_(other)
    assert not watched.state.is_clean()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_buffers_of_every_type_are_watched(dtype: torch.dtype) -> None:
    model = torch.nn.Linear(1, 1)
    model.register_buffer("extra", torch.zeros(2, dtype=torch.uint8).view(torch.bool).to(dtype))
    state = State({"model": model})
    state.mark_clean()
    assert state.is_clean()
    model.get_buffer("extra").copy_(torch.ones(2).to(dtype))
    assert not state.is_clean()


def test_a_rank_without_changes_has_the_same_record_object() -> None:
    state = State({"model": torch.nn.Linear(1, 1)}, per_rank={"counter": Fixed()})
    first = state.capture_rank()
    assert state.capture_rank() is first
    torch.rand(1)
    second = state.capture_rank()
    assert second != first
    state.restore_rank(first)
    assert state.capture_rank() == first


class Fixed:
    def state_dict(self) -> dict[str, int]:
        return {"value": 3}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {"value": 3}


def test_a_buffer_that_is_registered_later_is_watched() -> None:
    model = torch.nn.Linear(1, 1)
    state = State({"model": model})
    state.mark_clean()
    model.register_buffer("late", torch.zeros(2))
    state.mark_clean()
    assert state.is_clean()
    assert isinstance(model.late, torch.Tensor)
    model.late += 1
    assert not state.is_clean()
    state.mark_clean()
    model.late = torch.zeros(3)
    assert not state.is_clean()
    state.mark_clean()
    assert state.is_clean()
