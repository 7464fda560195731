"""docs/check.md says what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keepstep.check.rules import AREAS, RULES
from keepstep.check.table import to_markdown
from keepstep.cli.main import execute

EXAMPLE = (
    *("check", "train.py", "--gpus", "sm_90x8", "--driver", "580.95.05"),
    *("--fabric-manager", "580.95.05", "--launch"),
    "TORCH_NCCL_AVOID_RECORD_STREAMS=1 torchrun --nproc-per-node 8 train.py",
)


def page(checkout: Path) -> str:
    return (checkout / "docs" / "check.md").read_text()


def example(checkout: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> str:
    """What the command says about the example, in an environment without torch."""
    patch.setattr("keepstep.check.machine.interpreter", lambda question: ())
    patch.chdir(checkout / "tests" / "check" / "data")
    patch.setattr("os.environ", {"PATH": "/usr/bin"})
    assert execute(EXAMPLE) == 1
    return capsys.readouterr().out


def test_the_table_of_rules_is_the_codes_own(checkout: Path) -> None:
    assert to_markdown() in page(checkout), "python -m keepstep.check.table prints the present one"


def test_the_output_is_what_the_command_says(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"```\n{example(checkout, capsys, monkeypatch)}```" in page(checkout)


def test_every_rule_has_an_area_a_reason_and_a_test(checkout: Path) -> None:
    tests = "".join(path.read_text() for path in (checkout / "tests" / "check").glob("*.py"))
    for code, rule in RULES.items():
        assert code == rule.code
        assert code[:3] in AREAS
        assert rule.title
        assert rule.why
        assert rule.mend
        assert code in tests, f"no test names {code}"


def test_every_code_that_the_code_uses_is_in_the_table(checkout: Path) -> None:
    files = (checkout / "src" / "keepstep" / "check").glob("*.py")
    used = {code for path in files for code in re.findall(r'RULES\["(KS\d+)"\]', path.read_text())}
    assert used == set(RULES)
