"""Reading a plan: the default one, and what is said about a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstep.canary.matrix import cells
from keepstep.canary.plan import default_plan, default_text, read_plan
from keepstep.canary.plan_text import PlanError

JOBS = '["data_parallel", "sharded", "tensor", "pipeline"]'

MISTAKES = {
    "mistyped key": ("pairs = 5", "pears = 5", "pears: unknown key", "Did you mean 'pairs'?"),
    "key of a job": ("refusal =", "refusel =", "jobs.many_devices.refusel", "'refusal'?"),
    "text for a number": ("pairs = 5", 'pairs = "five"', "pairs: saw 'five'", "integer"),
    "too few pairs": ("pairs = 5", "pairs = 2", "pairs: saw 2", "greater than or equal to 3"),
    "no pairs": ("pairs = 5", "pairs = 0", "pairs: saw 0", "greater than or equal to 3"),
    "negative pairs": ("pairs = 5", "pairs = -3", "pairs: saw -3", "greater than or equal to 3"),
    "many pairs": ("pairs = 5", f"pairs = {10**30}", "pairs: saw 1000", "less than or equal to 60"),
    "pairs as text": ("pairs = 5", 'pairs = "5"', "pairs: saw '5'", "integer"),
    "pairs as fraction": ("pairs = 5", "pairs = 5.0", "pairs: saw 5.0", "integer"),
    "pairs as truth": ("pairs = 5", "pairs = true", "pairs: saw True", "integer"),
    "seed as text": ("seed = 7", 'seed = "7"', "seed: saw '7'", "integer"),
    "seed as truth": ("seed = 7", "seed = true", "seed: saw True", "integer"),
    "seed as fraction": ("seed = 7", "seed = 7.0", "seed: saw 7.0", "integer"),
    "seed too large": ("seed = 7", f"seed = {1 << 64}", f"seed: saw {1 << 64}", "less than"),
    "seed too small": ("seed = 7", f"seed = {-(1 << 63) - 1}", "seed: saw -92233", "greater than"),
    "margin as text": ("step = 0.05", 'step = "0.05"', "cpu.step: saw '0.05'", "number"),
    "ranks as truth": ("ranks = 2", "ranks = true", "2 ranks.ranks: saw True", "integer"),
    "limit as text": ("run_s = 120", 'run_s = "120"', "limits.run_s: saw '120'", "number"),
    "endless number": ("seed = 7", f"seed = {'7' * 5000}", "not TOML", "digits"),
    "endless list": ("seed = 7", f"seed = {'[' * 5000}", "not TOML", "recursion"),
    "unknown drill": ('["hang", ', '["hnag", ', "drills.0: saw 'hnag'", "Did you mean 'hang'?"),
    "unknown metric": ("step = 0.05", "stepp = 0.05", "margins.cpu: saw 'stepp'", "'step'?"),
    "unknown role": ('role = "lever"', 'role = "levr"', "beside.0.role", "'lever'?"),
    "unknown stack": ('candidate = "2.15"', 'candidate = "2.16"', "candidate: saw '2.16'", "2.15"),
    "unknown backend": ('"gloo"\ncontrols', '"glo"\ncontrols', "compare.0.backend", "'gloo'?"),
    "unknown job": (f"jobs = {JOBS}", 'jobs = ["dp"]', "compare.0.jobs: saw 'dp'", "pipeline"),
    "unknown topology": (
        'topology = "1 node, 2 ranks"',
        'topology = "1 node, 2 rank"',
        "compare.0.topology",
        "Did you mean '1 node, 2 ranks'?",
    ),
    "control without margin": ("step = 0.05", 'step = "informative"', "compare.0.controls", "step"),
    "tolerance without reason": ("tolerance = 0", "tolerance = 0.1", "parity.reason", "why"),
    "refusal without text": ("refusal = ", "#", "jobs.many_devices.refusal", "beside.6"),
    "missing format": ("format = 1", "", "format: missing", "needed"),
    "another format": ("format = 1", "format = 2", "format", "1"),
    "negative limit": ("run_s = 120", "run_s = -1", "limits.run_s: saw -1", "greater than 0"),
    "missing script": ("@jobs/tensor.py", "tensor.py", "jobs.tensor.script", "@jobs/NAME"),
    "beside nothing": (
        'against = "nccl"',
        'against = "gloo2"',
        "beside.0.against",
        "compare entry",
    ),
    "not TOML": ("[[compare]]", "[[compare]", "not TOML", "at line"),
}


@pytest.mark.parametrize(("old", "new", "where", "wanted"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_what_was_wanted(
    tmp_path: Path, old: str, new: str, where: str, wanted: str
) -> None:
    assert old in default_text()
    path = tmp_path / "plan.toml"
    path.write_text(default_text().replace(old, new, 1))
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    assert where in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("seed", [0, -1, -(1 << 63), (1 << 64) - 1])
def test_every_seed_of_torch_is_one(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(default_text().replace("seed = 7", f"seed = {seed}", 1))
    assert read_plan(path).seed == seed


def test_a_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    text = default_text().replace("run_s = 120", "run_z = 120")
    path = tmp_path / "plan.toml"
    path.write_text(text)
    line = 1 + text.splitlines().index("run_z = 120")
    with pytest.raises(PlanError, match=rf"plan\.toml, line {line}: limits\.run_z"):
        read_plan(path)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(default_text().replace("pairs = 5", "pears = 5").replace("run_s", "run_z"))
    with pytest.raises(PlanError) as caught:
        read_plan(path)
    assert len(str(caught.value).splitlines()) == 2


def test_a_copy_of_the_default_plan_is_the_default_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(default_text())
    assert read_plan(path) == default_plan()


def test_scripts_are_found_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    path = tmp_path / "plan.toml"
    path.write_text(default_text().replace("@jobs/tensor.py", "mine.py"))
    assert read_plan(path).jobs["tensor"].script == str(tmp_path / "mine.py")


def test_two_cells_of_one_name_are_refused() -> None:
    plan = default_plan()
    with pytest.raises(PlanError, match=r"two cells are called .* wanted a suffix"):
        cells(plan.model_copy(update={"compare": (*plan.compare, plan.compare[0])}))
