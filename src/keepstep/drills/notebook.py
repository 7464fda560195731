"""What a drill writes down as it goes, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from keepstep.canary.verdict import Verdict, worst
from keepstep.drills.record import DrillRecord, Proof

Say = Callable[[str], None]

Kind = Literal["hang", "rollback", "restore", "replace"]


def quiet(_: str) -> None:
    """Say nothing."""


def verdict_of(seen: bool | None) -> Verdict:
    """Return pass or fail; inconclusive where nothing was seen that tells."""
    if seen is None:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if seen else Verdict.FAIL


def decide(proofs: Sequence[Proof], faults: Sequence[str]) -> tuple[Verdict, str]:
    """Return the verdict over all proofs, and the sentence that says why.

    Args:
        proofs: What was shown.
        faults: The names of proofs that the fault really happened. Without every one of them the
            other proofs say nothing: the drill is inconclusive, whatever they say.
    """
    by_name = {proof.what: proof for proof in proofs}
    for name in faults:
        proof = by_name.get(name)
        if proof is None:
            return Verdict.INCONCLUSIVE, f"not proven that {name}: the drill did not get there"
        if proof.verdict is not Verdict.PASS:
            return Verdict.INCONCLUSIVE, f"not proven that {name}: {proof.seen}"
    verdict = worst([proof.verdict for proof in proofs])
    return verdict, _sentence(verdict, proofs)


def _sentence(verdict: Verdict, proofs: Sequence[Proof]) -> str:
    if not proofs:
        return "nothing was shown"
    if verdict is Verdict.PASS:
        return f"all {len(proofs)} proofs hold"
    blocking = [proof for proof in proofs if proof.verdict is not Verdict.PASS]
    failed = [proof for proof in blocking if proof.verdict is Verdict.FAIL]
    first = (failed or blocking)[0]
    more = len(failed or blocking) - 1
    rest = f" (and {more} more)" if more else ""
    return f"{first.what}: {first.seen}, wanted {first.wanted}{rest}"


@dataclass(slots=True, kw_only=True)
class Notebook:
    """The proofs and facts of one drill; ``record`` closes it."""

    drill: Kind
    name: str
    stack: str
    backend: str
    say: Say = quiet
    proofs: list[Proof] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, Any] = field(default_factory=dict)
    next: list[str] = field(default_factory=list)
    _started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _begin: float = field(default_factory=time.monotonic)

    def prove(
        self,
        what: str,
        holds: bool | Verdict | None,
        *,
        seen: str,
        wanted: str,
        evidence: str = "",
        fault: bool = False,
        mend: str = "",
    ) -> bool:
        """Write down one proof; returns whether it holds.

        Args:
            what: What was to be shown.
            holds: Whether it was; None: nothing was seen that tells.
            seen: What was seen.
            wanted: What had to be seen.
            evidence: A file, relative to the drill's folder.
            fault: It proves that the fault happened.
            mend: What to do where it does not hold.
        """
        verdict = holds if isinstance(holds, Verdict) else verdict_of(holds)
        proof = Proof(what=what, verdict=verdict, seen=seen, wanted=wanted, evidence=evidence)
        self.proofs.append(proof)
        if fault:
            self.faults.append(what)
        if mend and verdict is not Verdict.PASS:
            self.next.append(mend)
        self.say(f"{self.name}: {verdict}: {what}: {seen}")
        return verdict is Verdict.PASS

    def not_run(self, what: str, why: str, wanted: str) -> None:
        """Write down what this machine cannot show."""
        self.prove(what, Verdict.NOT_RUN, seen=f"not run: {why}", wanted=wanted)

    def record(self) -> DrillRecord:
        """Return the record of the drill."""
        verdict, reason = decide(self.proofs, self.faults)
        return DrillRecord(
            drill=self.drill,
            name=self.name,
            stack=self.stack,
            backend=self.backend,
            verdict=verdict,
            reason=reason,
            proofs=tuple(self.proofs),
            facts=self.facts,
            next="; ".join(dict.fromkeys(self.next)),
            seconds=time.monotonic() - self._begin,
            started=self._started.isoformat(timespec="seconds"),
            fingerprints=self.fingerprints,
        )
