"""The decisions of a job, without any input or output: messages in, messages out.

``Membership`` is the coordinator's mind. It is told what agents and workers say and what time it
is; it answers with messages to agents and with facts for the event log. Another process can take
it up (``journal``): what agents repeat in their ``Hello`` fills in the rest.

One change of members goes through these phases::

    GATHERING -> FORMING -> LIVE -> HALTING -> FORMING -> LIVE ... -> FINISHING -> ENDED

HALTING ends when every lost worker is known to be gone and every survivor has left its step and
said what it holds. Only then is the next generation formed: fence first, reconfigure after.

This file takes what comes in. What follows from it is in ``reports`` (what workers say), ``exits``,
``watch`` (what does not happen), ``blame`` (what a diagnosis says), ``hosts``, ``faults``,
``changes`` (the halt), ``forming`` (the next generation) and ``phases`` (from one to the next);
what is known is in ``job_state``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.runtime import protocol as p
from keepstep.runtime import reports
from keepstep.runtime.blame import on_judged, replace_blamed
from keepstep.runtime.changes import begin_change
from keepstep.runtime.exits import on_exited
from keepstep.runtime.faults import interrupt
from keepstep.runtime.hosts import agent_is_gone, fence_forgotten, fill
from keepstep.runtime.job_state import JobState
from keepstep.runtime.phases import go_on
from keepstep.runtime.roster import Agent, Phase, Worker
from keepstep.runtime.watch import (
    look_around,
    on_beat,
    overdue_form,
    overdue_halt,
    unexplained_failures,
)

LONGEST_TICK = 0.5  # seconds between two ticks
ANSWER = 0.5  # of the time between two beats: nobody is given another lease so soon
ENOUGH_LEASE = 0.6  # of a lease: with that much left it can wait until the generation lives
LAST_HOSTS = 300.0  # seconds that hosts may be silent when no other could go on without them
FENCE_MARGIN = 0.5  # seconds that a cut-off agent gets to kill its workers after its lease ended


@dataclass(slots=True)
class Membership(JobState):
    """The state of one job and what changes it; see the module's text."""

    def on_hello(self, hello: p.Hello, now: float) -> None:
        """An agent came (back); what it repeats is taken as if it were new."""
        self.now = now
        known = self.agents.get(hello.agent)
        if known is None and len(self.agents) >= self.settings.max_agents:
            why = f"this job takes {self.settings.max_agents} agents and has them"
            self.send(hello.agent, p.Abort(why=why, code=2))
            return
        agent = Agent(
            hello.agent,
            hello.host,
            hello.address,
            hello.workers,
            hello.workers + hello.spares,
            heard=now,
            leased_until=known.leased_until if known is not None else 0.0,
        )
        self.agents[hello.agent] = agent
        self.event(
            "agent_joined" if known is None else "agent_back",
            agent=hello.agent,
            host=hello.host,
            workers=hello.workers,
            spares=hello.spares,
        )
        if known is None:
            fence_forgotten(self, hello.agent, hello.wids)
        times = self.grant_lease(agent)
        welcome = p.Welcome(
            sent=hello.sent,
            patience=times.patience,
            world_size=self.settings.world_size,
            store=self.store,
            injections=self.injections,
        )
        self.send(hello.agent, welcome)
        self._repeat(hello)
        self._tell_end(hello.agent)
        go_on(self)
        fill(self, agent, set(hello.wids))
        self.changed = True

    def _tell_end(self, agent: str) -> None:
        """Tell an agent that comes (back) late what the others were told."""
        if self.phase is Phase.LIVE:
            every, ahead = self.snapshots.interval, self.boundary()
            self.send(agent, p.SnapshotEvery(every=every, from_step=ahead))
        elif self.phase is Phase.FINISHING:
            self.send(agent, p.Finish())
        elif self.phase is Phase.ENDED:
            self.send(agent, p.Abort(why=self.why, code=self.exit_code))

    def _repeat(self, hello: p.Hello) -> None:
        """Take in what an agent knows of its workers after a loss of contact."""
        told = set()
        for body in hello.standing:
            message = p.from_dict(body)
            wid = getattr(message, "wid", None)
            if not isinstance(wid, int):
                continue
            if wid < 0:
                self._take(hello.agent, message)
                continue
            told.add(wid)
            self.next_wid = max(self.next_wid, wid + 1)
            if wid not in self.workers:
                spare = self.settings.world_size + wid
                self.add_worker(Worker(wid, hello.agent, self.now, first_rank=spare))
            if not self.workers[wid].gone:
                self._take(hello.agent, message)
        for worker in self.alive_at(hello.agent):
            if worker.fencing:
                self.send(hello.agent, p.Fence(wid=worker.wid, why=worker.fencing))
        if self.phase is Phase.FORMING:
            begin_change(self, "an agent came back during a recovery")
        elif self.phase is Phase.HALTING and self.change is not None:
            wids = self.alive(self.members)
            halt = p.Halt(generation=self.generation, wids=wids, at_step=self.change.at_step)
            self.send(hello.agent, halt)

    def on_disconnect(self, agent: str, now: float) -> None:
        """The connection to an agent ended; its lease decides what that means."""
        self.now = now
        if agent in self.agents and self.agents[agent].connected:
            self.agents[agent].connected = False
            self.agents[agent].heard = now
            self.grant_lease(self.agents[agent])
            self.event(
                "agent_lost_contact",
                agent=agent,
                host=self.agents[agent].host,
                lease_s=round(self.times.lease, 3),
            )

    def on_message(self, agent: str, message: p.Message, now: float) -> None:
        """Take one message of an agent."""
        self.on_messages(agent, [message], now)

    def on_messages(self, agent: str, messages: Sequence[p.Message], now: float) -> None:
        """Take what arrived from an agent in one piece.

        What its workers say alike is taken together: what it allows is looked at once, not once
        for every worker.
        """
        self.now = now
        last = len(messages) - 1
        for place, message in enumerate(messages):
            if agent not in self.agents:
                return  # it counts as gone; it has to introduce itself anew
            self.agents[agent].heard = now
            self._take(agent, message)
            if place < last and type(messages[place + 1]) is type(message):
                continue
            if self.phase is not Phase.LIVE or not isinstance(message, p.Beat):
                go_on(self)  # else the next tick does: beats are many, what they allow is rare

    def _take(self, agent: str, message: p.Message) -> None:
        if isinstance(message, p.Beat):
            on_beat(self, message, self.times.patience)
            self._answer(self.agents[agent], message)
        elif isinstance(message, p.Exited):
            on_exited(self, message)
        elif isinstance(message, p.Goodbye):
            agent_is_gone(self, agent, "it said goodbye")
        elif isinstance(message, p.Interrupted):
            interrupt(self)
        elif isinstance(message, p.Kept):
            self._on_kept(message)
        elif isinstance(message, p.Judged):
            on_judged(self, message)
        elif isinstance(message, p.SampleRows):
            self.sample_rows += message.rows
            self.agents_reported.add(agent)
        elif isinstance(message, p.Fired) and message.wid < 0:
            if message.index not in self.fired:
                self.event("fault_injected", target="coordinator", step=message.step)
            self.fired.add(message.index)
            self.changed = True
        elif isinstance(message, p.Report) and message.wid in self.workers:
            reports.HANDLERS[type(message)](self, self.workers[message.wid], message)

    def _answer(self, agent: Agent, beat: p.Beat) -> None:
        """Extend the agent's lease, unless that was done a moment ago.

        While a rank stalls beats come often, from all hosts, and there are more urgent answers. In
        a change of members most of a lease is enough.
        """
        left = agent.leased_until - self.now
        if self.phase is not Phase.LIVE and left > ENOUGH_LEASE * self.times.lease:
            return
        if self.now - agent.answered >= ANSWER * self.times.beat:
            agent.answered = self.now
            times = self.grant_lease(agent)
            self.send(agent.name, p.Lease(sent=beat.sent, patience=times.patience))

    def _on_kept(self, message: p.Kept) -> None:
        worker = self.workers.get(message.wid)
        if worker is not None and worker.recalled is not None:
            worker.recalled = None
            # What was pulled before the last generation lived may be of steps that were undone.
            known = self.sure_count(message.committed, message.entry)
            worker.known = known if message.generation >= self.last_live else -1
            self.changed = True

    def _notice_pause(self, now: float) -> None:
        """Give everybody time to be heard after this process has been held up.

        Perhaps they were as well: a whole job can be suspended. None of them uses what it computes
        after its lease has ended, so it costs nothing but time to believe in them a little longer.
        """
        held_up = self.pauses.look(now) > 0
        self.pauses.will_look(now, LONGEST_TICK)
        if held_up:
            for agent in self.agents.values():
                agent.leased_until = max(agent.leased_until, now + self.times.lease)

    def _given_up(self) -> list[Agent]:
        """Return the agents that have been silent for too long.

        Where none is left that could go on without them, giving them up would only end the job:
        their workers end by themselves, but what lies in their vaults is still there.
        """
        silent = [a for a in self.agents.values() if self.now > a.leased_until + FENCE_MARGIN]
        if len(silent) < len(self.agents):
            return silent
        return [agent for agent in silent if self.now > agent.leased_until + LAST_HOSTS]

    def tick(self, now: float) -> None:
        """Act on what did not happen. Called at least every ``LONGEST_TICK`` seconds."""
        self.now = now
        self._notice_pause(now)
        for agent in self._given_up():
            agent_is_gone(self, agent.name, f"no news for {now - agent.heard:.1f} s")
        if self.phase is Phase.LIVE:
            unexplained_failures(self, now)
            look_around(self)
            replace_blamed(self)
        elif self.phase is Phase.HALTING and self.change is not None:
            overdue_halt(self, now)
        elif self.phase is Phase.FORMING:
            overdue_form(self)
        go_on(self)
