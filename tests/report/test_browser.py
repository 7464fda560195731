"""The page in a real Chromium: on a desk, on a telephone, in the dark, on paper."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keepstep.report.html import as_html
from keepstep.report.model import Rehearsal
from tests.browser import Page, Unavailable, browse, find_or_install
from tests.report.rehearsals import ALL, SEALED, failing, inconclusive
from tests.report.test_forms import HOSTILE, every_text

pytestmark = pytest.mark.timeout(600)  # the first time, a Chromium may have to be installed

EVERY = pytest.mark.parametrize("make", list(ALL.values()), ids=list(ALL))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a browser."""
    try:
        program = find_or_install()
    except Unavailable as why:
        pytest.skip(str(why))
    with browse(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def show(
    page: Page, rehearsal: Rehearsal, folder: Path, *, width: int = 1200, dark: bool = False
) -> None:
    """Open the page of a rehearsal."""
    file = folder / "report.html"
    file.write_text(as_html(rehearsal, SEALED))
    page.open(file, width=width, dark=dark)


def quiet(page: Page) -> bool:
    """Whether the console is empty and nothing but the page's own file was asked for."""
    assert page.problems == []
    return len(page.requests) == 1


@EVERY
def test_the_verdict_is_what_is_seen_first(
    make: Callable[[], Rehearsal], page: Page, tmp_path: Path
) -> None:
    show(page, make(), tmp_path)
    assert quiet(page)
    assert 0 < page.run("document.querySelector('h1').getBoundingClientRect().bottom") < 200
    assert page.run("document.querySelector('ol').getBoundingClientRect().top") < 300


@EVERY
@pytest.mark.parametrize("width", [320, 400, 800, 1200])
def test_nothing_sticks_out_at_any_width(
    make: Callable[[], Rehearsal], width: int, page: Page, tmp_path: Path
) -> None:
    show(page, make(), tmp_path, width=width)
    assert page.run("document.documentElement.scrollWidth") <= width


# Contrast as WCAG 2 counts it, of every text over what lies under it.
_CONTRAST = """
(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => {
      const s = c / 255;
      return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const under = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(under(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 80)];
  }
  return worst;
})()
"""


@EVERY
@pytest.mark.parametrize("dark", [False, True])
def test_every_text_can_be_told_from_its_ground(
    make: Callable[[], Rehearsal], dark: bool, page: Page, tmp_path: Path
) -> None:
    show(page, make(), tmp_path, dark=dark)
    ratio, where = page.run(_CONTRAST)
    assert ratio >= 4.5, where


def test_tables_fold_on_a_telephone_with_a_heading_beside_each_value(
    page: Page, tmp_path: Path
) -> None:
    show(page, failing(), tmp_path, width=400)
    shown = page.run("getComputedStyle(document.querySelector('.metrics .label')).display")
    assert shown == "block"
    assert page.run("getComputedStyle(document.querySelector('.metrics tr')).display") == "block"


def test_the_matrix_can_be_moved_with_the_keyboard(page: Page, tmp_path: Path) -> None:
    show(page, inconclusive(), tmp_path, width=400)
    page.run("document.querySelector('.scroll').focus()")
    assert page.run("document.activeElement.className") == "scroll"
    assert page.run("document.activeElement.scrollWidth > document.activeElement.clientWidth")


def test_on_paper_no_table_is_cut_and_it_is_a4(page: Page, tmp_path: Path) -> None:
    show(page, failing(), tmp_path)
    page.send("Emulation.setEmulatedMedia", media="print")
    # What A4 leaves between its margins: 182 mm at 96 dots an inch.
    size = {"width": 688, "height": 971, "deviceScaleFactor": 1, "mobile": False}
    page.send("Emulation.setDeviceMetricsOverride", **size)
    wide = page.run(
        "[...document.querySelectorAll('table, .scroll, svg, .card')]"
        ".filter((e) => e.getBoundingClientRect().right > 689 || e.scrollWidth > e.clientWidth + 1)"
        ".map((e) => e.className.toString())"
    )
    page.send("Emulation.setEmulatedMedia", media="")
    assert wide == []
    show(page, failing(), tmp_path)
    answer = page.send("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
    pdf = base64.b64decode(answer["data"])
    assert b"/MediaBox [0 0 595" in pdf or b"/MediaBox [0 0 594" in pdf or _a4(pdf)


def _a4(pdf: bytes) -> bool:
    """Look for the page's size where it is compressed."""
    parts = pdf.split(b"stream\n")[1:]
    for part in parts:
        try:
            if b"[0 0 595" in zlib.decompressobj().decompress(part):
                return True
        except zlib.error:
            continue
    return False


@pytest.mark.parametrize("text", [each for each in HOSTILE if each != "\ud800"])
def test_hostile_text_does_nothing_in_a_browser(text: str, page: Page, tmp_path: Path) -> None:
    show(page, every_text(failing, text), tmp_path)
    assert quiet(page)
    assert page.run("document.scripts.length") == 0
    assert page.run("document.images.length") == 0
