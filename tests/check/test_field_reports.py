"""docs/field-reports.md says what catches each report: here it is caught, and its twin is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.check.replays import REPLAYS, Replay

_ROW = re.compile(r"\| (\d+) \|")
_LEAST = 20  # of the 31


def rows(checkout: Path) -> dict[int, list[str]]:
    """Return the cells of each row of the table, by the report's number."""
    found: dict[int, list[str]] = {}
    for line in (checkout / "docs" / "field-reports.md").read_text().splitlines():
        if match := _ROW.match(line):
            found[int(match[1])] = [cell.strip() for cell in line.strip("|").split(" | ")]
    return found


@pytest.mark.parametrize(
    ("number", "by", "replay"), REPLAYS, ids=[f"{n}-{r.__name__}" for n, _, r in REPLAYS]
)
def test_a_report_is_caught_and_its_twin_is_not(
    number: int, by: str, replay: Replay, tmp_path: Path
) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
    assert by in replay(True, tmp_path / "bad")
    good = replay(False, tmp_path / "good")
    assert by not in good
    if not by.startswith("KS"):
        assert not good, "the judge has nothing else to say about the twin"


def test_the_table_has_every_report_and_claims_what_is_replayed(checkout: Path) -> None:
    table = rows(checkout)
    assert sorted(table) == list(range(1, 32))
    for number, cells in table.items():
        replayed = {(by, replay.__name__) for n, by, replay in REPLAYS if n == number}
        claimed = set(re.findall(r"`([^`]+)`", cells[3]))
        named = set(re.findall(r"`([^`]+)`", cells[4]))
        assert claimed == {by for by, _ in replayed}, f"report {number}"
        assert named == {name for _, name in replayed}, f"report {number}"
        assert cells[5], f"report {number}: what the fixture leaves out, or why there is none"


def test_at_least_twenty_are_caught(checkout: Path) -> None:
    caught = {number for number, _, _ in REPLAYS}
    assert len(caught) >= _LEAST
    text = (checkout / "docs" / "field-reports.md").read_text()
    assert f"{len(caught)} of 31" in text
