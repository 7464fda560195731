"""Where the jobs of a plan lie."""

from __future__ import annotations

from pathlib import Path

import keepstep
from keepstep.canary.plan import Plan

OURS = "@jobs/"  # begins the name of a script that comes with keepstep


def script_of(plan: Plan, job: str) -> Path:
    """Return the script of a job.

    Raises:
        ValueError: There is none of that name; says which there are.
    """
    name = plan.jobs[job].script
    if not name.startswith(OURS):
        return Path(name)
    folder = jobs_folder()
    path = folder / name.removeprefix(OURS)
    if not path.is_file():
        known = ", ".join(sorted(f"{OURS}{each.name}" for each in folder.glob("*.py")))
        raise ValueError(f"jobs.{job}.script: saw {name!r}; wanted one of {known}")
    return path


def jobs_folder() -> Path:
    """Return the folder of the jobs that come with keepstep: in the package, or the checkout's."""
    package = Path(keepstep.__file__).resolve().parent
    installed = package / "jobs"
    return installed if installed.is_dir() else package.parent.parent / "jobs"
