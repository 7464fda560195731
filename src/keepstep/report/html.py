"""A rehearsal as one page: a single file without scripts, to read, to print and to sign."""

from __future__ import annotations

from pathlib import Path
from string import Template

from keepstep._version import __version__
from keepstep.incident.look import look, policy_hash
from keepstep.report import (
    page_boundary,
    page_drills,
    page_end,
    page_matrix,
    page_measured,
    page_top,
)
from keepstep.report.markup import joined
from keepstep.report.model import ReceiptFile, Rehearsal
from keepstep.report.summary import verdict_of


def as_html(rehearsal: Rehearsal, sealed: ReceiptFile | None = None) -> str:
    """Return the page.

    Args:
        rehearsal: All that was found. None of its text can become markup.
        sealed: The receipt over all of it, which a lead signs for.
    """
    here = Path(__file__)
    style = look() + here.with_name("page.css").read_text()
    return Template(here.with_name("page.html").read_text()).substitute(
        title=joined(f"{verdict_of(rehearsal).value}: {rehearsal.plan}"),
        style=style,
        style_hash=policy_hash(style),
        header=page_top.header(rehearsal),
        main=joined(
            page_top.verdict(rehearsal),
            page_top.what_next(rehearsal),
            page_matrix.matrix(rehearsal),
            page_drills.drills(rehearsal),
            page_boundary.boundary(rehearsal),
            page_boundary.checkpoint(rehearsal),
            page_boundary.costs(rehearsal),
            page_boundary.differences(rehearsal),
            page_boundary.not_run(rehearsal),
            page_top.what_ran(rehearsal),
            page_end.signature(rehearsal, sealed),
            page_measured.measured(rehearsal),
            page_end.receipts(rehearsal),
        ),
        version=joined(__version__),
    )
