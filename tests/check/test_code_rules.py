"""Each rule finds what it is for, and not the thing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import keepstep.checkpoint
from keepstep import Checkpoint
from keepstep.check.finding import Severity
from keepstep.check.rules import RULES
from tests.check.job import END, IMPORTS, READY, codes, found, look_at

INIT = 'dist.init_process_group("nccl")\n'

# Rule; how bad; what it must find; the nearest thing that it must not.
PAIRS: list[tuple[str, Severity, str, str]] = [
    ("KS101", Severity.RISK, INIT, READY),
    ("KS101", Severity.RISK, 'dist.init_process_group(backend="cpu:gloo,cuda:nccl")', READY),
    ("KS101", Severity.RISK, INIT, 'dist.init_process_group("gloo")'),
    ("KS101", Severity.RISK, INIT, "dist.init_process_group(**settings)"),
    (
        "KS101",
        Severity.RISK,
        'backend = "nccl" if gpu else "gloo"\ndist.init_process_group(backend)',
        'backend = "gloo"\ndist.init_process_group(backend)',
    ),
    (
        "KS101",
        Severity.RISK,
        "from torch.distributed import init_process_group as begin\nbegin(dist.Backend.NCCL)",
        "from elsewhere import init_process_group as begin\nbegin('nccl')",
    ),
    (
        "KS102",
        Severity.CHANGES,
        INIT + "torch.cuda.set_device(dist.get_rank() % 8)",
        "torch.cuda.set_device(rank % 8)\n" + INIT,
    ),
    (
        "KS103",
        Severity.BREAKS,
        'os.environ["LOCAL_RANK"] = str(rank % 2)\ntorch.cuda.set_device(rank)\n' + INIT,
        'os.environ["LOCAL_RANK"] = str(rank % 2)\n' + READY,
    ),
    (
        "KS103",
        Severity.BREAKS,
        'os.environ["LOCAL_RANK"] = str(rank % 2)\ntorch.cuda.set_device(first + index)\n' + INIT,
        'os.environ["LOCAL_RANK"] = str(rank % 8)\ntorch.cuda.set_device(rank % 8)\n' + INIT,
    ),
    (
        "KS103",
        Severity.RISK,
        'os.environ["LOCAL_RANK"] = str(rank % 2)\n' + INIT,
        'os.environ["LOCAL_RANK"] = str(rank % torch.cuda.device_count())\n' + INIT,
    ),
    (
        "KS103",
        Severity.BREAKS,
        'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n'
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n' + INIT,
        'os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]\n'
        'dist.init_process_group("nccl", device_id=torch.device("cuda", 0))',
    ),
    (
        "KS104",
        Severity.BREAKS,
        READY + 'for i in range(8):\n    t = torch.ones(1, device=f"cuda:{i}")\n'
        "    dist.all_reduce(t)",
        READY + 'for i in range(8):\n    t = torch.ones(1, device=f"cuda:{local_rank}")\n'
        "    dist.all_reduce(t)",
    ),
    (
        "KS104",
        Severity.BREAKS,
        READY + "for i in range(8):\n    dist.all_reduce(parts[i].cuda(i))",
        READY + "for i in range(8):\n    dist.all_reduce(parts[i].cuda(i), group=groups[i])",
    ),
    (
        "KS104",
        Severity.BREAKS,
        READY + 'for i in range(8):\n    dist.broadcast(x.to(torch.device("cuda", i)), 0)',
        READY + "model = torch.nn.DataParallel(model, device_ids=list(range(8)))",
    ),
    ("KS105", Severity.RISK, INIT + "dist.barrier()", READY + "dist.barrier()"),
    ("KS105", Severity.RISK, INIT + "dist.barrier()", INIT + "dist.barrier(device_ids=[0])"),
    ("KS106", Severity.NOTE, "dist.init_process_group()", READY),
    (
        "KS107",
        Severity.BREAKS,
        'dist.init_process_group("nccl-lazy", enable_reconfigure=True)',
        'dist.init_process_group("nccl", enable_reconfigure=True)',
    ),
    ("KS108", Severity.RISK, INIT, INIT + END),
    ("KS108", Severity.RISK, INIT, "print('no group at all')"),
    (
        "KS201",
        Severity.CHANGES,
        READY + 'if dist.get_backend() == "nccl":\n    pass',
        READY + 'if dist.get_backend() in ("nccl", "nccl2", "nccl-legacy"):\n    pass',
    ),
    (
        "KS201",
        Severity.CHANGES,
        READY + "name = dist.get_backend(group)\nif name != dist.Backend.NCCL:\n    pass",
        READY + 'if other.get_backend() == "sqlite":\n    pass',
    ),
    (
        "KS201",
        Severity.CHANGES,
        READY + 'buffer = {"nccl": 1, "gloo": 2}[dist.get_backend()]',
        READY + 'buffer = {"nccl": 1, "gloo": 2}[kind]',
    ),
    (
        "KS201",
        Severity.CHANGES,
        READY + 'sizes = {"nccl": 1, "gloo": 2}\nbuffer = sizes.get(dist.get_backend(), 0)',
        READY + 'sizes = {"nccl": 1, "nccl2": 2}\nbuffer = sizes.get(dist.get_backend(), 0)',
    ),
    (
        "KS201",
        Severity.NOTE,
        READY + 'fast = dist.get_backend().startswith("nccl")',
        READY + 'fast = url.startswith("nccl")',
    ),
    (
        "KS201",
        Severity.CHANGES,
        READY + 'match dist.get_backend():\n    case "nccl":\n        pass',
        READY + 'match dist.get_backend():\n    case "gloo":\n        pass',
    ),
    (
        "KS201",
        Severity.NOTE,
        'if args.backend == "nccl":\n    pass',
        'if args.backend == "gloo":\n    pass',
    ),
    (
        "KS202",
        Severity.BREAKS,
        "assert isinstance(backend, dist.ProcessGroupNCCL)",
        "options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)",
    ),
    (
        "KS202",
        Severity.BREAKS,
        "if not isinstance(b, dist.ProcessGroupNCCL):\n    raise TypeError(b)",
        "assert isinstance(b, (dist.ProcessGroupNCCL, dist.ProcessGroupNCCL2))",
    ),
    (
        "KS202",
        Severity.CHANGES,
        "from torch._C._distributed_c10d import ProcessGroupNCCL\n"
        "if type(b) is ProcessGroupNCCL:\n    pass",
        "if type(b) is dist.ProcessGroupGloo:\n    pass",
    ),
    (
        "KS203",
        Severity.BREAKS,
        'dist.group.WORLD._get_backend(torch.device("cuda"))._set_default_timeout(limit)',
        'dist.group.WORLD._get_backend(torch.device("cpu"))._set_default_timeout(limit)',
    ),
    (
        "KS203",
        Severity.BREAKS,
        "b = dist.get_backend_impl()\nprint(b.comm_split_count())",
        "b = dist.get_backend_impl()\nif hasattr(b, 'uid'):\n    print(b.uid)\nprint(b.name())",
    ),
    (
        "KS301",
        Severity.BREAKS,
        READY + "if dist.get_rank() in ranks:\n    group = dist.new_group(ranks)\n    use(group)",
        READY + "group = dist.new_group(ranks)\nif dist.get_rank() in ranks:\n    use(group)",
    ),
    (
        "KS301",
        Severity.BREAKS,
        READY + "if rank == 0:\n    use(dist.new_group([0]))",
        READY + "if rank == 0:\n    use(dist.new_group([0]))\nelse:\n    use(dist.new_group([0]))",
    ),
    (
        "KS301",
        Severity.BREAKS,
        READY + "if rank % 8 == 0:\n    use(dist.new_group(leaders))",
        READY + "if world_size > 8 and len(ranks) > 1 and rank is not None:\n"
        "    use(dist.new_group(leaders))",
    ),
    (
        "KS301",
        Severity.BREAKS,
        READY + "if rank < 4:\n    use(dist.new_group(half))",
        READY + "if rank < 4:\n    use(dist.new_group(half, use_local_synchronization=True))",
    ),
    (
        "KS302",
        Severity.CHANGES,
        READY + "spare = dist.new_group([0, 1])",
        READY + "spare = dist.new_group([0, 1])\ndist.barrier(spare)",
    ),
    (
        "KS302",
        Severity.CHANGES,
        READY + "dist.new_group([0, 1])",
        READY + 'dist.new_group([0, 1], backend="gloo")',
    ),
    (
        "KS304",
        Severity.RISK,
        READY + "dist.all_reduce(t, async_op=True)",
        READY + "work = dist.all_reduce(t, async_op=True)\nwork.wait()",
    ),
    (
        "KS304",
        Severity.RISK,
        READY + "work = dist.isend(t, 1)",
        READY + "works = [dist.isend(t, 1)]\nfor work in works:\n    work.wait()",
    ),
    (
        "KS305",
        Severity.RISK,
        READY + "dist.send(t, 1)",
        READY + "dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 1)])",
    ),
    ("KS305", Severity.RISK, READY + "dist.recv(t, 1)", 'dist.init_process_group("gloo")'),
    (
        "KS306",
        Severity.BREAKS,
        "dist.all_reduce_multigpu(tensors)",
        "mine.all_reduce_multigpu(tensors)",
    ),
    (
        "KS401",
        Severity.RISK,
        "try:\n    dcp.load(state)\nexcept Exception:\n    start_over()",
        "try:\n    dcp.load(state)\nexcept (Exception, dcp.api.CheckpointException):\n    pass",
    ),
    (
        "KS401",
        Severity.RISK,
        "try:\n    dcp.save(state)\nexcept Exception as e:\n    log(e)",
        "try:\n    dcp.save(state)\nexcept Exception as e:\n    log(e)\n    raise",
    ),
    (
        "KS402",
        Severity.BREAKS,
        "t = torch.empty(md.size, **md.properties.__dict__)",
        "t = torch.empty(md.size, dtype=md.properties.dtype)",
    ),
    (
        "KS402",
        Severity.BREAKS,
        "t = torch.empty(md.size, **vars(md.properties))",
        "from torch.distributed.checkpoint.metadata import TensorProperties\n"
        "p = TensorProperties(**md.properties.__dict__)",
    ),
    (
        "KS404",
        Severity.CHANGES,
        "dcp.save(state, checkpoint_id=path)",
        "torch.save(model.state_dict(), path)",
    ),
    (
        "KS404",
        Severity.CHANGES,
        "dcp.async_save(state)",
        "from keepstep.checkpoint import write_old_format\nwrite_old_format()\ndcp.save(state)",
    ),
    (
        "KS404",
        Severity.CHANGES,
        "from keepstep.checkpoint import writer\nold = writer(path)\ndcp.save(state)",
        "from keepstep.checkpoint import writer\ndcp.save(state, storage_writer=writer(path))",
    ),
    (
        "KS405",
        Severity.CHANGES,
        'dist.init_process_group("nccl2")\ndcp.save(state)',
        'dist.init_process_group("nccl2", timeout=limit)\ndcp.save(state)',
    ),
    (
        "KS405",
        Severity.RISK,
        INIT + "if rank == 0:\n    torch.save(state, path)",
        INIT + "torch.save(state, f'{path}-{rank}')",
    ),
    (
        "KS504",
        Severity.BREAKS,
        INIT + 'os.environ["TORCH_DIST_USE_NCCL2"] = "0"',
        'os.environ["TORCH_DIST_USE_NCCL2"] = "0"\n' + INIT,
    ),
    (
        "KS505",
        Severity.BREAKS,
        'if rank == 0:\n    os.environ["TORCH_DIST_USE_NCCL2"] = "0"\n' + INIT,
        'if old:\n    os.environ["TORCH_DIST_USE_NCCL2"] = "0"\n' + INIT,
    ),
    (
        "KS507",
        Severity.NOTE,
        "store = dist.TCPStore(host, port, use_libuv=False)",
        "store = dist.TCPStore(host, port)",
    ),
]


@pytest.mark.parametrize(
    ("code", "severity", "bad", "good"), PAIRS, ids=[f"{p[0]}-{n}" for n, p in enumerate(PAIRS)]
)
def test_a_rule_finds_its_thing_and_not_the_one_beside_it(
    code: str, severity: Severity, bad: str, good: str, tmp_path: Path
) -> None:
    seen = found(look_at(tmp_path / "bad", IMPORTS, bad), code)
    assert [each.severity for each in seen][:1] == [severity]
    assert seen[0].line > len(IMPORTS.splitlines()) - 1
    assert seen[0].why
    assert seen[0].mend
    assert code not in codes(look_at(tmp_path / "good", IMPORTS, good))


def test_a_job_that_is_ready_has_nothing_to_say(tmp_path: Path) -> None:
    report = look_at(tmp_path, IMPORTS, READY, "dist.all_reduce(torch.ones(1).cuda())", END)
    assert report.findings == ()
    assert report.code == 0


def test_what_no_leap_crosses_is_not_a_change(tmp_path: Path) -> None:
    source = INIT + "dist.get_backend_impl().uid()"
    before = codes(look_at(tmp_path, IMPORTS, source, old="2.13", new="2.14"))
    assert not before & {"KS101", "KS203"}
    after = look_at(tmp_path, IMPORTS, source, old="2.15", new="2.15")
    assert [each.severity for each in found(after, "KS101")] == [Severity.NOTE]
    assert "KS203" in codes(after)


def test_going_back_makes_new_checkpoints_unreadable(tmp_path: Path) -> None:
    report = look_at(tmp_path, IMPORTS, "dcp.save(state)", old="2.15", new="2.14")
    assert [each.severity for each in found(report, "KS404")] == [Severity.BREAKS]


def test_what_is_advised_for_the_old_form_is_there_and_writes_it() -> None:
    """The shim only reads: what it says of itself is that 2.14 can load with it."""
    mend = RULES["KS404"].mend
    for name in ("writer", "write_old_format"):
        assert name in mend
        assert callable(getattr(keepstep.checkpoint, name))
    assert "readable_by" in mend
    assert Checkpoint("runs/x", every=1, readable_by="2.14").old_form
    assert "shim lets 2.14 load" in mend


def test_a_spelling_that_the_old_version_does_not_know(tmp_path: Path) -> None:
    source = 'dist.init_process_group("nccl-legacy")'
    assert "KS204" in codes(look_at(tmp_path, IMPORTS, source, old="2.11"))
    assert "KS204" not in codes(look_at(tmp_path, IMPORTS, source, old="2.14"))


def test_the_backend_of_an_option_comes_from_the_launch_line(tmp_path: Path) -> None:
    source = """
    import argparse
    p = argparse.ArgumentParser()
    p.add_argument("--backend", default="gloo")
    args = p.parse_args()
    dist.init_process_group(args.backend)
    """
    assert "KS101" not in codes(look_at(tmp_path, IMPORTS, source))
    line = "torchrun train.py --backend nccl"
    assert "KS101" in codes(look_at(tmp_path, IMPORTS, source, launch=line))


def test_weights_only_is_a_change_where_the_default_changed(tmp_path: Path) -> None:
    source = "state = torch.load(path)"
    seen = found(look_at(tmp_path, IMPORTS, source, old="2.5"), "KS403")
    assert [each.severity for each in seen] == [Severity.CHANGES]
    seen = found(look_at(tmp_path, IMPORTS, source), "KS403")
    assert [each.severity for each in seen] == [Severity.NOTE]
    told = "state = torch.load(path, weights_only=True)"
    assert "KS403" not in codes(look_at(tmp_path, IMPORTS, told, old="2.5"))


def test_a_cast_in_c_plus_plus_is_seen(tmp_path: Path) -> None:
    (tmp_path / "engine.cpp").write_text(
        "auto b = pg->getBackend(BackendType::NCCL);\n"
        "auto* n = dynamic_cast<c10d::ProcessGroupNCCL*>(b.get());\n"
    )
    (seen,) = found(look_at(tmp_path, IMPORTS), "KS202")
    assert (seen.file.rpartition("/")[2], seen.line) == ("engine.cpp", 2)
    (tmp_path / "engine.cpp").write_text("c10d::ProcessGroupNCCL::Options o;\n")
    assert "KS202" not in codes(look_at(tmp_path, IMPORTS))


def test_environments_beside_the_script_are_not_read(tmp_path: Path) -> None:
    for folder in ("venv/include", ".cache", "lib/site-packages"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.h").write_text("dynamic_cast<ProcessGroupNCCL*>(b)\n")
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    assert "KS202" not in codes(look_at(tmp_path, IMPORTS))


def test_a_folder_without_end_is_not_walked_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepstep.check.native.MOST_ENTRIES", 3)
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    (unseen,) = look_at(tmp_path, IMPORTS).not_looked
    assert "C++ and CUDA sources" in unseen.what
