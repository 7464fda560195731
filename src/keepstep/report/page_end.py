"""The end of the page: who signs what, and how the receipts are verified."""

from __future__ import annotations

from keepstep.report.markup import Markup, tag
from keepstep.report.model import ReceiptFile, Rehearsal
from keepstep.report.page_table import section, soft_text, table

_DECISIONS = ("Go", "Go, with the conditions below", "No go")


def signature(rehearsal: Rehearsal, sealed: ReceiptFile | None) -> Markup:
    """Return what a lead fills in, and to what exactly."""
    boxes = [tag("li", tag("span", class_="box", aria_hidden="true"), text) for text in _DECISIONS]
    fields = [
        tag("p", tag("span", class_="rule"), tag("span", label), class_="field")
        for label in ("Name", "Date", "Signature")
    ]
    return section(
        "signature",
        "Decision",
        tag("ul", boxes, class_="boxes"),
        tag("p", tag("span", class_="rule"), tag("span", "Conditions"), class_="field wide"),
        tag("div", fields, class_="fields"),
        _what_is_signed(rehearsal, sealed),
    )


def receipts(rehearsal: Rehearsal) -> Markup | None:
    """Return the list of receipts, by which another machine finds out whether one is missing."""
    if not rehearsal.receipts:
        return None
    rows = [
        (each.about, tag("span", each.file, class_="path"), tag("span", each.sha256, class_="mono"))
        for each in rehearsal.receipts
    ]
    return section(
        "receipts",
        "Receipts",
        table("Receipts of this rehearsal", ["About", "File", "SHA-256"], rows, kind="digests"),
    )


def _what_is_signed(rehearsal: Rehearsal, sealed: ReceiptFile | None) -> Markup:
    plan = tag(
        "div", tag("dt", "Plan"), tag("dd", f"{rehearsal.plan}, sha256 {rehearsal.plan_sha256}")
    )
    if sealed is None:
        return tag("div", tag("dl", plan), soft_text("No receipt over the whole was written."))
    receipt = tag("div", tag("dt", "Receipt"), tag("dd", f"{sealed.file}, sha256 {sealed.sha256}"))
    command = tag("code", f"keepstep receipt verify {sealed.file}")
    verify = tag("div", tag("dt", "Verified by"), tag("dd", command))
    show = tag("code", f"keepstep receipt show {sealed.file}")
    return tag(
        "div",
        tag("dl", receipt, plan, verify, class_="signed mono"),
        tag(
            "p",
            "The receipts are signed, this page is not: before you sign it, give the command "
            "above, which compares the page with them, or read what is printed by ",
            show,
            ".",
            class_="soft",
        ),
    )
