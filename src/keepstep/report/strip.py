"""One ratio as a picture: where it lies, how sure that is, and where the margin begins."""

from __future__ import annotations

import math

from keepstep.canary.verdict import SoftResult
from keepstep.report.figures import ratio_text
from keepstep.report.markup import Markup, tag
from keepstep.report.signs import CLASS

_WIDTH, _HEIGHT, _MIDDLE = 150, 16, 8
_PAST = 2.0  # margins to either side of "the same" that are drawn


def strip(soft: SoftResult) -> Markup | None:
    """Return the picture of one comparison; None where there is no ratio to draw.

    The line in the middle is "the same"; what lies right of the dashed line is worse than the
    margin allows. The bar is the interval, the mark in it the ratio.
    """
    if soft.ratio is None or soft.ratio <= 0 or soft.margin <= 0:
        return None
    scale = math.log1p(soft.margin) * _PAST
    place = _Scale(scale)
    low = place(soft.lower if soft.lower else soft.ratio)
    high = place(soft.upper if soft.upper else soft.ratio)
    edge = place(1 + soft.margin)
    parts = [
        tag("rect", x=edge, y=0, width=_WIDTH - edge, height=_HEIGHT, class_="beyond"),
        tag("line", x1=0, x2=_WIDTH, y1=_MIDDLE, y2=_MIDDLE, class_="axis"),
        tag("line", x1=place(1), x2=place(1), y1=0, y2=_HEIGHT, class_="same"),
        tag("line", x1=edge, x2=edge, y1=0, y2=_HEIGHT, class_="margin"),
        tag("rect", x=low, y=_MIDDLE - 2, width=max(2.0, high - low), height=4, class_="interval"),
        tag("rect", x=place(soft.ratio) - 2, y=2, width=4, height=12, class_="ratio"),
    ]
    label = f"{ratio_text(soft.ratio)}, margin {ratio_text(1 + soft.margin)}"
    return tag(
        "svg",
        parts,
        class_=f"strip {CLASS[soft.verdict]}",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        aria_label=label,
    )


class _Scale:
    """Maps a ratio to a place; what is beyond the picture lies at its edge."""

    def __init__(self, reach: float) -> None:
        self._reach = reach

    def __call__(self, ratio: float) -> float:
        at = (math.log(max(ratio, 1e-9)) / self._reach + 1) / 2
        return round(min(max(at, 0.0), 1.0) * (_WIDTH - 4) + 2, 1)
