"""HTML that is put together from elements: text is escaped unless it was made here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is markup already. Only this module makes it, from what it escaped."""

    __slots__ = ()


Child = str | Markup | Iterable["Child"] | None

_VOID = frozenset(("br", "line", "rect", "circle", "path"))


def tag(name: str, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """Return an element. ``class_`` and ``for_`` stand for class and for, ``a_b`` for a-b.

    Args:
        name: Of the element.
        children: Text, which is escaped; elements; lists of both. None is left out.
        attributes: True is an attribute without a value; None and False are left out.
    """
    found = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(_visible(str(value)))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{found}/>")
    return Markup(f"<{name}{found}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """Return children one after the other, text escaped."""
    return Markup("".join(_piece(child) for child in children))


def _piece(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(_visible(child))
    return "".join(_piece(each) for each in child)


def _visible(text: str) -> str:
    """Return text with a mark for each character that would not be seen, or steer what follows.

    Among them are those that turn the direction of writing, with which a text can look like
    another one.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
