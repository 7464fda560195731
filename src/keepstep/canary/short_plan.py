"""The default plan for one job, or with fewer pairs: its text without what is not needed then."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from keepstep.canary.plan import Plan, default_plan, default_text
from keepstep.canary.plan_text import PlanError, near, parse

_LISTS = re.compile(r"^(jobs|controls) = \[.*\]$", re.MULTILINE)


def short_text(job: str = "", pairs: int | None = None) -> str:
    """Return the TOML of the default plan, shortened.

    The controls are planted in the job that is left, so the judge is judged as well; the job that
    the drills save and resume stays in the plan, without cells of its own.

    Args:
        job: The only one that cells run; "" for all.
        pairs: How often each cell runs; None for as often as in the default plan.

    Raises:
        PlanError: There is no such job, or not so many pairs.
    """
    text = default_text()
    if pairs is not None:
        text = re.sub(r"^pairs = \d+", f"pairs = {pairs}", text, count=1, flags=re.MULTILINE)
    if job:
        text = "".join(_of_one_job(text, job))
    parse(text, "the shortened plan", Plan)
    return text


def _of_one_job(text: str, job: str) -> Iterator[str]:
    plan = default_plan()
    known = list(dict.fromkeys(name for each in plan.compare for name in each.jobs))
    if job not in known:
        raise PlanError(f"--job {job}: wanted one of {', '.join(known)}{near(job, known)}")
    used = {each.topology for each in plan.compare if job in each.jobs}
    used |= {each.topology for each in plan.beside if job in each.jobs}
    kept = {"jobs": {job, plan.saving_job}, "topologies": used}
    for block in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
        (kind, table), *_ = [*tomllib.loads(block).items(), ("", {})]
        if kind in ("compare", "beside"):
            if job in table[0]["jobs"]:
                yield _LISTS.sub(rf'\1 = ["{job}"]', block)
        elif kind not in kept or kept[kind] & table.keys():
            yield block
