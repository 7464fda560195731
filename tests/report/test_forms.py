"""The page, the terminal and the JSON say the same, and nothing of a record can steer them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from keepstep.canary.verdict import Verdict
from keepstep.report.data import as_json
from keepstep.report.html import as_html
from keepstep.report.model import Rehearsal
from keepstep.report.steps import steps
from keepstep.report.summary import sentence, verdict_of
from keepstep.report.text import as_text
from tests.report.rehearsals import ALL, SEALED, failing, inconclusive, passing, rehearsal

EVERY = pytest.mark.parametrize("make", list(ALL.values()), ids=list(ALL))
VOID = frozenset(("meta", "link", "br", "line", "rect", "circle", "path"))


class Reader(HTMLParser):
    """Reads a page as strictly as it is written: every element is closed, in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        """What is to be read, as one line."""
        return " ".join(" ".join(self.text).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a name."""
        return [attributes for tag, attributes in self.elements if tag == name]


@EVERY
def test_all_forms_begin_with_the_verdict_in_one_sentence(make: Callable[[], Rehearsal]) -> None:
    found = make()
    page, text = Reader(as_html(found, SEALED)), as_text(found, 300)
    first, second, *_ = text.splitlines()
    assert verdict_of(found).value.upper() in first
    assert second == sentence(found)
    assert page.words.index(sentence(found)) < 300
    body = json.loads(as_json(found, SEALED))
    assert body["verdict"] == verdict_of(found).value
    assert body["sentence"] == sentence(found)
    assert Rehearsal.model_validate(body["rehearsal"]) == found
    assert [step["text"] for step in body["next"]] == [step.text for step in steps(found)]
    assert body["receipt"]["sha256"] == SEALED.sha256


ORDER = (
    "What to do next",
    "The matrix",
    "The drills",
    "The boundary: what can be switched back, and until when",
    "Which is the newest checkpoint that 2.14 can read?",
    "What a useful step costs",
    "Open differences",
    "What was not run",
    "What ran",
    "Decision",
    "Measurements of the cells that passed",
    "Receipts",
)


@EVERY
def test_the_parts_are_in_the_order_in_which_a_lead_reads(make: Callable[[], Rehearsal]) -> None:
    words = Reader(as_html(make(), SEALED)).words
    places = [words.index(title) for title in ORDER]
    assert places == sorted(places)


@EVERY
def test_every_cell_drill_and_gap_is_in_both_forms(make: Callable[[], Rehearsal]) -> None:
    found = make()
    page, text = Reader(as_html(found)).words, as_text(found, 300)
    for cell in found.cells:
        assert cell.cell.id in page
    for drill in found.drills:
        assert f"{drill.name}: {drill.reason}" in text
        for proof in drill.proofs:
            assert proof.what in page
            assert proof.seen in page
            assert (proof.seen in text) == (drill.verdict is not Verdict.PASS)
    for row in found.boundary:
        for value in (row.lever, row.until, row.keeps_checkpoints, row.cannot_undo):
            assert value in page
            assert value in text
    for line in found.unprovable:
        assert line in page
        assert line in text
    for each in found.receipts:
        assert each.sha256 in page


def test_a_failed_cell_shows_the_gate_with_what_was_seen_and_wanted() -> None:
    text = as_text(failing(), 300)
    assert "parity: seen loss of step 3: 1.8312 against 1.8355 of the reference; wanted" in text
    assert "step time: +13.5 %" in text
    page = Reader(as_html(failing())).words
    assert "loss of step 3: 1.8312 against 1.8355 of the reference" in page


def test_a_lead_signs_for_one_receipt() -> None:
    page = Reader(as_html(passing(), SEALED)).words
    for text in ("Name", "Date", "Signature", "Go", "No go", SEALED.sha256, passing().plan_sha256):
        assert text in page
    assert f"keepstep receipt verify {SEALED.file}" in page
    assert "No receipt over the whole was written." in Reader(as_html(passing())).words


def test_a_change_is_not_credited_to_a_library_that_is_the_same() -> None:
    page = Reader(as_html(passing())).words
    assert (
        "All stacks have NCCL 2.30.7: whatever differs, NCCL's version is not the reason." in page
    )
    old, new = passing().stacks
    other = new.model_copy(update={"facts": {**new.facts, "nccl": "2.31.0"}})
    assert "All stacks have" not in Reader(as_html(rehearsal(stacks=(old, other)))).words


@EVERY
def test_the_page_needs_nothing_but_itself(make: Callable[[], Rehearsal]) -> None:
    page = Reader(as_html(make(), SEALED))
    names = {name for name, _ in page.elements}
    assert not names & {"script", "img", "iframe", "object", "embed", "form", "input", "base"}
    addresses = [a.get("href") or a.get("src") for _, a in page.elements]
    assert all(each.startswith(("#", "data:,")) for each in addresses if each)
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert not [a for _, a in page.elements if "style" in a]
    style = as_html(make()).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


@EVERY
def test_links_lead_somewhere_and_names_are_there_once(make: Callable[[], Rehearsal]) -> None:
    page = Reader(as_html(make(), SEALED))
    names = [a["id"] for _, a in page.elements if "id" in a]
    assert len(names) == len(set(names))
    for link in page.all("a"):
        assert (link["href"] or "")[1:] in names
    for _, attributes in page.elements:
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in names


@EVERY
def test_tables_can_be_read_aloud(make: Callable[[], Rehearsal]) -> None:
    page = as_html(make(), SEALED)
    for found in re.findall(r"<table.*?</table>", page, re.DOTALL):
        assert found.count("<caption>") == 1
    reader = Reader(page)
    assert all(a.get("scope") in ("col", "row", "rowgroup") for a in reader.all("th"))
    assert all(a.get("aria-label") for a in reader.all("svg"))
    assert len(reader.all("h1")) == 1


def test_a_verdict_is_a_word_and_a_sign_not_only_a_colour() -> None:
    marks = re.findall(r'<span class="mark (\w+)">(.*?)</span></span>|', as_html(failing()))
    page = as_html(failing())
    for kind, sign, word in (("fail", "✕", "fail"), ("open", "?", "inconclusive")):
        pattern = rf'<span class="mark {kind}"><span [^>]*>{re.escape(sign)}</span> {word}</span>'
        assert re.search(pattern, page)
    assert marks is not None


# Hostile text. It comes from job output, variables, file names: whoever writes it wants more.

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "'-alert(1)-'",
    "${title} $style $$",
    "&lt;b&gt; &amp;",
    "\x1b[2J\x1b]0;owned\x07",
    "\u202eevil\u2066",
    "a\x00b\r\nc",
    "[bold red]not markup[/]",
    ":smile: {0} %s",
    "javascript:alert(1)",
    "x" * 5000,
    "\ud800",
)


def poisoned(value: Any, text: str) -> Any:
    """A record in which every text is another one, as far as its form allows."""
    if isinstance(value, dict):
        return {key: poisoned(item, text) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [poisoned(item, text) for item in value]
    return text if isinstance(value, str) else value


def every_text(make: Callable[[], Rehearsal], text: str) -> Rehearsal:
    """A rehearsal whose free texts are all the same hostile one; closed sets of words stay."""
    kept = ("verdict", "state", "role", "drill", "unit", "proven")

    def changed(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            renamed = key in ("facts", "values", "per_step", "variables")
            return {
                (f"{name}{text}" if renamed else name): changed(item, name)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [changed(item, key) for item in value]
        return text if isinstance(value, str) and key not in kept else value

    return Rehearsal.model_validate(changed(make().model_dump(mode="json")))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_markup(text: str) -> None:
    usual = [name for name, _ in Reader(as_html(failing(), SEALED)).elements]
    page = Reader(as_html(every_text(failing, text), SEALED))
    names = {name for name, _ in page.elements}
    assert names <= set(usual), "no element that is not there otherwise"
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    if text.isprintable():
        assert text in "".join(page.text)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("color", [False, True])
def test_no_text_steers_the_terminal(text: str, color: bool) -> None:
    found = as_text(every_text(failing, text), 100, color)
    plain = re.sub(r"\x1b\[[\d;]*m", "", found)
    assert all(c.isprintable() or c == "\n" for c in plain)
    assert "\x1b" not in as_text(every_text(failing, text), 100)
    found.encode()


@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    for make in ALL.values():
        assert max(map(len, as_text(make(), width).splitlines())) <= max(width, 40)


def test_without_colours_there_is_no_escape() -> None:
    assert "\x1b" not in as_text(inconclusive(), 100)
    assert "\x1b[" in as_text(inconclusive(), 100, True)


def test_an_empty_rehearsal_is_a_page_too() -> None:
    found = passing()
    bare = found.model_copy(
        update={
            "cells": (),
            "drills": (),
            "boundary": (),
            "checkpoint": None,
            "costs": (),
            "receipts": (),
            "stacks": (),
            "judgement": found.judgement.model_copy(update={"controls": ()}),
        }
    )
    words = Reader(as_html(bare)).words
    assert "No drill was run" in words
    assert "Nobody asked which checkpoint" in words
    assert "No way back was looked at" in words
    assert as_text(bare)
