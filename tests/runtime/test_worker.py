"""What a worker says it holds is what it holds, also after a generation that it could not enter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from keepstep.runtime import protocol as p
from keepstep.runtime import vault
from keepstep.runtime import worker as module
from keepstep.runtime.state import State, digest_of
from keepstep.runtime.worker import Supervision


class FakeLink:
    """Keeps what the worker says."""

    def __init__(self) -> None:
        self.said: list[p.Message] = []
        self.halt: p.Halt | None = None

    def send(self, message: p.Message) -> None:
        self.said.append(message)


def digest(state: State) -> str:
    return digest_of(state.encode_replicated().manifest())


def member(committed: int) -> tuple[Supervision, State, FakeLink]:
    """A worker that holds a clean state of ``committed`` steps and has no process group."""
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(float(committed))
    state = State({"model": model})
    link = FakeLink()
    found: Any = Supervision.__new__(Supervision)
    found.config = SimpleNamespace(wid=1, secret="s")
    found.generation = 4
    found.progress = SimpleNamespace(enter=lambda phase: None)
    found.groups = SimpleNamespace(
        reconfigure=lambda *_: None, handle=lambda: "h", check=lambda: None
    )
    found._injector = SimpleNamespace(fired=set(), at_recovery=lambda *_: None)
    found._link, found._state = link, state
    found._committed = committed
    found._entry, found._entry_is_exact = (-1, b""), False
    found._last_record = vault.join_record([], state.capture_rank())
    found._vault = Path("nowhere")
    state.mark_clean()
    return found, state, link


def form(source: str, start_step: int, wanted: str) -> p.Form:
    return p.Form(
        generation=5,
        uuid=5,
        members=[0, 1],
        handles=["a", "b"],
        start_step=start_step,
        source=source,
        donors=[[0, "127.0.0.1:1"]],
        receivers=[1],
        digest=wanted,
        rank_state={"1": ["127.0.0.1:1", "rank/1/3"]},
        snapshot_every=0,
        fired=[],
        timeout=0.1,
        mirrors={},
    )


@pytest.mark.parametrize(("source", "start_step"), [("snapshot", 3), ("live", 8)])
def test_a_worker_that_failed_after_it_received_does_not_offer_that_state_as_its_own(
    source: str, start_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, state, link = member(committed=7)
    before = digest(state)
    _, other, _ = member(committed=start_step)
    value = {"model": dict(other.replicated["model"].state_dict())}
    for name in ("fetch_payload", "fetch_state"):
        monkeypatch.setattr(module, name, lambda *_, **__: value)
    order = form(source, start_step, digest(other))
    assert not worker._enter(order, None)
    worker._propose(6)
    failed, proposal = link.said
    assert isinstance(failed, p.FormFailed)
    assert isinstance(proposal, p.Proposal)
    assert digest(state) == digest(other) != before
    held = (proposal.committed, proposal.digest) if proposal.clean else None
    assert held in (None, (7, before), (start_step, digest(other)))
