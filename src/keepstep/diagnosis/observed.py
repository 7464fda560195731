"""What something else than the recorder saw: processes, stacks, NCCL's own counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from keepstep.diagnosis import words
from keepstep.diagnosis.evidence import Evidence, Life, Observation
from keepstep.diagnosis.stacks import Waiting, call_site, kind_of_wait, user_frames
from keepstep.diagnosis.verdict import Confidence, Fault, Outcome, Verdict

_LIFE = {
    Life.ALIVE: "Its process is alive",
    Life.DEAD: "Its process is dead",
    Life.CLEAN_EXIT: "Its process returned from its script",
    Life.STOPPED: "Its process is stopped",
    Life.UNRESPONSIVE: "Its process does not answer",
}


def sentences(rank: int, observation: Observation | None) -> list[str]:
    """Say what was seen of one rank."""
    if observation is None:
        return []
    found = []
    if observation.life in _LIFE:
        life = _LIFE[observation.life]
        says_it = observation.why.casefold().startswith(life.casefold())
        why = f": {observation.why}" if observation.why and not says_it else ""
        told = f"{life[:1]}{observation.why[1:]}" if says_it else f"{life}{why}"
        found.append(f"Rank {rank}: {told}.")
    if observation.raised:
        found.append(f"Rank {rank}: its step raised {observation.raised}.")
    if observation.holds_gil and observation.life is not Life.STOPPED:
        found.append(f"Rank {rank}: a thread holds the GIL, so no other Python code runs.")
    if observation.stack:
        kind = kind_of_wait(observation.stack)
        doing = f", in {kind}" if kind is not Waiting.UNKNOWN else ""
        found.append(f"Rank {rank}: its main thread is at {call_site(observation.stack)}{doing}.")
    if observation.step is not None:
        found.append(f"Rank {rank}: it had committed {observation.step} steps.")
    return found


def behind_in_counts(observations: Mapping[int, Observation]) -> dict[int, str]:
    """Ranks that launched fewer collectives of a communicator than the others, and where."""
    communicators: dict[str, dict[int, tuple[int, ...]]] = {}
    for rank, observation in sorted(observations.items()):
        for name, counts in observation.collective_counts.items():
            communicators.setdefault(name, {})[rank] = counts
    found: dict[int, str] = {}
    for name, by_rank in sorted(communicators.items()):
        most = max(sum(counts) for counts in by_rank.values())
        for rank, counts in by_rank.items():
            if sum(counts) < most:
                found.setdefault(
                    rank,
                    f"NCCL RAS: rank {rank} launched {sum(counts)} collectives of communicator"
                    f" {name}, others {most}.",
                )
    return found


def few_dead(evidence: Evidence) -> frozenset[int]:
    """Return the ranks seen dead, if they are less than half and all others were seen alive.

    Where most are dead, one that lives may be whom they waited for until they gave up.
    """
    lives = {rank: seen.life for rank, seen in evidence.observations.items()}
    dead = frozenset(rank for rank, life in lives.items() if life is Life.DEAD)
    others = [life for life in lives.values() if life is not Life.DEAD]
    known = all(life is Life.ALIVE for life in others) and len(dead) < len(others)
    return dead if known else frozenset()


def diagnose_lives(evidence: Evidence) -> Verdict | None:
    """Name the ranks whose process is dead, stopped or silent, if there are such."""
    observations = dict(sorted(evidence.observations.items()))
    bad = {
        Life.DEAD: (Fault.DEAD, "is dead", "are dead"),
        Life.STOPPED: (Fault.STALLED, "is stopped", "are stopped"),
        Life.UNRESPONSIVE: (Fault.STALLED, "does not answer", "do not answer"),
    }
    for life, (fault, one, many) in bad.items():
        ranks = tuple(rank for rank, seen in observations.items() if seen.life is life)
        few = len(ranks) * 2 < len(observations)
        if ranks and (few or (life is Life.DEAD and len(ranks) < len(observations))):
            clause = words.verb(ranks, one, many)
            seen = life is Life.DEAD and frozenset(ranks) == few_dead(evidence)
            sure = Confidence.HIGH if seen else Confidence.MEDIUM
            return _verdict(evidence, ranks, fault, clause, sure)
    return None


def diagnose_raised(evidence: Evidence) -> Verdict | None:
    """Name the ranks whose step raised by itself, if there are such and nobody is dead.

    A rank whose collective failed because of another is not among them: whoever ran it knows.
    """
    observations = dict(sorted(evidence.observations.items()))
    if any(seen.life is Life.DEAD for seen in observations.values()):
        return None
    ranks = tuple(rank for rank, seen in observations.items() if seen.raised)
    if not ranks:
        return None
    verdict = _verdict(
        evidence, ranks, Fault.RAISED, f"raised {observations[ranks[0]].raised}", Confidence.HIGH
    )
    return replace(
        verdict,
        would_decide=(),
        next_steps=(
            f"Mend what {words.ranks(ranks)} met; the stack below the exception is in its log.",
        ),
    )


def diagnose_observations(evidence: Evidence) -> Verdict:
    """Diagnose without what dumps say: from ends of processes, counts and stacks alone."""
    known = diagnose_raised(evidence) or diagnose_lives(evidence)
    if known is not None:
        return known
    observations = dict(sorted(evidence.observations.items()))
    behind = behind_in_counts(observations)
    if behind and len(behind) * 2 < len(observations):
        ranks = tuple(sorted(behind))
        clause = words.verb(ranks, "has", "have") + " launched fewer collectives than the others"
        return _verdict(
            evidence, ranks, Fault.STALLED, clause, Confidence.LOW, tuple(behind.values())
        )
    stacks = {rank: seen.stack for rank, seen in observations.items() if seen.stack}
    sites = {rank: user_frames(stack)[:1] for rank, stack in stacks.items()}
    count = Counter(sites.values())
    if len(count) > 1:
        usual, number = max(count.items(), key=lambda item: (item[1], item[0]))
        odd = tuple(rank for rank, site in sites.items() if site != usual)
        if number * 2 > len(sites):
            waits = [kind_of_wait(stacks[rank]) for rank in odd]
            others = Counter(kind_of_wait(stacks[r]) for r in stacks if r not in odd)
            ahead = all(kind is Waiting.COLLECTIVE for kind in waits)
            ahead = ahead and not others[Waiting.COLLECTIVE]
            fault = Fault.EXTRA_COLLECTIVE if ahead else Fault.STALLED
            clause = (
                words.verb(odd, "waits", "wait") + " in a collective that no other rank is in"
                if ahead
                else words.verb(odd, "is", "are") + " elsewhere than the other ranks"
            )
            return _verdict(evidence, odd, fault, clause, Confidence.LOW)
    empty = "No operation is in the dumps" if evidence.dumps else "There is no dump"
    return Verdict(
        outcome=Outcome.UNKNOWN,
        confidence=Confidence.LOW,
        headline=f"{empty}, and nothing else tells one rank from the others.",
        would_decide=(
            "Recorder dumps of all ranks, taken while they hang, or the stacks of their main"
            " threads. nccl2 has a recorder from PyTorch 2.15 on.",
        ),
        evidence=tuple(dict.fromkeys(finding.text for finding in evidence.findings)),
    )


def _verdict(
    evidence: Evidence,
    ranks: tuple[int, ...],
    fault: Fault,
    clause: str,
    confidence: Confidence,
    more: tuple[str, ...] = (),
) -> Verdict:
    seen = [line for rank in ranks for line in sentences(rank, evidence.observations.get(rank))]
    return Verdict(
        outcome=Outcome.CULPRIT,
        ranks=ranks,
        fault=fault,
        faults=tuple((rank, fault) for rank in ranks),
        confidence=confidence,
        headline=f"{words.ranks(ranks)} {clause}",
        evidence=(*more, *seen),
        would_decide=("Recorder dumps of all ranks would show which collective it missed.",),
    )
