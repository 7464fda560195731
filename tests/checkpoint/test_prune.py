"""Pruning: what goes, what must stay, and what a kill at any moment leaves behind."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.checkpoint import copies
from keepstep.checkpoint.errors import NotACheckpointError
from keepstep.checkpoint.ledger import LedgerError, ledger_of
from keepstep.checkpoint.protect import Terms, protect, release
from keepstep.checkpoint.prune import Plan, plan_prune, prune
from keepstep.checkpoint.readers import find_readers
from keepstep.checkpoint.sibling import Placement
from keepstep.checkpoint.status import steps_of
from keepstep.checkpoint.window import window_of
from keepstep.exit_codes import ExitCode
from tests.checkpoint.runs import TOMORROW, Run, content, run

__all__ = ["run"]

TERMS = Terms(minor="2.14", owner="maria", until=TOMORROW)
COMMAND = "from keepstep.cli.main import main; main()"
KILLED = Path(__file__).with_name("killed.py")


def plan(run: Run, keep: int) -> Plan:
    return plan_prune(run.store, keep, ledger_of(run.store).read())


def test_the_newest_complete_ones_stay(run: Run) -> None:
    run.save(9, 80, 700, 1000)
    done = prune(run.store, 2)
    assert run.steps() == [700, 1000]
    assert [removal.name for removal in done.remove] == ["step-80", "step-9"]
    assert done.stay == {
        "step-1000": "the newest complete checkpoint",
        "step-700": "one of the 2 newest",
    }
    assert sorted(os.listdir(run.path)) == ["step-1000", "step-700"]


@pytest.mark.parametrize("keep", [1, 2])
def test_nothing_goes_in_favour_of_what_nobody_could_load(run: Run, keep: int) -> None:
    run.save(3, 4, 5, 6, 7)
    metadata = run.path / "step-6" / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-9])
    (run.path / "step-7" / "__0_0.distcp").unlink()
    done = prune(run.store, keep)
    assert run.steps() == [*range(6 - keep, 6), 6, 7]
    assert done.stay["step-5"] == "the newest complete checkpoint"
    assert "__0_0.distcp: missing" in done.stay["step-7"]
    assert "cut off" in done.stay["step-6"]


def test_it_says_what_it_would_do_and_does_nothing(run: Run) -> None:
    run.save(1, 2)
    before = content(run.path.parent)
    found = plan(run, 1)
    assert [removal.name for removal in found.remove] == ["step-1"]
    assert found.remove[0].bytes == sum(map(len, content(run.path / "step-1").values()))
    assert content(run.path.parent) == before


def test_every_removal_is_recorded_before_it_happens(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(1, 2)
    recorded = []
    rename = os.rename

    def watch(source: Path, target: Path) -> None:
        recorded.append(ledger_of(run.store).read()[-1]["removed"])
        rename(source, target)

    monkeypatch.setattr(os, "rename", watch)
    prune(run.store, 1)
    assert recorded == [["step-1"]]


def test_the_newest_stays_whatever_is_asked(run: Run) -> None:
    run.save(1)
    with pytest.raises(ValueError, match="at least the newest"):
        prune(run.store, 0)
    prune(run.store, 1)
    assert run.steps() == [1]


def test_what_is_being_written_neither_goes_nor_counts(run: Run) -> None:
    run.save(1, 2)
    unfinished = run.path / "step-3"
    unfinished.mkdir()
    (unfinished / "__0_0.distcp").write_bytes(b"a part")
    again = run.path / "step-4"  # a save into a folder that held a whole checkpoint
    run.save(4)
    (again / "__0_0.distcp").touch()
    run.save(5)
    (run.path / "step-5" / ".metadata.tmp").touch()
    done = prune(run.store, 1)
    assert run.steps() == [2, 3, 4, 5]
    assert done.stay["step-2"] == "the newest complete checkpoint"
    assert "no metadata" in done.stay["step-3"]
    assert "being written again" in done.stay["step-4"]
    assert "being written again" in done.stay["step-5"]


def test_what_is_not_recognised_stays(run: Run) -> None:
    run.save(1, 2, 3, 4, 9)
    (run.path / "step-1" / ".metadata").write_bytes(b"damaged")
    (run.path / "step-2" / ".metadata").unlink()
    elsewhere = run.path.parent / "elsewhere"
    (run.path / "step-3").rename(elsewhere)
    (run.path / "step-3").symlink_to(elsewhere)
    for name in ("step-4.backup", "best", "eval-7", ".hidden-8"):
        shutil.copytree(run.path / "step-4", run.path / name)
    (run.path / "step-5").write_text("a file")
    done = prune(run.store, 1)
    assert [removal.name for removal in done.remove] == ["step-4"]
    assert {"step-1", "step-2", "step-3", "step-4.backup", "best", "eval-7", ".hidden-8"} < set(
        os.listdir(run.path)
    )
    assert "link to another place" in done.stay["step-3"]
    assert len(content(elsewhere)) == 2


def test_what_a_link_in_the_run_leads_to_stays(run: Run) -> None:
    run.save(1, 2, 3)
    (run.path / "last.ckpt").symlink_to("step-1")
    (run.path / "nowhere").symlink_to("step-7")
    done = prune(run.store, 1)
    assert (run.steps(), done.stay["step-1"]) == ([1, 3], "last.ckpt is a link to it")


def test_a_trainer_that_removes_at_the_same_time_is_no_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(1, 2, 3)
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        if source.name == "step-1":
            shutil.rmtree(source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    prune(run.store, 1)
    assert run.steps() == [3]


def test_metadata_of_each_rank_does_not_tell_whether_the_newest_is_whole(run: Run) -> None:
    run.save(1, 2, 3)
    for step in (2, 3):
        folder = run.path / f"step-{step}"
        (folder / ".metadata").rename(folder / "__0.metadata")
    done = prune(run.store, 1)
    assert run.steps() == [2, 3]
    assert "all ranks" in done.stay["step-3"]


def refer(run: Run, user: int, owner: int) -> None:
    """Let a checkpoint name its neighbour's data file instead of its own."""
    metadata = run.path / f"step-{user}" / ".metadata"
    name = b"__0_0.distcp"
    other = f"../step-{owner}/".encode() + name
    # Frames tell lengths, and may go; 8c begins a short text with its length.
    unframed = re.sub(rb"\x95.{8}", b"", metadata.read_bytes(), flags=re.DOTALL)
    assert b"\x8c\x0c" + name in unframed
    metadata.write_bytes(unframed.replace(b"\x8c\x0c" + name, bytes([0x8C, len(other)]) + other))


def test_a_neighbour_whose_files_are_referred_to_stays(run: Run) -> None:
    run.save(1, 2, 3)
    refer(run, 3, 1)
    done = prune(run.store, 1)
    assert run.steps() == [1, 3]
    assert done.stay["step-1"] == "step-3 refers to its files"


def test_a_neighbour_of_a_neighbour_stays_too(run: Run) -> None:
    run.save(1, 2, 3, 4)
    refer(run, 4, 2)
    refer(run, 2, 1)
    assert [removal.name for removal in prune(run.store, 1).remove] == ["step-3"]


def test_nothing_to_prune_is_an_error_that_says_what_was_looked_for(run: Run) -> None:
    with pytest.raises(NotACheckpointError, match="step-100"):
        prune(run.store, 1)


# With a window.


def test_what_is_protected_stays(run: Run) -> None:
    run.save(100, 200, 300, 400)
    run.test_load(300)
    run.save(500, 600, 700, version="2.15.0")
    protect(run.store, TERMS)
    done = prune(run.store, 1)
    assert run.steps() == [100, 200, 300, 700]
    assert done.stay["step-100"] == f"protected: rollback to PyTorch 2.14 until {TOMORROW} (maria)"
    assert [removal.name for removal in done.remove] == ["step-600", "step-500", "step-400"]


def test_what_has_been_test_loaded_since_stays_too(run: Run) -> None:
    run.save(100)
    run.test_load(100)
    protect(run.store, TERMS)
    run.save(200, 300, 400, 500, 600)
    run.save(700, version="2.15.0")
    run.test_load(500)
    prune(run.store, 1)
    assert run.steps() == [100, 300, 400, 500, 700]


def test_a_window_past_its_end_is_still_in_force(run: Run) -> None:
    run.save(100, 200, 300)
    run.test_load(100)
    protect(run.store, TERMS)
    run.ledger.write_text(run.ledger.read_text().replace(str(TOMORROW), "2020-01-01"))
    prune(run.store, 1)
    assert run.steps() == [100, 300]


def test_copies_go_when_nothing_needs_them(run: Run) -> None:
    run.save(100, 200, 300)
    run.test_load(100)
    protect(run.store, TERMS)
    assert prune(run.store, 3).copies == ()
    assert os.listdir(run.copies) == ["step-100"]
    (run.copies / "mine-1").mkdir()
    release(run.store, "no longer wanted")
    done = prune(run.store, 2)
    assert [removal.name for removal in done.copies] == ["step-100"]
    assert os.listdir(run.copies) == ["mine-1"]
    (run.copies / "mine-1").rmdir()
    prune(run.store, 2)
    assert not run.copies.exists()
    assert run.steps() == [200, 300]


def test_the_last_copy_stays_while_the_run_has_no_complete_checkpoint(run: Run) -> None:
    run.save(100, 200)
    protect(run.store, TERMS)
    release(run.store, "no longer wanted")
    for step in (100, 200):
        (run.path / f"step-{step}" / ".metadata").unlink()
    done = prune(run.store, 1)
    assert [removal.name for removal in done.copies] == ["step-100"]
    assert os.listdir(run.copies) == ["step-200"]


def test_what_is_freed_leaves_out_what_another_name_holds(run: Run) -> None:
    run.save(100, 200)
    run.test_load(100)
    protect(run.store, TERMS, placement=Placement.LINK)
    release(run.store, "no longer wanted")
    whole = sum(map(len, content(run.path / "step-100").values()))
    data = (run.path / "step-100" / "__0_0.distcp").stat().st_size
    found = plan_prune(run.store, None, ledger_of(run.store).read())
    assert [removal.name for removal in (*found.remove, *found.copies)] == ["step-100"]
    assert (found.copies[0].bytes, found.frees) == (whole, whole - data)
    found = plan(run, 1)
    assert [removal.name for removal in (*found.remove, *found.copies)] == ["step-100", "step-100"]
    assert found.frees == 2 * whole - data


@pytest.mark.parametrize("line", ["damaged\n", '{"format": 9, "what": "", "when": "", "by": ""}\n'])
def test_without_a_ledger_that_can_be_read_nothing_goes(line: str, run: Run) -> None:
    run.save(100, 200)
    protect(run.store, TERMS)
    run.ledger.write_text(run.ledger.read_text() + line)
    with pytest.raises(LedgerError):
        prune(run.store, 1)
    assert run.steps() == [100, 200]


def test_a_window_that_is_not_understood_stops_it_too(run: Run) -> None:
    run.save(100, 200)
    protect(run.store, TERMS)
    run.ledger.write_text(run.ledger.read_text().replace('"tested"', '"tasted"'))
    with pytest.raises(LedgerError, match="not understood"):
        prune(run.store, 1)
    assert run.steps() == [100, 200]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_sync_folders(
    number: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(1, 2)
    sync = os.fsync

    def refuse(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) and run.ledger.stat().st_size:
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    if number == errno.EINVAL:
        prune(run.store, 1)
        assert os.listdir(run.path) == ["step-2"]
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            prune(run.store, 1)
        assert run.steps() == [1, 2]


# Others at the same time, and crashes.


@pytest.mark.slow
def test_protect_and_prune_at_the_same_time_agree(run: Run) -> None:
    commands = {
        "protect": ["protect", "--for", "2.14", "--owner", "maria", "--until", str(TOMORROW)],
        "prune": ["prune", "--keep", "1"],
    }
    for turn in range(6):
        shutil.rmtree(run.path)
        run.path.mkdir()
        shutil.rmtree(run.copies, ignore_errors=True)
        run.ledger.unlink(missing_ok=True)
        run.save(100, 200, 300, 400)
        order = ["protect", "prune"] if turn % 2 else ["prune", "protect"]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", COMMAND, "checkpoint", *commands[name], str(run.path)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for name in order
        ]
        for process in processes:
            said, _ = process.communicate()
            assert process.returncode in (ExitCode.PASS, ExitCode.INCONCLUSIVE), said
        window = window_of(ledger_of(run.store).read())
        assert window is not None
        for name in window.names:
            assert find_readers(run.store.below(name)).readers["2.14"]
            assert (run.copies / name).is_dir()
        assert [e["what"] for e in ledger_of(run.store).read()].count("protect") == 1


def test_nobody_takes_what_is_set_aside_for_a_step(run: Run) -> None:
    run.save(1)
    for _ in range(20):
        (run.path / "step-2").mkdir()
        copies.set_aside(run.path, "step-2")
    aside = [name for name in os.listdir(run.path) if name != "step-1"]
    assert len(aside) == 20
    assert steps_of(aside) == []
    assert not any(re.search(r"step-(\d+)|(\d+)$", name) for name in aside)


class Crashes:
    """Runs a command again and again on the same run, and kills it one change later each time."""

    def __init__(self, run: Run, command: str) -> None:
        self.run, self.command, self.kills = run, command, 0
        self.pristine = run.path.parent / "pristine"
        self.pristine.mkdir()
        for path in (run.path, run.copies):
            shutil.copytree(path, self.pristine / path.name)
        shutil.copy(run.ledger, self.pristine)

    def __iter__(self) -> Iterator[None]:
        # Without records of test-loads: what the ledger says of them counts.
        elsewhere = {**os.environ, "XDG_STATE_HOME": str(self.pristine)}
        while True:
            for path in (self.run.path, self.run.copies):
                shutil.rmtree(path)
                shutil.copytree(self.pristine / path.name, path)
            shutil.copy(self.pristine / self.run.ledger.name, self.run.ledger)
            arguments = [str(self.run.path), self.command, str(self.kills + 1)]
            ended = subprocess.run([sys.executable, str(KILLED), *arguments], env=elsewhere)
            if ended.returncode == 0:
                return
            assert ended.returncode == -signal.SIGKILL
            self.kills += 1
            yield


@pytest.mark.slow
def test_a_kill_of_prune_at_any_moment_leaves_whole_checkpoints(run: Run) -> None:
    run.save(100, 200, 300, 400)
    run.test_load(300)
    protect(run.store, TERMS)
    run.save(500, 600, version="2.15.0")
    (run.copies / ".making-0.part").mkdir()  # what a killed protect leaves
    whole = {p.name: content(p) for p in run.path.iterdir()}
    crashes = Crashes(run, "prune")
    for _ in crashes:
        found = {p.name: content(p) for p in run.path.iterdir() if not p.name.startswith(".")}
        assert found.keys() >= {"step-100", "step-200", "step-300", "step-600"}
        assert all(files == whole[name] for name, files in found.items())
        prune(run.store, 1)
        assert sorted(os.listdir(run.path)) == ["step-100", "step-200", "step-300", "step-600"]
        assert sorted(os.listdir(run.copies)) == ["step-100", "step-200", "step-300"]
    assert crashes.kills > 20


@pytest.mark.slow
def test_a_kill_of_protect_at_any_moment_leaves_whole_copies(run: Run) -> None:
    run.save(100, 200, 300)
    run.test_load(100)
    protect(run.store, TERMS)
    run.test_load(300)
    protect(run.store, Terms(), copies=False)
    whole = content(run.path / "step-100")
    crashes = Crashes(run, "protect")
    for _ in crashes:
        window = window_of(ledger_of(run.store).read())
        assert window is not None
        assert window.names == {"step-100", "step-200", "step-300"}
        assert run.steps() == [100, 200, 300]
        for name in copies.copied(run.store):
            assert content(run.copies / name) == whole
        prune(run.store, None)
        assert all(name.startswith("step-") for name in os.listdir(run.copies))
        assert protect(run.store, Terms()).notes == ()
        assert sorted(os.listdir(run.copies)) == ["step-100", "step-200", "step-300"]
    assert crashes.kills > 20
