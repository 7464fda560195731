"""How a verdict looks: a sign and a word, so that no colour is needed to read it."""

from __future__ import annotations

from keepstep.canary.verdict import Verdict

SIGN = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✕",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_RUN: "○",
}
CLASS = {
    Verdict.PASS: "pass",
    Verdict.FAIL: "fail",
    Verdict.INCONCLUSIVE: "open",
    Verdict.NOT_RUN: "none",
}
MEANING = {
    Verdict.PASS: "proven",
    Verdict.FAIL: "failed",
    Verdict.INCONCLUSIVE: "no answer: evidence is missing, or the noise is too large",
    Verdict.NOT_RUN: "not run: this machine cannot, or its time was over",
}
