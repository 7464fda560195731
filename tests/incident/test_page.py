"""The page of an incident: what it holds, without a browser."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepstep.cli.main import execute
from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.incident.gather import Arrival, Gathered, gather
from keepstep.incident.manifest import DUMP, Manifest
from keepstep.incident.page import to_data, to_page
from keepstep.recorder.model import Backend, Dump, Entry, Frame, Group, GroupName, RankDump, State
from keepstep.recorder.model import Operation as Call
from keepstep.whole import write_whole
from tests.diagnosis.test_scale import big_job

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=\"alert(1)\">&amp;\u2028"


def data_of(evidence: Evidence, arrivals: tuple[Arrival, ...] = ()) -> dict[str, Any]:
    """The data of a page."""
    gathered = Gathered(attempt="", evidence=evidence, arrivals=arrivals)
    return to_data(gathered, diagnose(evidence))


def page_of(evidence: Evidence, arrivals: tuple[Arrival, ...] = ()) -> str:
    """The text of a page."""
    gathered = Gathered(attempt="", evidence=evidence, arrivals=arrivals)
    return to_page(gathered, diagnose(evidence), "a folder")


def recorded(checkout: Path, name: str) -> Gathered:
    """Dumps of a real job."""
    (gathered,) = gather(checkout / "tests" / "data" / "recorder" / name)
    return gathered


def lane(data: dict[str, Any], label: str) -> dict[str, Any]:
    """The lane of one group."""
    (found,) = [each for each in data["lanes"] if each["label"] == label]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def big() -> tuple[RankDump, ...]:
    """2,000 ranks; 1234 did not come to the last collective of all ranks."""
    return big_job(2000, 12, stalled=1234)


def hostile_dumps() -> tuple[RankDump, ...]:
    """Three ranks, one of which did not come; every name in the files is hostile."""
    group = GroupName(HOSTILE, HOSTILE)
    stack = (Frame(HOSTILE, f"/srv/{HOSTILE}.py", 7),)
    dumps = []
    for rank in range(3):
        entries = tuple(
            Entry(
                record=at,
                pg_id=0,
                group=group,
                operation=Call(HOSTILE, ((4,),), (HOSTILE,)),
                sequence=at + 1,
                op_id=at + 1,
                state=State.COMPLETED if at < 2 else State.SCHEDULED,
                created_ns=at,
                stack=stack,
            )
            for at in range(2 if rank == 1 else 3)
        )
        dump = Dump(
            version="2.10",
            backend=Backend.NCCL_LEGACY,
            groups=(Group(group, (0, 1, 2)),),
            entries=entries,
        )
        dumps.append(RankDump(dump=dump, path=Path(HOSTILE.replace("/", "_")), rank=rank))
    return tuple(dumps)


def test_the_lane_shows_who_finished_who_waits_and_who_did_not_come(checkout: Path) -> None:
    gathered = recorded(checkout, "h200-4rank-nccl-legacy-p2p")
    data = to_data(gathered, diagnose(gathered.evidence))
    world, transfers = [each for each in data["lanes"] if each["label"] == "default_pg"]
    assert world["importance"] == "blamed"
    assert [column[0] for column in world["columns"]] == [1, 2, 3, 4, 5, 6]
    assert [(row["ranks"], row["marks"], "blamed" in row) for row in world["rows"]] == [
        ("2", "dddddn", True),
        ("0-1", "dddddw", False),
        ("3", "dddddn", False),
    ]
    assert transfers["transfers"]
    last = {row["ranks"]: row for row in transfers["rows"]}["3"]
    assert last["marks"][-1] == "w"
    assert data["calls"][last["calls"][len(last["marks"]) - 1]]["name"] == "recv from rank 2"


def test_a_rank_behind_something_else_is_queued_not_waiting(checkout: Path) -> None:
    gathered = recorded(checkout, "h200-4rank-nccl2-kernel")
    data = to_data(gathered, diagnose(gathered.evidence))
    assert data["lanes"][0]["label"] == "tp [2, 3]"
    assert {row["marks"] for row in lane(data, "tp [2, 3]")["rows"]} == {"dddddw"}
    assert {row["marks"] for row in lane(data, "default_pg")["rows"]} == {"dddddq"}


def test_an_extra_collective_is_where_it_is_stuck(checkout: Path) -> None:
    gathered = recorded(checkout, "h200-4rank-nccl-legacy-extra")
    data = to_data(gathered, diagnose(gathered.evidence))
    stuck = [each["label"] for each in data["lanes"] if each["importance"] == "blamed"]
    assert stuck == ["default_pg"]


def test_a_missing_dump_is_an_empty_row_with_its_reason(checkout: Path) -> None:
    gathered = recorded(checkout, "h200-4rank-nccl2-dead")
    data = to_data(gathered, diagnose(gathered.evidence))
    first = lane(data, "default_pg")["rows"][0]
    assert first == {
        "ranks": "1",
        "size": 1,
        "blamed": True,
        "empty": "no file of this rank is there",
    }
    dead = Observation(life=Life.DEAD, why="killed by SIGKILL", missing_dump="it is dead")
    evidence = replace(gathered.evidence, observations={1: dead})
    data = data_of(evidence, (Arrival(1, DUMP, "", "it is dead"),))
    assert lane(data, "default_pg")["rows"][0]["empty"] == "it is dead"
    assert data["processes"][0]["why"] == "killed by SIGKILL"


def test_another_size_differs_from_the_column(checkout: Path) -> None:
    gathered = recorded(checkout, "h200-4rank-nccl-legacy-size")
    data = to_data(gathered, diagnose(gathered.evidence))
    world = lane(data, "default_pg")
    odd = next(row for row in world["rows"] if row.get("blamed"))
    assert odd["ranks"] == "1"
    at = len(world["columns"]) - 1
    mine, usual = (data["calls"][n] for n in (odd["calls"][at], world["columns"][at][1]))
    assert (mine["tensors"], usual["tensors"]) == ("[1048576] Float", "[1024] Float")
    assert mine["alike"] != usual["alike"]


def test_victims_of_one_wait_share_a_line(checkout: Path) -> None:
    gathered = recorded(checkout, "h200-4rank-nccl2-dead")
    data = to_data(gathered, diagnose(gathered.evidence))
    assert [(w["ranks"], w["blamed"], w["others"]) for w in data["waits"]] == [
        ("ranks 0, 2-3", "rank 1", "")
    ]


def test_ranks_that_wait_for_each_other_share_a_line() -> None:
    dumps = big_job(16, 30, stalled=-1, pending=3)  # all came to everything, nothing finished
    found = {
        (w["ranks"], w["each_other"], w["others"]) for w in data_of(Evidence(dumps=dumps))["waits"]
    }
    assert len(found) == 8
    assert ("ranks 3, 11", True, "") in found


def test_long_lists_of_ranks_are_cut_in_lines_about_waiting() -> None:
    dumps = big_job(2000, 12, stalled=-1, pending=3)
    waits = data_of(Evidence(dumps=dumps))["waits"]
    assert len(waits) == 8
    assert waits[0]["ranks"].endswith("… (250 ranks)")


def test_an_incident_of_a_run_says_which_one_it_is(checkout: Path) -> None:
    gathered = recorded(checkout, "h200-4rank-nccl2-dead")
    manifest = Manifest(
        incident="0007",
        agent="a",
        host="node3",
        written=1.0,
        generation=3,
        step=40,
        backend="nccl2",
        faults=(),
        members=(),
        outcome="generation 4 at step 40",
    )
    page = to_page(
        replace(gathered, manifests=(manifest,)), diagnose(gathered.evidence), "a folder"
    )
    head = re.search(r'class="facts">(.*)</p>', page)
    assert head is not None
    assert head[1] == (
        "3 dumps · nccl2 · incident 0007 · generation 3, step 40 · outcome: generation 4 at step 40"
    )


def test_evidence_without_a_dump_makes_a_page() -> None:
    seen = {0: Observation(life=Life.ALIVE), 1: Observation(life=Life.STOPPED, why="state T")}
    page = page_of(Evidence(observations=seen, expected_ranks=frozenset((0, 1))))
    assert "state T" in page


def test_2000_ranks_make_a_small_page(big: tuple[RankDump, ...]) -> None:
    evidence = Evidence(dumps=big)
    page = page_of(evidence)
    assert len(page) < 400_000
    first = data_of(evidence)["lanes"][0]
    assert [row["ranks"] for row in first["rows"]] == ["1234", "0-1233, 1235-1999"]


def test_2000_ranks_at_different_places_with_different_stacks_stay_below_10_mb(
    big: tuple[RankDump, ...],
) -> None:
    dumps = []
    for each in big:
        assert each.rank is not None
        own = Frame("step", f"/srv/rank{each.rank}/train.py", each.rank)
        entries = tuple(replace(entry, stack=(own, *entry.stack)) for entry in each.dump.entries)
        entries = entries[: 12 - each.rank % 7]
        dumps.append(replace(each, dump=replace(each.dump, entries=entries)))
    data = data_of(Evidence(dumps=tuple(dumps)))
    assert sum(len(each["rows"]) for each in data["lanes"]) > 5000
    assert 1_000_000 < len(json.dumps(data, separators=(",", ":"))) < 10_000_000


def test_nothing_that_a_file_says_becomes_markup() -> None:
    seen = {1: Observation(why=HOSTILE, stack=(Frame(HOSTILE, HOSTILE, 1),), missing_dump=HOSTILE)}
    evidence = Evidence(dumps=hostile_dumps(), observations=seen)
    page = page_of(evidence, (Arrival(1, HOSTILE, "", HOSTILE),))
    assert HOSTILE in diagnose(evidence).headline
    assert "alert(" in page
    assert len(re.findall("<script", page)) == page.count("</script") == 2
    assert "<img" not in page
    assert 'onerror="' not in page
    inside = page.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(inside)
    assert json.loads(inside)["processes"][0]["why"] == HOSTILE


def test_a_file_name_is_escaped(tmp_path: Path) -> None:
    gathered = Gathered(attempt=HOSTILE, evidence=Evidence(dumps=hostile_dumps()), arrivals=())
    page = to_page(gathered, diagnose(gathered.evidence), os.fsdecode(b"bad\xff<b>"))
    assert "<b>" not in page.split("<body>")[1].replace("<b>keepstep explain</b>", "")
    write_whole(tmp_path / "page.html", [page])
    assert "bad\\udcff&lt;b&gt;" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    page = page_of(Evidence(dumps=big_job(8, 30, stalled=3)))
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|@import|url\(""", page)


@pytest.mark.parametrize("option", ["--html", "--perfetto"])
def test_a_file_that_cannot_be_written_is_wrong_usage(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    folder = str(checkout / "tests" / "data" / "recorder" / "h200-4rank-nccl2-dead")
    target = tmp_path / "nowhere" / "file"
    assert execute(["explain", folder, option, str(target)]) == 2
    assert f"{target} cannot be written: No such file or directory" in capsys.readouterr().err
    assert execute(["explain", folder, option, str(tmp_path)]) == 2
    assert f"{tmp_path} cannot be written: Is a directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_explained_is_never_overwritten(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkout / "tests" / "data" / "recorder" / "h200-4rank-nccl2-dead"
    dump = tmp_path / "dump_0"
    content = next(file for file in sorted(source.iterdir()) if file.is_file()).read_bytes()
    dump.write_bytes(content)
    assert execute(["explain", str(dump), "--html", str(dump)]) == 2
    assert "is what is to be explained" in capsys.readouterr().err
    assert dump.read_bytes() == content


def test_of_several_attempts_the_newest_is_drawn(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(checkout / "tests" / "data" / "recorder")
    target = tmp_path / "page.html"
    execute(["explain", folder, "--html", str(target)])
    said = re.search(r"(\d+) attempts; the newest is drawn: (.+)", capsys.readouterr().err)
    assert said is not None
    assert int(said[1]) > 1
    assert f"attempt {said[2]}" in target.read_text()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    write_whole(target, ["old"])

    def broken() -> Any:
        yield "new"
        raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        write_whole(target, broken())
    assert target.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
