"""Checkpoints of a job: saved by all ranks, published whole, read back to the bit or refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.status import find_status
from keepstep.checkpoint.store import LocalStore
from keepstep.checkpoint.verify import verify
from keepstep.runtime import saving
from keepstep.runtime.checkpoint_plan import Checkpoint
from keepstep.runtime.checkpoints import Checkpoints, Outcome
from keepstep.runtime.resuming import CannotResumeError, UnusableError, read
from keepstep.runtime.state import State, Stateful, digest_of
from keepstep.runtime.step_folders import steps_in

LIMIT = 60.0  # seconds to wait for what takes milliseconds


class Loader:
    """A data loader: its position differs from rank to rank."""

    def __init__(self, position: int) -> None:
        self.position = position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["position"]


class Odd:
    """A state with everything that is neither a module nor an optimizer."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {
            "empty": {},
            "scalar": torch.tensor(3),
            "none": torch.empty(0, 2),
            "turned": torch.arange(6.0).reshape(2, 3).t(),
            "pair": (torch.ones(2), "text", b"bytes"),
            "list": [1, 2.5, None, {"deep": torch.tensor([True, False])}],
        }

    def state_dict(self) -> dict[str, Any]:
        return self.value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.value = state_dict


def make_state(rank: int, seed: int = 0) -> State:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    replicated: dict[str, Stateful] = {"model": model, "optimizer": optimizer, "odd": Odd()}
    return State(replicated=replicated, per_rank={"loader": Loader(100 + rank)})


def digest(state: State) -> str:
    return digest_of(state.encode_replicated().manifest())


class World:
    """The ranks of a job in one process."""

    def __init__(self, root: Path, size: int, steps: int = 100, **plan: Any) -> None:
        self.root = root
        self.plan = Checkpoint(root, **{"every": 10, **plan})
        self.outcomes: list[Outcome] = []
        self.states = [make_state(rank) for rank in range(size)]
        self.ranks = [
            Checkpoints(self.plan, state, steps, self.outcomes.append) for state in self.states
        ]
        self.begin(1, list(range(size)))

    def begin(self, generation: int, members: list[int], start: int = 0) -> None:
        for rank, wid in enumerate(members):
            if wid < len(self.ranks):
                self.ranks[wid].begin(generation, rank, members, start)

    def commit(self, step: int, only: list[int] | None = None) -> None:
        for rank in only if only is not None else range(len(self.ranks)):
            self.ranks[rank].committed(step, self.states[rank].capture_rank)

    def idle(self) -> None:
        for rank in self.ranks:
            rank._wait(lambda: None)

    def save(self, step: int) -> None:
        self.commit(step)
        self.idle()


def change(path: Path, at: int = -200) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], threading.Event]]:
    """Holds the writing of a rank until its event is set."""
    gates: dict[int, threading.Event] = {}
    entered: dict[int, threading.Event] = {}
    own = saving.write_share

    def write(share: saving.Share) -> None:
        if share.rank in gates:
            entered[share.rank].set()
            assert gates[share.rank].wait(LIMIT)
        own(share)

    def hold(rank: int) -> threading.Event:
        gates[rank], entered[rank] = threading.Event(), threading.Event()
        gates[rank].entered = entered[rank]  # type: ignore[attr-defined]
        return gates[rank]

    monkeypatch.setattr(saving, "write_share", write)
    yield hold
    for event in gates.values():
        event.set()


def entered(event: threading.Event) -> bool:
    return bool(event.entered.wait(LIMIT))  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 3])
def test_what_was_saved_is_what_is_loaded(size: int, tmp_path: Path) -> None:
    world = World(tmp_path, size)
    wanted = digest(world.states[0])
    world.save(10)
    assert [(outcome.step, outcome.why) for outcome in world.outcomes] == [(10, "")]
    for rank in range(size):
        state = make_state(rank=7, seed=1)
        assert digest(state) != wanted
        assert Checkpoints(world.plan, state, 100, world.outcomes.append).resume(rank) == 10
        assert digest(state) == wanted
        assert state.per_rank["loader"].state_dict() == {"position": 100 + rank}
        assert state.capture_rank() == world.states[rank].capture_rank()


def test_more_ranks_than_were_saved_keep_what_they_have(tmp_path: Path) -> None:
    world = World(tmp_path, 2)
    world.save(10)
    state = make_state(rank=2, seed=1)
    before = state.capture_rank()
    assert Checkpoints(world.plan, state, 100, world.outcomes.append).resume(2) == 10
    assert digest(state) == digest(world.states[0])
    assert state.capture_rank() == before


def test_a_folder_without_checkpoints_is_a_start(tmp_path: Path) -> None:
    state = make_state(0)
    before = digest(state)
    plan = Checkpoint(tmp_path / "nothing" / "here", every=5)
    assert Checkpoints(plan, state, 100, print).resume(0) == 0
    assert digest(state) == before


def test_other_commands_understand_it(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    world.save(10)
    world.save(20)
    found = verify(LocalStore(tmp_path / "step-000020"))
    assert (found.findings, found.unchecked) == ((), 0)
    status = find_status(LocalStore(tmp_path), "2.15")
    assert (status.newest and status.newest.step, status.incomplete) == (20, ())
    names = {path.name for path in (tmp_path / "step-000020").iterdir()}
    assert names == {".metadata", "keepstep.json", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}


@pytest.mark.parametrize("version", ["2.4", "2.14", "2.14.1", "2.15", None])
def test_it_is_written_for_the_version_that_must_read_it(
    version: str | None, tmp_path: Path
) -> None:
    world = World(tmp_path, 2, readable_by=version)
    world.save(10)
    assert world.outcomes[0].why == ""
    readers = find_readers(LocalStore(tmp_path / "step-000010")).readers
    old = version is not None and version != "2.15"
    assert (readers["2.14"], readers["2.15"]) == (old, True)


def test_what_cannot_be_written_for_the_version_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "writer", lambda target: target)
    world = World(tmp_path, 1, readable_by="2.14")
    world.save(10)
    assert "cannot be read by 2.14" in world.outcomes[0].why
    assert steps_in(tmp_path) == []


def test_plain_pytorch_loads_it(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    world.save(10)
    target = make_state(0, seed=1)
    value = target.replicated_values()
    found = {"model": value["model"], "optimizer": value["optimizer"]}
    torch.distributed.checkpoint.load(found, checkpoint_id=tmp_path / "step-000010", no_dist=True)
    target.replicated["model"].load_state_dict(found["model"])
    target.replicated["optimizer"].load_state_dict(found["optimizer"])
    wanted = world.states[0].replicated_values()
    for name, tensor in target.replicated["model"].state_dict().items():
        assert torch.equal(tensor, wanted["model"][name])
    assert found["optimizer"]["param_groups"][0]["lr"] == 0.1


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit of a tensor": lambda folder: change(folder / "__1_0.distcp"),
    "a data file": lambda folder: (folder / "__1_0.distcp").unlink(),
    "half a data file": lambda folder: (folder / "__0_0.distcp").write_bytes(
        (folder / "__0_0.distcp").read_bytes()[:900]
    ),
    "the metadata": lambda folder: (folder / ".metadata").unlink(),
    "a byte of the metadata": lambda folder: change(folder / ".metadata", 40),
    "the record": lambda folder: (folder / "keepstep.json").unlink(),
    "half the record": lambda folder: (folder / "keepstep.json").write_text("{"),
    "a list for a record": lambda folder: (folder / "keepstep.json").write_text("[]"),
    "another state in the record": lambda folder: (folder / "keepstep.json").write_text(
        (folder / "keepstep.json").read_text().replace('"lr"', '"rl"')
    ),
    "all": lambda folder: list(map(Path.unlink, folder.iterdir())),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_reported_and_the_one_before_it_is_used(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, 2)
    world.save(10)
    world.save(20)
    DAMAGES[damage](tmp_path / "step-000020")
    state = make_state(0, seed=1)
    found = Checkpoints(world.plan, state, 100, print)
    assert found.resume(0) == 10
    assert f"{tmp_path / 'step-000020'} cannot be used" in capsys.readouterr().err
    found.begin(1, 0, [0, 1], 10)
    assert steps_in(tmp_path) == [10]
    assert (tmp_path / "step-000020.set-aside").is_dir()
    DAMAGES[damage](tmp_path / "step-000010")
    with pytest.raises(CannotResumeError, match="none of 1 checkpoints"):
        found.resume(0)


def test_every_flipped_bit_of_the_data_is_noticed(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.save(10)
    folder = tmp_path / "step-000010"
    whole = (folder / "__0_0.distcp").read_bytes()
    wanted = digest(world.states[0])
    for at in range(0, len(whole), 1499):
        change(folder / "__0_0.distcp", at)
        try:
            read(folder)
        except UnusableError:
            pass
        else:  # padding, or a copy of the state for other programs
            state = make_state(0, seed=1)
            assert Checkpoints(world.plan, state, 100, print).resume(0) == 10
            assert digest(state) == wanted
        (folder / "__0_0.distcp").write_bytes(whole)


def test_another_model_is_refused_and_not_taken_for_damage(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.save(10)
    world.save(20)
    smaller = State({"model": torch.nn.Linear(2, 2)})
    with pytest.raises(CannotResumeError, match="holds model, odd, optimizer"):
        Checkpoints(world.plan, smaller, 100, print).resume(0)
    other = make_state(0)
    other.replicated["model"] = torch.nn.Linear(2, 2)
    with pytest.raises(CannotResumeError, match="does not fit"):
        Checkpoints(world.plan, other, 100, print).resume(0)


def test_a_checkpoint_beyond_the_last_step_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.save(20)
    with pytest.raises(CannotResumeError, match="ask for more steps"):
        Checkpoints(world.plan, make_state(0), 15, print).resume(0)


def test_while_one_is_written_the_next_is_left_out(
    gate: Callable[[int], threading.Event], tmp_path: Path
) -> None:
    slow = gate(1)
    world = World(tmp_path, 3)
    world.commit(10)
    assert entered(slow)
    world.commit(20)
    world.commit(30)
    slow.set()
    world.idle()
    assert [outcome.step for outcome in world.outcomes] == [20, 30, 10]
    assert ["still being written" in outcome.why for outcome in world.outcomes] == [
        True, True, False,
    ]  # fmt: skip
    assert steps_in(tmp_path) == [10]
    world.save(40)
    assert steps_in(tmp_path) == [10, 40]
    assert not list(tmp_path.glob("*.saving"))


def test_a_save_that_rank_zero_opens_late_is_declined_by_those_who_have_gone_on(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 2)
    world.commit(10, only=[1])
    world.commit(20, only=[1])  # rank 0 has not opened step 10 yet
    world.commit(10, only=[0])
    world.ranks[0]._wait(lambda: None)
    assert "rank 1: had begun with a later step" in world.outcomes[0].why
    world.commit(20, only=[0])
    world.idle()
    assert steps_in(tmp_path) == [20]


def test_the_copy_is_of_its_step_whatever_happens_while_it_is_written(
    gate: Callable[[int], threading.Event], tmp_path: Path
) -> None:
    slow = gate(0)
    world = World(tmp_path, 1)
    wanted = digest(world.states[0])
    world.commit(10)
    assert entered(slow)
    model: Any = world.states[0].replicated["model"]
    optimizer: Any = world.states[0].replicated["optimizer"]
    with torch.no_grad():
        model[0].weight.zero_()
    optimizer.param_groups[0]["lr"] = 7.0
    optimizer.state[model[0].weight]["step"] += 1
    world.states[0].per_rank["loader"].load_state_dict({"position": -1})
    slow.set()
    world.idle()
    saved = read(tmp_path / "step-000010")
    assert saved.state_sha256 == wanted != digest(world.states[0])
    state = make_state(5, seed=1)
    Checkpoints(world.plan, state, 100, print).resume(0)
    assert digest(state) == wanted
    assert state.per_rank["loader"].state_dict() == {"position": 100}


def test_a_rank_that_is_lost_takes_the_save_with_it_and_the_next_one_works(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    world.commit(10, only=[0, 2])  # rank 1 dies before its commit
    world.begin(2, [0, 7, 2], start=10)
    world.idle()
    assert world.outcomes[0].why == "rank 1 was lost before it had written"
    assert steps_in(tmp_path) == []
    world.begin(3, [0, 1, 2], start=10)
    world.save(20)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000020"]


def test_a_rank_that_is_lost_after_it_has_written_costs_nothing(
    gate: Callable[[int], threading.Event], tmp_path: Path
) -> None:
    slow = gate(0)
    world = World(tmp_path, 3)
    world.commit(10)
    for rank in (1, 2):
        world.ranks[rank]._wait(lambda: None)
    world.begin(2, [0, 7, 2], start=10)
    slow.set()
    world.idle()
    assert steps_in(tmp_path) == [10]
    assert verify(LocalStore(tmp_path / "step-000010")).findings == ()


def test_when_rank_zero_is_lost_the_next_one_clears_up(tmp_path: Path) -> None:
    world = World(tmp_path, 3)
    world.commit(10, only=[1, 2])  # they wait for rank 0 to open the save
    left = tmp_path / "step-000010.1.saving"
    left.mkdir()
    (left / "__0_0.distcp").write_bytes(b"half a file")
    for rank in (1, 2):
        world.ranks[rank]._wait(lambda: None)
    world.begin(2, [1, 2], start=10)
    assert not left.exists()
    world.commit(20, only=[1, 2])
    for rank in (1, 2):
        world.ranks[rank]._wait(lambda: None)
    assert steps_in(tmp_path) == [20]
    assert json.loads((tmp_path / "step-000020" / "keepstep.json").read_text())["world_size"] == 2


def test_a_rank_that_cannot_write_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = saving.write_share

    def fail(share: saving.Share) -> None:
        if share.rank == 2:
            raise OSError("no space left")
        own(share)

    world = World(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(saving, "write_share", fail)
        world.save(10)
    assert world.outcomes[0].why == "rank 2: OSError: no space left"
    world.save(20)
    assert steps_in(tmp_path) == [20]


def test_a_rank_that_is_still_writing_for_a_lost_generation_declines(
    gate: Callable[[int], threading.Event], tmp_path: Path
) -> None:
    slow = gate(1)
    world = World(tmp_path, 3)
    world.commit(10)
    assert entered(slow)
    world.begin(2, [0, 1, 8], start=10)  # rank 2 had written: rank 0 goes on waiting
    world.begin(3, [0, 1, 2], start=5)  # back to an earlier step: it gives the save up
    world.ranks[0]._wait(lambda: None)
    assert world.outcomes[0].why == "the job went back to step 5"
    world.commit(10)
    while not (tmp_path / "step-000010.3.saving").exists():
        pass
    slow.set()
    world.idle()
    assert "rank 1: was still writing step 10" in world.outcomes[1].why
    world.save(20)
    assert steps_in(tmp_path) == [20]


def test_what_was_saved_after_the_step_to_which_the_job_goes_back_is_set_aside(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 2)
    for step in (10, 20, 30):
        world.save(step)
    world.begin(2, [0, 1], start=15)
    assert steps_in(tmp_path) == [10]
    world.save(20)
    assert steps_in(tmp_path) == [10, 20]
    assert {path.name for path in tmp_path.glob("*.set-aside")} == {
        "step-000020.set-aside", "step-000030.set-aside",
    }  # fmt: skip


def test_only_the_newest_are_kept_and_only_our_own_removed(tmp_path: Path) -> None:
    world = World(tmp_path, 1, keep=2)
    other = tmp_path / "step-000001"
    other.mkdir()
    (other / "weights").write_bytes(b"of another program")
    for step in (10, 20, 30, 40):
        world.save(step)
    assert steps_in(tmp_path) == [1, 30, 40]


@pytest.mark.parametrize("size", [1, 3])
def test_the_last_step_is_always_saved(
    size: int, gate: Callable[[int], threading.Event], tmp_path: Path
) -> None:
    slow = gate(size - 1)
    world = World(tmp_path, size, steps=15)
    world.commit(10)
    assert entered(slow)
    ends = [
        threading.Thread(target=rank.finish, args=(state.capture_rank, lambda: None), daemon=True)
        for rank, state in zip(world.ranks, world.states, strict=True)
    ]
    for end in ends:
        end.start()
    slow.set()
    for end in ends:
        end.join(LIMIT)
    assert steps_in(tmp_path) == [10, 15]
    for rank, state in zip(world.ranks, world.states, strict=True):
        rank.finish(state.capture_rank, lambda: None)  # again, after a recovery: it is there
    assert len(world.outcomes) == 2


def test_what_ends_the_waiting_for_the_last_step(
    gate: Callable[[int], threading.Event], tmp_path: Path
) -> None:
    gate(0)
    world = World(tmp_path, 1, steps=15)

    def halted() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        world.ranks[0].finish(world.states[0].capture_rank, halted)


def test_a_last_step_that_cannot_be_saved_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 1, steps=15)

    def fail(share: saving.Share) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(saving, "write_share", fail)
    with pytest.raises(OSError, match=r"the last checkpoint could not be saved.*no space left"):
        world.ranks[0].finish(world.states[0].capture_rank, lambda: None)


def test_names_that_collide_cost_the_checkpoint_and_not_the_training(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    odd: Any = world.states[0].replicated["odd"]
    odd.value = {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}
    world.save(10)
    assert "duplicated" in world.outcomes[0].why
    assert not list(tmp_path.iterdir())


def test_leftovers_of_a_run_that_was_killed_are_removed(tmp_path: Path) -> None:
    for name in ("step-000010.1.saving", "notes", "step-000009.mine"):
        (tmp_path / name).mkdir()
    World(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "step-000009.mine"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whenever_the_job_is_killed_every_checkpoint_with_its_name_is_whole(
    tmp_path: Path, checkout: Path
) -> None:
    lives = 8
    subprocess.run(
        [sys.executable, "-m", "tests.jobs.saves_until_killed", str(tmp_path), str(lives), "7"],
        cwd=checkout,
        check=True,
    )
    cut_off = 0
    for life in range(lives):
        steps = steps_in(tmp_path / str(life))
        assert steps
        for step in steps:
            assert read(tmp_path / str(life) / f"step-{step:06d}").step == step
        cut_off += any((tmp_path / str(life)).glob("*.saving"))
    assert cut_off, "it was never killed in the middle of a save"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path": "x", "every": 0}, "1 or more"),
        ({"path": "x", "every": 5, "keep": 0}, "1 or more"),
        ({"path": "s3://bucket/x", "every": 5}, "a folder is wanted"),
        ({"path": "x", "every": 5, "readable_by": "2.3"}, "downgrade --for 2.3"),
        ({"path": "x", "every": 5, "readable_by": "1.9"}, "wanted one of"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Checkpoint(**arguments)
