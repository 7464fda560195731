"""The page of an incident in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from keepstep.diagnosis.diagnose import diagnose
from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.incident.gather import Arrival, Gathered, gather
from keepstep.incident.manifest import DUMP
from keepstep.incident.page import to_page
from keepstep.recorder.model import Frame
from keepstep.whole import write_whole
from tests.browser import Page, Unavailable, browse, find_or_install
from tests.diagnosis.test_scale import big_job
from tests.incident.test_page import HOSTILE, hostile_dumps

pytestmark = pytest.mark.timeout(600)  # the first time, a Chromium may have to be installed


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a browser."""
    try:
        program = find_or_install()
    except Unavailable as why:
        pytest.skip(str(why))
    with browse(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def dead(checkout: Path) -> Gathered:
    """A real job in which rank 1 was killed, with what an agent saw of it and of rank 0."""
    (gathered,) = gather(checkout / "tests" / "data" / "recorder" / "h200-4rank-nccl2-dead")
    stack = (
        Frame("wait", "/usr/lib/python3.11/threading.py", 320),
        Frame("train", "/srv/train.py", 88),
    )
    seen = {
        0: Observation(life=Life.ALIVE, step=5, stack=stack),
        1: Observation(life=Life.DEAD, why="killed by SIGKILL", missing_dump="it is dead"),
    }
    evidence = replace(gathered.evidence, observations=seen)
    arrivals = (Arrival(1, DUMP, "", "it is dead"),)
    return replace(gathered, evidence=evidence, arrivals=arrivals)


def show(
    page: Page, gathered: Gathered, folder: Path, *, width: int = 1400, dark: bool = False
) -> float:
    """Open the page of an attempt; return the seconds that it took."""
    file = folder / "page.html"
    write_whole(file, [to_page(gathered, diagnose(gathered.evidence), "a folder")])
    return page.open(file, width=width, dark=dark)


def text(page: Page, selector: str) -> str:
    """The text of the first element of a selector, as a person sees it."""
    found = page.run(f"document.querySelector({selector!r}).innerText")
    assert isinstance(found, str)
    return found


def quiet(page: Page) -> bool:
    """Whether the console is empty and nothing but the page's own file was asked for."""
    assert page.problems == []
    return len(page.requests) == 1


def test_the_verdict_is_what_is_seen_first(page: Page, dead: Gathered, tmp_path: Path) -> None:
    show(page, dead, tmp_path)
    assert quiet(page)
    assert text(page, "h1").startswith("Rank 1 died and did not enter all_reduce 6 of group")
    top = page.run("document.querySelector('h1').getBoundingClientRect().bottom")
    assert 0 < top < 250
    order = page.run("[...document.querySelectorAll('h2')].map(h => h.innerText)")
    assert order[:3] == ["Evidence", "Next steps", "Who waits for whom"]


def test_the_culprit_is_marked_in_words_and_its_missing_dump_has_a_reason(
    page: Page, dead: Gathered, tmp_path: Path
) -> None:
    show(page, dead, tmp_path)
    assert "◆ blamed" in text(page, "tr.blamed[data-ranks='1'] th")
    assert text(page, "tr.blamed .hole") == "no dump: it is dead"
    assert text(page, "tr[data-ranks='0, 2-3'] .cell.w") == "waits"
    assert "killed by SIGKILL" in text(page, "#processes")
    waits = text(page, "#waits li")
    assert waits.split("\n")[0] == "ranks 0, 2-3"
    assert "◆ rank 1" in waits


def test_a_click_on_an_operation_shows_its_stacks(
    page: Page, dead: Gathered, tmp_path: Path
) -> None:
    show(page, dead, tmp_path)
    assert page.run("document.getElementById('detail').hidden") is True
    page.run("document.querySelector('tr[data-ranks=\"0, 2-3\"] .cell.w').click()")
    detail = text(page, "#detail")
    assert "all_reduce 6 of default_pg" in detail
    assert "world_reduce" in detail  # where it was called
    assert "train\n/srv/train.py:88" in detail  # the main thread of rank 0
    page.run("document.querySelector('tr.blamed .name').click()")
    assert "killed by SIGKILL" in text(page, "#detail")
    assert quiet(page)


def test_keys_are_enough(page: Page, dead: Gathered, tmp_path: Path) -> None:
    show(page, dead, tmp_path)
    for _ in range(40):
        page.press("Tab")
        if page.run("document.activeElement.matches('.cell.w')"):
            break
    page.press("ArrowLeft")
    assert page.run("document.activeElement.innerText") == "✓ done"
    page.press("Enter")
    assert "all_reduce 5 of default_pg" in text(page, "#detail")
    page.press("Enter")
    assert page.run("document.activeElement.id") == "detail"
    page.press("Escape")
    assert page.run("document.getElementById('detail').hidden") is True
    assert page.run("document.activeElement.innerText") == "✓ done"


def test_light_and_dark_are_readable(page: Page, dead: Gathered, tmp_path: Path) -> None:
    """Every text stands out from what is behind it (WCAG 2, AA: 4.5 to 1)."""
    worst = """
      (() => {
        const parse = (color) => color.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
          .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
          .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
        const behind = (element) => {
          for (let at = element; at; at = at.parentElement) {
            const color = parse(getComputedStyle(at).backgroundColor);
            if (color.length === 3 || color[3] > 0) return color;
          }
          return [255, 255, 255];
        };
        let lowest = 99;
        for (const element of document.querySelectorAll("main *, header *, footer")) {
          if (![...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
          const one = light(parse(getComputedStyle(element).color));
          const other = light(behind(element));
          const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
          if (ratio < lowest) lowest = ratio;
        }
        return lowest;
      })()
    """
    backs = []
    for dark in (False, True):
        show(page, dead, tmp_path, dark=dark)
        assert page.run(worst) >= 4.5
        backs.append(page.run("getComputedStyle(document.body).backgroundColor"))
    assert backs[0] != backs[1]


def test_a_narrow_window_does_not_scroll_sideways(
    page: Page, dead: Gathered, tmp_path: Path
) -> None:
    show(page, dead, tmp_path, width=420)
    assert page.run("document.documentElement.scrollWidth") <= 420


def test_hostile_names_are_text(page: Page, tmp_path: Path) -> None:
    seen = {1: Observation(why=HOSTILE, stack=(Frame(HOSTILE, HOSTILE, 1),))}
    evidence = Evidence(dumps=hostile_dumps(), observations=seen)
    show(page, Gathered(attempt=HOSTILE, evidence=evidence, arrivals=()), tmp_path)
    page.run("document.querySelectorAll('summary, .cell, .name, .link').forEach(b => b.click())")
    assert quiet(page)
    assert page.run("document.querySelectorAll('img, iframe, script').length") == 2
    page.run("document.querySelector('.cell.w').click()")
    assert "alert('x')" in text(page, "#detail")


def test_without_a_browser_it_is_said_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="as root: apt-get install chromium-headless-shell"):
        find_or_install()


def test_2000_ranks_open_at_once_and_unfold(page: Page, tmp_path: Path) -> None:
    """Measured: 0.3 s to open."""
    evidence = Evidence(dumps=big_job(2000, 12, stalled=1234))
    seconds = show(page, Gathered(attempt="", evidence=evidence, arrivals=()), tmp_path)
    assert seconds < 2
    assert quiet(page)
    assert "◆ blamed" in text(page, "tr.blamed[data-ranks='1234']")
    page.run("document.querySelector('.unfold').click()")
    assert page.run("document.querySelectorAll('tr.single[data-ranks]').length") == 100
    assert page.run("document.querySelector('tr.single[data-ranks=\"99\"] .cell.w') !== null")
    page.run("document.querySelector('tr.single .more').click()")
    assert page.run("document.querySelectorAll('tr.single[data-ranks]').length") == 200
    page.run("document.querySelector('.unfold').click()")
    assert page.run("document.querySelectorAll('tr.single').length") == 0
    groups = page.run("document.querySelectorAll('#groups details').length")
    assert groups == 1 + 3 + 3  # the group of all ranks, three of each other kind
    page.run("document.querySelector('#groups button.more').click()")
    assert page.run("document.querySelectorAll('#groups details').length") > groups
