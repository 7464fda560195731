"""What a worker says it holds is what it holds, also after a generation that it could not enter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from keepstep.runtime import handover, vault
from keepstep.runtime import protocol as p
from keepstep.runtime.admission import Admission
from keepstep.runtime.garbage import Collection
from keepstep.runtime.handover import Handover
from keepstep.runtime.inject import Injector
from keepstep.runtime.position import Position
from keepstep.runtime.rank_records import RankRecords
from keepstep.runtime.samples import SampleNotes
from keepstep.runtime.state import State, digest_of


class FakeLink:
    """Keeps what the worker says; no order ever comes."""

    def __init__(self) -> None:
        self.said: list[p.Message] = []

    def send(self, message: p.Message) -> None:
        self.said.append(message)

    def halt_after(self, generation: int) -> None:
        return None


def digest(state: State) -> str:
    return digest_of(state.encode_replicated().manifest())


def member(committed: int, folder: Path) -> tuple[Admission, State, FakeLink]:
    """A worker that holds a clean state of ``committed`` steps and has no process group."""
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(float(committed))
    state = State({"model": model})
    records = RankRecords(state, SampleNotes(), vault.RankRecordWriter(folder, 1))
    records.begin(1, committed)
    state.mark_clean()
    link: Any = FakeLink()
    groups: Any = SimpleNamespace(reconfigure=lambda *_: None, handle=lambda: "h")
    progress: Any = SimpleNamespace(enter=lambda phase: None)
    unused: Any = None
    admission = Admission(
        wid=1,
        position=Position(generation=4, committed=committed),
        state=state,
        records=records,
        link=link,
        groups=groups,
        progress=progress,
        injector=Injector([], unused, unused),
        handover=Handover(1, "127.0.0.1", "s", None),
        snapshots=unused,
        checkpoints=None,
        collection=Collection(),
        begin=unused,
    )
    return admission, state, link


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
    source: str, start_step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker, state, link = member(7, tmp_path)
    before = digest(state)
    _, other, _ = member(start_step, tmp_path)
    value = {"model": dict(other.replicated["model"].state_dict())}
    for name in ("fetch_payload", "fetch_state"):
        monkeypatch.setattr(handover, name, lambda *_, **__: value)
    order = form(source, start_step, digest(other))
    assert not worker.enter(order, None)
    worker.propose(6)
    failed, proposal = link.said
    assert isinstance(failed, p.FormFailed)
    assert isinstance(proposal, p.Proposal)
    assert digest(state) == digest(other) != before
    held = (proposal.committed, proposal.digest) if proposal.clean else None
    assert held in (None, (7, before), (start_step, digest(other)))


def test_what_a_callback_draws_leaves_no_trace_in_the_generators(tmp_path: Path) -> None:
    worker, _, _ = member(7, tmp_path)

    def draw() -> None:
        torch.rand(3)

    worker.begin = draw
    before = torch.get_rng_state()
    worker._begin()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("begin", ["raises", "peer"])
def test_an_error_of_the_script_on_the_way_in_is_shown_and_blamed_on_its_process(
    begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker, _, link = member(7, tmp_path)
    text = "no such shard" if begin == "raises" else "gloo/transport: Connection closed by peer"

    def load(*_: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(State, "load_replicated", load)
    monkeypatch.setattr(worker.handover, "receive", lambda _: {})
    monkeypatch.setattr(worker.groups, "has_store", lambda: True, raising=False)
    assert not worker.enter(form("live", 8, "d"), None)
    (failed,) = link.said
    assert isinstance(failed, p.FormFailed)
    assert text in failed.error
    assert failed.suspect == (1 if begin == "raises" else -1)
    assert ("no such shard" in capsys.readouterr().err) == (begin == "raises")
