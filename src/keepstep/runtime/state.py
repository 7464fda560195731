"""What a training job carries from step to step, and how it is written, compared and checked.

``State`` names the objects; ``encode`` turns what their ``state_dict`` returns into a JSON tree and
a list of tensors, ``decode`` turns it back. The manifest of an encoded state lists dtype, shape,
size and SHA-256 of every tensor; the SHA-256 of the manifest is the *digest* of the state. Equal
digests mean equal states, bit for bit. Nothing is pickled.
"""

from __future__ import annotations

import base64
import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from keepstep.runtime import generators
from keepstep.runtime.buffers import buffer_of


@runtime_checkable
class Stateful(Protocol):
    """Anything with ``state_dict`` and ``load_state_dict`` (the PyTorch protocol)."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as nested dicts, lists, tuples, tensors and plain values."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take a state that ``state_dict`` returned."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A state as a JSON-able tree plus tensors (views of live memory where possible).

    ``names`` says where each tensor lies: keys and places in lists, joined by dots.
    """

    tree: Any
    tensors: list[torch.Tensor]
    names: list[str] = field(default_factory=list)

    def manifest(self) -> bytes:
        """Return JSON: the tree and a description of every tensor; its digest is the state's."""
        entries = [
            {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "sha256": hashlib.sha256(buffer_of(tensor)).hexdigest(),
            }
            for tensor in self.tensors
        ]
        return dump_manifest({"tree": self.tree, "tensors": entries})


def dump_manifest(manifest: dict[str, Any]) -> bytes:
    """Return a manifest in the form over which digests are made."""
    return json.dumps(manifest, separators=(",", ":"), sort_keys=True).encode()


def digest_of(manifest: bytes) -> str:
    """Return the digest of the state that ``manifest`` describes: 64 hexadecimal digits."""
    return hashlib.sha256(manifest).hexdigest()


def encode(value: Any) -> Encoded:
    """Turn nested state into a tree and contiguous CPU tensors.

    Dict entries are sorted, so two states that differ only in insertion order are equal.

    Raises:
        TypeError: a value that is neither a tensor, an array nor plain data; the text names its
            place.
    """
    found = outline(value)
    tensors = [tensor.cpu().contiguous() for tensor in found.tensors]
    return Encoded(found.tree, tensors, found.names)


def outline(value: Any) -> Encoded:
    """Return the same with the tensors where and as they are: nothing is copied."""
    tensors: dict[str, torch.Tensor] = {}
    tree = _encode(value, tensors, "")
    return Encoded(tree, list(tensors.values()), list(tensors))


def _encode(value: Any, tensors: dict[str, torch.Tensor], place: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value if type(value) in _PLAIN else _to_plain(value)
    if isinstance(value, torch.Tensor):
        return _add("t", value.detach().resolve_conj().resolve_neg(), tensors, place)
    if isinstance(value, Mapping):
        entries = [
            [_encode(key, tensors, place), _encode(item, tensors, _inside(place, key))]
            for key, item in sorted(value.items(), key=lambda pair: _order(pair[0]))
        ]
        return {"d": entries}
    if isinstance(value, list | tuple):
        items = [_encode(item, tensors, _inside(place, i)) for i, item in enumerate(value)]
        return {"l" if isinstance(value, list) else "u": items}
    if isinstance(value, bytes | bytearray):
        return {"b": base64.b64encode(value).decode()}
    if type(value).__module__ == "numpy":
        return _encode_array(value, tensors, place)
    raise TypeError(
        f"{_inside('state', place) if place else 'state'} is a {type(value).__name__}; a state "
        "holds tensors, arrays, dicts, lists, tuples, bytes, strings, numbers and None. Keep other "
        "objects out of state_dict()."
    )


_PLAIN = {type(None), bool, int, float, str}
SAMPLED = 8  # parameters of which some bytes are compared
SAMPLE_BYTES = 16


def _to_plain(value: Any) -> Any:
    """Reduce subclasses (IntEnum, numpy.float64, ...) to the plain type that they extend."""
    return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))


def _encode_array(value: Any, tensors: dict[str, torch.Tensor], place: str) -> Any:
    if value.ndim == 0:
        return value.item()
    return _add("n", torch.from_numpy(value.copy()), tensors, place)


def _inside(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _add(kind: str, tensor: torch.Tensor, tensors: dict[str, torch.Tensor], place: str) -> Any:
    """Take in a tensor and return its number; of two with one name the second is numbered too."""
    while place in tensors:  # {"a.b": x, "a": {"b": y}}
        place += "'"
    tensors[place] = tensor
    return {kind: len(tensors) - 1}


def _order(key: Any) -> tuple[str, str]:
    return type(key).__name__, key if isinstance(key, str) else f"{key!r:>20}"


def decode(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """Undo ``encode``."""
    if not isinstance(tree, dict):
        return tree
    ((kind, body),) = tree.items()
    return _DECODERS[kind](body, tensors)


_DECODERS: dict[str, Callable[[Any, list[torch.Tensor]], Any]] = {
    "t": lambda body, tensors: tensors[body],
    "n": lambda body, tensors: tensors[body].numpy(),
    "b": lambda body, tensors: base64.b64decode(body),
    "l": lambda body, tensors: [decode(item, tensors) for item in body],
    "u": lambda body, tensors: tuple(decode(item, tensors) for item in body),
    "d": lambda body, tensors: {decode(k, tensors): decode(v, tensors) for k, v in body},
}


def empty_tensors(manifest: dict[str, Any]) -> list[torch.Tensor]:
    """Return uninitialised CPU tensors for the entries of a parsed manifest."""
    return [
        torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]))
        for entry in manifest["tensors"]
    ]


class _Registrations:
    """Counts the parameters and buffers that any module of this process was given.

    A walk over all modules at each commit would show an exchanged parameter too; this costs less.
    """

    def __init__(self) -> None:
        self.count = 0

    def note(self, *_: Any) -> None:
        """One more; called by torch."""
        self.count += 1


_registrations = _Registrations()
register_module_parameter_registration_hook(_registrations.note)
register_module_buffer_registration_hook(_registrations.note)
_version_of = operator.attrgetter("_version")


class _Samples:
    """A few bytes of some parameters on the CPU, from the first to the last.

    What is written through ``Tensor.data`` is not counted by torch, and shows here.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        able = [p for p in parameters if p.device.type == "cpu" and p.numel() and p.is_contiguous()]
        self._chosen = able[:: max(1, len(able) // SAMPLED)]
        self._places: list[int] = []
        self._views: list[memoryview] = []
        self._noted: list[bytes] = []

    def note(self) -> None:
        """Remember them."""
        places = [parameter.data_ptr() for parameter in self._chosen]
        if places != self._places:  # their memory is another one; that of before may be freed
            self._places = places
            views = [buffer_of(p.detach()) if p.is_contiguous() else b"" for p in self._chosen]
            self._views = [memoryview(view)[len(view) // 3 :][:SAMPLE_BYTES] for view in views]
        self._noted = list(map(bytes, self._views))

    def are_as_noted(self) -> bool:
        """Return whether they and the places where they lie are what they were."""
        places = [parameter.data_ptr() for parameter in self._chosen]
        return places == self._places and list(map(bytes, self._views)) == self._noted


@dataclass(slots=True)
class State:
    """Everything that a step changes.

    Args:
        replicated: name -> object that is equal on every rank (model, optimizer, scheduler). A
            replacement receives it from the other ranks.
        per_rank: name -> object that differs from rank to rank (a data loader's position). A
            replacement receives what its rank left at its last commit. The random generators of
            Python, NumPy and torch (CPU and the current GPU) are always carried.

    Raises:
        TypeError: an object without ``state_dict`` and ``load_state_dict``.
    """

    replicated: dict[str, Stateful]
    per_rank: dict[str, Stateful] = field(default_factory=dict)
    guard: Callable[[], None] | None = field(default=None, init=False, repr=False)
    _modules: list[torch.nn.Module] = field(default_factory=list, init=False, repr=False)
    _optimizers: list[torch.optim.Optimizer] = field(default_factory=list, init=False, repr=False)
    _others: dict[str, Stateful] = field(default_factory=dict, init=False, repr=False)
    _extra: list[torch.nn.Module] = field(default_factory=list, init=False, repr=False)
    _optimizer_began: bool = field(default=False, init=False, repr=False)
    _parameters: list[torch.nn.Parameter] = field(default_factory=list, init=False, repr=False)
    _registered: int = field(default=-1, init=False, repr=False)  # when they were listed
    _versions: list[int] = field(default_factory=list, init=False, repr=False)
    _samples: _Samples = field(default_factory=lambda: _Samples([]), init=False, repr=False)
    _rest: list[Any] = field(default_factory=list, init=False, repr=False)
    _buffers: list[torch.Tensor] = field(default_factory=list, init=False, repr=False)
    _head: bytes = field(default=b"", init=False, repr=False)  # of the rank's record
    _head_settings: list[Any] = field(default_factory=list, init=False, repr=False)
    _rank_tensors: list[torch.Tensor] = field(default_factory=list, init=False, repr=False)
    _rank_record: bytes = field(default=b"", init=False, repr=False)
    _captured: generators.Captured | None = field(default=None, init=False, repr=False)
    _buffered: list[Any] = field(default_factory=list, init=False, repr=False)  # of modules

    def __post_init__(self) -> None:
        """Check the objects and start to watch them for changes."""
        for name, item in [*self.replicated.items(), *self.per_rank.items()]:
            if not isinstance(item, Stateful):
                raise TypeError(
                    f"State: {name!r} is a {type(item).__name__} without state_dict() and "
                    "load_state_dict(); wrap it in an object that has both"
                )
        for name, item in self.replicated.items():
            if isinstance(item, torch.nn.Module):
                self._modules += item.modules()
                self._extra += filter(_has_extra_state, item.modules())
            elif isinstance(item, torch.optim.Optimizer):
                item.register_step_pre_hook(self._optimizer_begins)
                self._optimizers.append(item)
            else:
                self._others[name] = item

    def _optimizer_begins(self, *_: Any) -> None:
        """Run before every optimizer step: ``guard`` raises if the gradients are not to be used."""
        if self.guard is not None:
            self.guard()
        self._optimizer_began = True

    def mark_clean(self) -> None:
        """Remember the present state as complete (at each commit)."""
        self._optimizer_began = False
        if self._registered != _registrations.count:
            self._registered = _registrations.count
            self._parameters = self._live_parameters()
            self._samples = _Samples(self._parameters)
            self._buffered = [each._buffers for each in self._modules if each._buffers]
        self._versions = list(map(_version_of, self._parameters))
        self._samples.note()
        self._rest = self._besides_parameters()
        if self._buffered:
            live = [buffer for each in self._buffered for buffer in each.values()]
            self._buffers = [buffer.detach().clone() for buffer in live if buffer is not None]
        else:
            self._buffers = []

    def is_clean(self) -> bool:
        """Return whether nothing replicated changed since ``mark_clean``.

        Parameters are compared by identity, version counter and (what is written through ``.data``
        is not counted) a few bytes of some of them that are on the CPU; buffers by value (batch
        normalisation updates its statistics without counting), optimizers by their settings and
        whether a step began, anything else by the values in its ``state_dict``.
        """
        parameters, buffers = self._live_parameters(), self._live_buffers()
        if list(map(id, parameters)) != list(map(id, self._parameters)):
            self._registered = -1  # one was taken away, which torch does not tell: list them anew
            return False
        return (
            not self._optimizer_began
            and list(map(_version_of, parameters)) == self._versions
            and self._samples.are_as_noted()
            and self._rest == self._besides_parameters()
            and len(buffers) == len(self._buffers)
            and all(map(_equal, buffers, self._buffers))
        )

    def _live_parameters(self) -> list[torch.nn.Parameter]:
        found = [each for module in self._modules for each in module._parameters.values()]
        return [parameter for parameter in found if parameter is not None]

    def _live_buffers(self) -> list[torch.Tensor]:
        found = [buffer for module in self._modules for buffer in module._buffers.values()]
        return [buffer for buffer in found if buffer is not None]

    def _besides_parameters(self) -> list[Any]:
        settings = [
            [
                value if type(value) in _PLAIN else _brief(value)
                for key, value in group.items()
                if key != "params"
            ]
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]
        if not self._others and not self._extra:
            return settings
        others = {name: item.state_dict() for name, item in self._others.items()}
        extra = [module.get_extra_state() for module in self._extra]
        return [*settings, digest_of(encode({"others": others, "extra": extra}).manifest())]

    def encode_replicated(self) -> Encoded:
        """Return the replicated state; CPU tensors are views of the live ones."""
        return encode(self.replicated_values())

    def replicated_values(self) -> dict[str, Any]:
        """Return what ``state_dict`` of each replicated object returns, by name."""
        return {name: item.state_dict() for name, item in self.replicated.items()}

    def load_replicated(self, value: dict[str, Any]) -> None:
        """Load what ``decode`` made of another rank's replicated state."""
        for name, item in self.replicated.items():
            item.load_state_dict(value[name])
        self.mark_clean()

    def capture_rank(self) -> bytes:
        """Return generators and per-rank objects of this rank: a line of JSON, then raw bytes.

        The same object as before, if nothing has changed.
        """
        captured = generators.capture()
        if captured is self._captured and not self.per_rank:
            return self._rank_record
        self._captured = captured
        settings = [(name, part[0], len(part[1])) for name, part in captured.items()]
        if self.per_rank or settings != self._head_settings:
            encoded = encode({name: item.state_dict() for name, item in self.per_rank.items()})
            self._head_settings = settings
            self._head = _rank_head(settings, encoded)
            self._rank_tensors = encoded.tensors
        found = b"".join(
            [
                self._head,
                *(words for _, words in captured.values()),
                *(buffer_of(tensor) for tensor in self._rank_tensors),
            ]
        )
        if found != self._rank_record:
            self._rank_record = found
        return self._rank_record

    def restore_rank(self, record: bytes) -> None:
        """Load what ``capture_rank`` returned, here or in the process that had the rank before."""
        line, _, raw = record.partition(b"\n")
        head = json.loads(line)
        rest = memoryview(raw)
        captured: generators.Captured = {}
        for name, settings, length in head["generators"]:
            captured[name] = (settings, bytes(rest[:length]))
            rest = rest[length:]
        tensors = empty_tensors(head)
        for tensor in tensors:
            buffer = buffer_of(tensor)
            buffer[:] = rest[: len(buffer)]
            rest = rest[len(buffer) :]
        value = decode(head["tree"], tensors)
        for name, item in self.per_rank.items():
            item.load_state_dict(value[name])
        generators.restore(captured)


def _rank_head(settings: list[Any], encoded: Encoded) -> bytes:
    """Return the first line of a rank's record: what the raw bytes after it are."""
    head = {
        "generators": settings,
        "tree": encoded.tree,
        "tensors": [
            {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            for tensor in encoded.tensors
        ],
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n"


def _has_extra_state(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _brief(value: Any) -> Any:
    """Return what tells one setting of an optimizer from another, without a look at the GPU."""
    return (id(value), value._version) if isinstance(value, torch.Tensor) else repr(value)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two buffers hold the same bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_raw(one), _raw(other))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)
