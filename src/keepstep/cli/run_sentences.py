"""What the operator of ``keepstep run`` reads of an event: one sentence that says what happened."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

from keepstep.runtime.mixed_world import mixed_world

Fact = dict[str, Any]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
FEW_RANKS = 8  # whose pids fit in a line


# --- parts of sentences -------------------------------------------------------------------


def who(fact: Fact) -> str:
    """Return rank, worker, process and host, as far as they are known."""
    rank, worker, pid, host = (fact.get(name) for name in ("rank", "worker", "pid", "host"))
    details = [f"worker {worker}"] if rank is not None and worker is not None else []
    details += [f"pid {pid}"] if pid else []
    details += [f"host {host}"] if host and host not in LOOPBACK else []
    name = f"rank {rank}" if rank is not None else f"worker {worker}"
    return f"{name} ({', '.join(details)})" if details else name


def how_it_ended(code: int) -> str:
    """Return what an exit code says: a signal or a code."""
    if code >= 0:
        return f"ended with exit code {code}"
    number = -code
    names = {number.value: number.name for number in signal.Signals}
    words = {int(signal.SIGSEGV): ", a segmentation fault", int(signal.SIGBUS): ", a bus error"}
    return f"was killed by {names.get(number, f'signal {number}')}{words.get(number, '')}"


def count(number: int, noun: str) -> str:
    """Return "1 step", "2 steps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listing(noun: str, numbers: Sequence[int]) -> str:
    """Return "worker 4", "workers 4 and 5", "workers 4, 5 and 7"."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    head = ", ".join(str(number) for number in numbers[:-1])
    return f"{noun}s {head} and {numbers[-1]}"


def host_of(fact: Fact) -> str:
    """Return the host by its address, and its agent."""
    return f"host {fact['host']} (agent {fact['agent']})"


# --- sentences ----------------------------------------------------------------------------


def _agent_joined(fact: Fact) -> str:
    brings = f"{count(fact['workers'], 'worker')} and {count(fact['spares'], 'spare')}"
    return f"{host_of(fact)} joined with {brings}; they are starting"


def _agent_back(fact: Fact) -> str:
    return f"{host_of(fact)} is in contact with the coordinator again"


def _agent_lost_contact(fact: Fact) -> str:
    return (
        f"no contact with {host_of(fact)}: its workers may go on for {fact['lease_s']:.1f} s, then "
        "they are fenced and replaced"
    )


def _agent_gone(fact: Fact) -> str:
    why = fact["why"]
    if "goodbye" in why:
        return f"{host_of(fact)} left"
    return f"{host_of(fact)} is down or cut off: {why}; its workers are fenced, its ranks replaced"


def _worker_joined(fact: Fact) -> str:
    return f"{who(fact)} called keepstep.join() with torch {fact['torch']}"


def _worker_ready(fact: Fact) -> str:
    kind = "a warm spare" if fact.get("rank") is None else "ready"
    return f"{who(fact)} is {kind}, {fact['after_s']:.1f} s after its start"


def _fault_injected(fact: Fact) -> str:
    if fact.get("target") == "coordinator":
        return f"injected on purpose: the coordinator is killed at step {fact['step']}"
    spec = fact.get("spec") or f"fault {fact.get('injection')}"
    return f"injected on purpose: {spec} strikes {who(fact)} at step {fact['step']}"


def _worker_exited(fact: Fact) -> str:
    if fact.get("fenced"):
        return f"{who(fact)} is fenced: its process is gone; {_plan(fact)}"
    ended = how_it_ended(fact["code"])
    if fact.get("rank") is not None and fact["generation"] > 0:
        return f"{who(fact)} {ended} during step {fact['step']}; {_plan(fact)}"
    if fact.get("ready"):
        return f"spare {who(fact)} {ended}; starting another one"
    return f"{who(fact)} {ended} before it reached Job.train"


def _plan(fact: Fact) -> str:
    """Say what happens to the rank of a lost worker."""
    spares = fact.get("spares") or []
    if fact.get("rank") is None:
        return "it had no rank"
    if spares:
        return f"replacing it with spare worker {spares[0]}"
    if fact.get("on_loss") == "shrink":
        return "no spare is ready, so the job goes on with fewer ranks"
    return "no spare is ready, so the job waits for the next one"


def _member_formed(fact: Fact) -> str:
    return f"{who(fact)} entered generation {fact['generation']} ({_taken(fact)})"


def _members_formed(fact: Fact) -> str:
    slowest = ", ".join(f"rank {row['rank']} ({_taken(row)})" for row in fact["slowest"])
    count, generation = fact["count"], fact["generation"]
    return f"{count} ranks entered generation {generation}; the slowest: {slowest}"


def _taken(fact: Fact) -> str:
    return ", ".join(
        f"{key[:-2]} {value:.2f} s" for key, value in fact.items() if key.endswith("_s")
    )


def _form_failed(fact: Fact) -> str:
    return (
        f"{who(fact)} could not enter generation {fact['generation']}: {_short(fact['error'])}; "
        "trying again with a new generation"
    )


def _form(fact: Fact) -> str:
    text = f"generation {fact['generation']} begins at step {fact['start_step']} with "
    text += listing("worker", fact["members"])
    if fact["receivers"]:
        text += f"; state goes to {listing('worker', fact['receivers'])}"
    text = f"{text}; {count(fact['lost_steps'], 'step')} to repeat"
    return f"{text}: {fact['why']}" if fact.get("why") else text


def _live(fact: Fact) -> str:
    spares, starting = fact["spares"], fact.get("starting", 0)
    ready = f"{count(spares, 'spare')} ready" + (f", {starting} starting" if starting else "")
    members, wanted = fact["world_size"], fact.get("wanted", fact["world_size"])
    ranks = count(members, "rank") if members == wanted else f"{members} of {wanted} ranks"
    verb = "is in step" if fact["generation"] == 1 else "is formed"
    return (
        f"generation {fact['generation']} {verb}: {ranks}, {ready}, "
        f"from step {fact['step']} of {fact['steps']}{_pids(fact)}"
    )


def _pids(fact: Fact) -> str:
    """Return the processes of the ranks, for the first generation of a small job on one host."""
    processes = fact.get("processes", [])
    hosts = {each["host"] for each in processes}
    if fact["generation"] > 1 or len(hosts) != 1 or fact["world_size"] > FEW_RANKS:
        return ""
    return "; rank by rank: " + listing("pid", [each["pid"] for each in processes])


def _resumed(fact: Fact) -> str:
    replaced = fact.get("replaced") or []
    since, seen = fact.get("since_s", fact["after_s"]), fact["after_s"]
    text = (
        f"generation {fact['generation']} is in step again: step {fact['step'] - 1} committed "
        f"{since:.2f} s after the {'loss' if replaced else 'fault'} "
        f"(noticed after {max(0.0, since - seen):.2f} s), "
        f"{count(fact.get('lost_steps', 0), 'step')} lost"
    )
    text += f" ({fact['why']})" if fact.get("why") else ""
    seats = dict.fromkeys((rank, worker) for rank, worker in replaced)  # a rank lost twice: once
    text += "".join(f"; rank {rank} is now worker {worker}" for rank, worker in seats)
    members, wanted = fact.get("world_size"), fact.get("wanted")
    return text if members == wanted else f"{text}; {members} of {wanted} ranks"


def _replicas_differ(fact: Fact) -> str:
    ranks = [rank for rank in fact.get("ranks") or fact["outvoted"] if rank is not None]
    if fact.get("repeated"):
        verdict = f": {fact['repeated']}"
    elif ranks:
        verdict = f": the majority contradicts {listing('rank', ranks)}, which will be replaced"
    else:
        verdict = ", and no majority says which is right"
    return (
        f"the replicas differ after {count(fact['step'], 'step')}{verdict}; nobody's live state "
        "is used, the job goes back to a snapshot on which all agreed"
    )


def _snapshot_left_out(fact: Fact) -> str:
    return (
        f"{who(fact)} could not keep a snapshot after {count(fact['step'], 'step')} in "
        f"{fact['folder']}: {fact['why']}; training goes on without new ones, and a loss that "
        "needs one goes back further or ends the job. In a container: more --shm-size"
    )


def _changed_late(fact: Fact) -> str:
    return (
        f"{who(fact)} changed its per-rank state after the last collective of step {fact['step']}: "
        "if a rank is lost there from now on, the job goes back to a snapshot"
    )


def _proven(fact: Fact) -> str:
    return (
        f"the state after {count(fact['step'], 'step')} is proven: the repetition ended in that of "
        "the rank that alone had got there"
    )


def _back_to_snapshot(fact: Fact) -> str:
    return (
        f"going back to the snapshot taken after {count(fact['step'], 'step')}: {fact['why']}; the "
        "steps since then are repeated"
    )


def _step_failed(fact: Fact) -> str:
    verb = {"memory": "ran out of memory", "device": "met a device error"}
    action = {"replace": "replacing the process", "retry": "repeating the step on all ranks"}
    return (
        f"{who(fact)} {verb.get(fact.get('origin', ''), 'raised')} in step {fact['step']}: "
        f"{_short(fact['error'])}; {action[fact.get('action', 'retry')]}"
    )


def _stall(fact: Fact) -> str:
    if fact.get("worker") is None:
        return (
            f"the job stalls in step {fact['step']} and no rank can be named: {fact['evidence']}; "
            "repeating the step with a new generation"
        )
    verb = {"stop": "is stopped", "gil": "is stuck", "hang": "hangs"}.get(fact["fault"], "stalls")
    return (
        f"{who(fact)} {verb} in step {fact['step']}, without progress for {fact['age_s']:.1f} s: "
        f"{fact['evidence']}; fencing it"
    )


def _straggler(fact: Fact) -> str:
    left = count(fact["steps_left"], "step")
    return (
        f"{who(fact)} is slow: its own part of a step takes {fact['score']:.1f} times the others', "
        f"which costs {fact['gain_per_step_s']:.2f} s a step for {left} to come; a spare "
        f"takes its place at a step boundary, for about {fact['cost_s']:.1f} s"
    )


def _blamed(fact: Fact) -> str:
    return (
        f"the diagnosis names {who(fact)}; a spare takes its place at a step boundary, as soon as "
        "one is ready"
    )


def _fence(fact: Fact) -> str:
    return f"fencing {who(fact)}: {fact['why']}"


def _halt(fact: Fact) -> str:
    return f"leaving generation {fact['generation']}: {_short(fact['why'])}"


def _waiting_for_spare(fact: Fact) -> str:
    if fact["starting"]:
        return f"no spare is ready: waiting for {listing('worker', fact['starting'])}, starting now"
    return "no spare is ready and none is starting: waiting for another host"


def _growing(fact: Fact) -> str:
    return f"{listing('worker', fact['ready'])} ready: empty ranks are filled at a step boundary"


def _finish(fact: Fact) -> str:
    sha = fact["state_sha256"][:12]
    return f"all {fact['steps']} steps are done and every replica agrees (state sha256 {sha})"


def _abort(fact: Fact) -> str:
    return f"giving up: {fact['why']}"


def _interrupted(_: Fact) -> str:
    return "interrupted: all processes of the job are being ended"


def _refused(fact: Fact) -> str:
    agent = f" of agent {fact['agent']}" if fact.get("agent") else ""
    return f"refused a connection{agent}: {fact['why']}"


def _cut_off(fact: Fact) -> str:
    return f"{host_of(fact)} is cut off: {fact['why']}"


def _coordinator_sought(fact: Fact) -> str:
    return (
        f"no coordinator answers at {fact['address']} for {fact['after_s']:.0f} s ({fact['why']}); "
        "still trying. Is keepstep run up on the first host, with --port and --host of that "
        "address?"
    )


def _held_up(fact: Fact) -> str:
    return (
        f"{host_of(fact)} did not run for {fact['seconds']:.1f} s (suspended, or starved of "
        "processors); its workers go on when the coordinator says that they are still part of the "
        "job"
    )


def _went_on(fact: Fact) -> str:
    return f"{host_of(fact)} is still part of the job: its workers go on"


def _open_for_hosts(fact: Fact) -> str:
    return (
        f"waiting for {count(fact['hosts'], 'host')} in all; the others join with the same "
        f"KEEPSTEP_SECRET and --join {fact['address']}"
    )


def _coordinator_away(fact: Fact) -> str:
    return (
        "lost contact with the coordinator; the workers of this host go on, for "
        f"{fact['lease_s']:.1f} s if the coordinator's host does not answer either"
    )


def _coordinator_back(fact: Fact) -> str:
    return f"in contact with the coordinator again after {fact['after_s']:.2f} s"


def _coordinator_exited(fact: Fact) -> str:
    return (
        f"the coordinator (pid {fact['pid']}) {_how_ours_ended(fact)}; training goes on while "
        "another one starts"
    )


def _how_ours_ended(fact: Fact) -> str:
    if stopped := fact.get("stopped_s"):
        return f"had been stopped for {stopped:.1f} s (SIGSTOP) and was killed for it"
    return how_it_ended(fact["code"])


def _store_exited(fact: Fact) -> str:
    return (
        f"the job's store (pid {fact['pid']}) {_how_ours_ended(fact)}; training goes on, but "
        "processes that run now cannot reach its successor: the next loss costs the way back to a "
        "snapshot"
    )


def _job_joined(fact: Fact) -> str:
    return (
        f"joined the job of the coordinator at {fact['coordinator']}; what happens is told on the "
        "host that was started first"
    )


def _metrics(fact: Fact) -> str:
    return f"metrics for Prometheus: {fact['url']}"


def _checkpoint_saved(fact: Fact) -> str:
    held = f"{fact['held_s'] * 1000:.0f} ms"
    return (
        f"checkpoint {fact['folder']} after {fact['seconds']:.1f} s; training was held for {held}"
    )


def _checkpoint_left_out(fact: Fact) -> str:
    return f"no checkpoint of step {fact['step']}: {fact['why']}"


def _from_checkpoint(fact: Fact) -> str:
    return f"the job goes on from a checkpoint of step {fact['step']}"


def _torch_versions_differ(fact: Fact) -> str:
    return f"{mixed_world(fact['found'])}; seen at {who(fact)}"


def _incident(fact: Fact) -> str:
    return f"evidence of the fault is in {fact['folder']}"


def _incident_lost(fact: Fact) -> str:
    return f"the evidence of {fact['incident']} could not be written: {fact['why']}"


def _events_lost(fact: Fact) -> str:
    return f"events cannot be written: {fact['why']}; training goes on"


def _unjudged(fact: Fact) -> str:
    return f"no verdict on {fact['incident']}; try: keepstep explain {fact['folder']}"


def _verdict(fact: Fact) -> str:
    return (
        f"diagnosis ({fact['fault'] or fact['verdict']}): {fact['headline']}; more: "
        f"keepstep explain {fact['folder']}"
    )


SENTENCES: dict[str, Callable[[Fact], str]] = {
    "abort": _abort,
    "agent_back": _agent_back,
    "agent_gone": _agent_gone,
    "agent_joined": _agent_joined,
    "agent_lost_contact": _agent_lost_contact,
    "back_to_snapshot": _back_to_snapshot,
    "snapshot_left_out": _snapshot_left_out,
    "changed_late": _changed_late,
    "checkpoint_left_out": _checkpoint_left_out,
    "checkpoint_saved": _checkpoint_saved,
    "coordinator_away": _coordinator_away,
    "coordinator_back": _coordinator_back,
    "coordinator_exited": _coordinator_exited,
    "store_exited": _store_exited,
    "coordinator_sought": _coordinator_sought,
    "cut_off": _cut_off,
    "events_lost": _events_lost,
    "fault_injected": _fault_injected,
    "fence": _fence,
    "finish": _finish,
    "form": _form,
    "form_failed": _form_failed,
    "from_checkpoint": _from_checkpoint,
    "growing": _growing,
    "halt": _halt,
    "held_up": _held_up,
    "incident": _incident,
    "incident_lost": _incident_lost,
    "interrupted": _interrupted,
    "job_joined": _job_joined,
    "live": _live,
    "member_formed": _member_formed,
    "members_formed": _members_formed,
    "metrics": _metrics,
    "refused": _refused,
    "proven": _proven,
    "replicas_differ": _replicas_differ,
    "resumed": _resumed,
    "stall": _stall,
    "step_failed": _step_failed,
    "straggler": _straggler,
    "blamed": _blamed,
    "torch_versions_differ": _torch_versions_differ,
    "unjudged": _unjudged,
    "open_for_hosts": _open_for_hosts,
    "verdict": _verdict,
    "waiting_for_spare": _waiting_for_spare,
    "went_on": _went_on,
    "worker_exited": _worker_exited,
    "worker_joined": _worker_joined,
    "worker_ready": _worker_ready,
}


def sentence(fact: Fact) -> str:
    """Return an event in words; one that is unknown or lacks a fact, as its facts."""
    write = SENTENCES.get(fact["event"])
    if write is not None:
        try:
            return write(fact)
        except (KeyError, TypeError, ValueError):
            pass  # another version of the coordinator: better plain facts than none
    hidden = ("time", "event")
    parts = [f"{k}={v}" for k, v in fact.items() if k not in hidden and v is not None]
    return " ".join([fact["event"], *parts])


def _short(text: str, limit: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
