"""DistributedDataParallel, sub-groups and device meshes survive a replacement, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import BYTELM, Run, inject, run

pytestmark = pytest.mark.timeout(700)


def both(folder: Path, script: tuple[str, ...]) -> tuple[Run, Run]:
    """Run undisturbed and with rank 1 killed."""
    found = []
    for name, faults in (("plain", []), ("killed", ["kill@8:1"])):
        (folder / name).mkdir()
        options = ("--workers", "3", "--spares", "1", *inject(*faults))
        found.append(run(folder / name, *options, script=script))
        assert found[-1].exit_code == 0, found[-1].output
    return found[0], found[1]


def test_groups_mesh_and_many_buckets(tmp_path: Path) -> None:
    plain, killed = both(tmp_path, ("tests/jobs/groups.py", "16"))
    assert killed.faults == [("kill", 1, "replace")]
    assert killed.digest == plain.digest


def test_distributed_data_parallel_of_the_real_job(tmp_path: Path) -> None:
    plain, killed = both(tmp_path, (BYTELM, "--steps", "16", "--ddp"))
    assert killed.faults == [("kill", 1, "replace")]
    assert killed.digest == plain.digest


def test_shares_of_different_size_count_by_their_samples(tmp_path: Path) -> None:
    """Three ranks with 4, 3 and 3 samples of ten learn what one rank with all of them does."""
    learned = []
    for workers, way in (("1", "average"), ("3", "average"), ("3", "ddp")):
        folder = tmp_path / f"{way}-{workers}"
        folder.mkdir()
        found = run(folder, "--workers", workers, script=("tests/jobs/uneven.py", way))
        assert found.exit_code == 0, found.output
        (line,) = [line for line in found.output.splitlines() if line.startswith("learned ")]
        learned.append(float(line.split()[1]))
    assert learned[1] == pytest.approx(learned[0], rel=1e-4)
    assert learned[2] == pytest.approx(learned[0], rel=1e-4)


def test_a_job_with_a_dataloader_ends_as_if_no_rank_had_been_lost(tmp_path: Path) -> None:
    script = ("tests/jobs/dataloader.py", "--steps", "24")
    digests = set()
    for name, faults in (("whole", []), ("struck", ["kill@6:1", "raise@12:0", "stop@18:1"])):
        folder = tmp_path / name
        folder.mkdir()
        options = ("--workers", "2", "--spares", "2", "--patience", "3")
        found = run(folder, *options, *inject(*faults), script=script)
        assert found.exit_code == 0, found.output
        assert [fault for fault, _, _ in found.faults] == [f.partition("@")[0] for f in faults]
        assert (found.summary["samples_lost"], found.summary["samples_repeated"]) == (0, 0)
        digests.add(found.digest)
    assert len(digests) == 1


def test_a_replacement_knows_its_rank_when_it_gets_the_state_of_that_rank(tmp_path: Path) -> None:
    plain, killed = both(tmp_path, ("tests/jobs/loader_state.py",))
    assert killed.faults == [("kill", 1, "replace")]
    assert killed.digest == plain.digest
    assert len(killed.of_kind("form")) == 2


def test_a_rank_that_raises_while_gradients_are_exchanged_leaves_no_trace(tmp_path: Path) -> None:
    digests = set()
    for way in ("whole", "raise"):
        folder = tmp_path / way
        folder.mkdir()
        options = ("--workers", "3", "--spares", "1")
        found = run(folder, *options, script=("tests/jobs/two_kinds.py", way))
        assert found.exit_code == 0, found.output
        assert [(fault, rank) for fault, rank, _ in found.faults] == [("raise", 1)] * (
            way == "raise"
        )
        digests.add(found.digest)
    assert len(digests) == 1
