"""Tables, section heads and verdicts of the page: each made in one way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keepstep.canary.verdict import Verdict
from keepstep.report.markup import Child, Markup, tag
from keepstep.report.signs import CLASS, SIGN


def section(name: str, title: str, *children: Child) -> Markup:
    """Return a part of the page under its heading."""
    heading = tag("h2", title, id=name)
    return tag("section", heading, *children, class_=f"part {name}", aria_labelledby=name)


def soft_text(text: str) -> Markup:
    """Return a paragraph that explains what follows."""
    return tag("p", text, class_="soft")


def verdict_mark(verdict: Verdict, word: str | None = None) -> Markup:
    """Return a verdict with its sign and its word."""
    sign = tag("span", SIGN[verdict], aria_hidden="true", class_="sign")
    return tag("span", sign, " ", word or verdict.value, class_=f"mark {CLASS[verdict]}")


def table(
    caption: str,
    heads: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    *,
    kind: str = "",
    titled: bool = False,
) -> Markup:
    """Return a table whose first column names the row.

    On a narrow screen each row becomes a block, in which every value has its heading beside it.

    Args:
        caption: What the table holds; read aloud, and seen where it is ``titled``.
        heads: Of the columns.
        rows: A value for each column.
        kind: A class for its look.
        titled: Whether the caption is to be seen: not where a heading says the same.
    """
    body = [_row(heads, row) for row in rows]
    top = tag("tr", [tag("th", head, scope="col") for head in heads])
    return tag(
        "table",
        tag("caption", tag("span", caption, class_=None if titled else "unseen")),
        tag("thead", top),
        tag("tbody", body),
        class_=f"plain stacked {kind}".rstrip(),
    )


def _row(heads: Sequence[Child], row: Sequence[Child]) -> Markup:
    first, *others = row
    cells = [tag("th", first, scope="row")]
    cells += [
        tag("td", tag("span", head, class_="label", aria_hidden="true"), tag("div", value))
        for head, value in zip(heads[1:], others, strict=True)
    ]
    return tag("tr", cells)
