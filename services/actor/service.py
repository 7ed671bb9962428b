"""The actor's shell: its env groups and the servers that they talk to. One loop, one poller, no torch."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import PeerLost, Refusal
from zerobeast.common.runtime.seeds import MAX_ENV_SEED, continued
from zerobeast.common.service.base import MAX_POLL_S, Service
from zerobeast.common.service.entry import Instance
from zerobeast.common.transport import ClientPort, Poller, open_context, random_id
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.stream import Stream
from zerobeast.services.actor.directory import Directory
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.servers import Servers
from zerobeast.services.actor.waits import Wait

log = logging.getLogger(__name__)

SILENT_S = 10.0  #: of a server that could be asked, before another one or a new connection is tried
ABSENT_S = 1.0  #: of a server that cannot even be asked, before another one is
MOST_DOUBLINGS = 3  #: of both, one for each move in vain: if all servers are slow, moving only loses what they began
RATE_PERIOD_S = 5.0
DRAIN_S = 1.0


class Actor(Service):
    """Drives env groups, asks brokers for actions, pushes rollouts to the learner.

    Args:
      config: of the run.
      instance: which actor this is.
    """

    role = "actor"

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        super().__init__(supervisor_pid=instance.supervisor_pid)
        self.config = config
        self.sender = random_id()
        now = self.clock()
        count, size = config.actor.env_groups, config.actor.envs_per_group
        place = self.sender if instance.index is None else instance.index
        numbers = range(place * count, (place + 1) * count)  # of its groups among those of all actors
        seeds = (_seed(config.seed, number * size, instance.start) for number in numbers)
        self.groups = [
            EnvGroup(_of_group(config, number), self.sender, slot, seed, now, self.hops)
            for slot, (number, seed) in enumerate(zip(numbers, seeds, strict=True))
        ]
        endpoints = {
            Plane.STEPS: config.envserver.endpoint,
            Plane.INFERENCE: config.broker.endpoint,
            Plane.ROLLOUTS: config.learner.endpoint,
        }
        self._servers = {
            plane: Servers(
                plane, endpoint, self.sender, Directory(count, place * count, spread=plane is not Plane.ROLLOUTS)
            )
            for plane, endpoint in endpoints.items()
        }
        self._tried_at = {(plane, slot): now for plane in endpoints for slot in range(count)}
        self._absent_since: dict[tuple[Plane, int], float] = {}
        self._moved_at = dict(self._tried_at)
        self._moves_in_vain: Counter[tuple[Plane, int]] = Counter()  #: since the stream was last open
        self._troubled: set[tuple[Plane, int]] = set()
        self._reconnects = self._moves = 0
        self._past = (now, 0, dict.fromkeys(Wait, 0.0))
        self._rates: dict[str, float] = {}

    def open(self) -> None:
        """Connect; names that do not resolve yet are looked up again."""
        self._context = open_context(self.config.security, self.role)
        self._poller = Poller()
        self._look_for_servers(self.clock())

    def poll(self, timeout_s: float) -> None:
        """Wait for replies, then act on all that are there."""
        self._send_due(self.clock())
        if not all(servers.ports for servers in self._servers.values()):
            timeout_s = MAX_POLL_S  # what is due there cannot leave, and must not make the loop spin
        self.wait(self._poller, timeout_s)
        now = self.clock()
        for plane, servers in self._servers.items():
            self._receive(plane, servers, now)
        self._send_due(now)

    def tick(self, now: float) -> None:
        """Look after servers that come, leave or stay silent."""
        self._look_for_servers(now)
        for plane, streams in self._streams().items():
            for stream in streams:
                self._watch(plane, stream, now)

    def deadline(self) -> float:
        """When something has to be repeated."""
        return min(group.deadline() for group in self.groups)

    def drain(self) -> None:
        """Give rollouts that are complete a moment to leave, then say goodbye."""
        until, learner = self.clock() + DRAIN_S, self._servers[Plane.ROLLOUTS]
        while self.clock() < until and any(group.outbox.in_transit for group in self.groups):
            Poller(learner.ports.values()).wait(0.05)
            self._receive(Plane.ROLLOUTS, learner, self.clock())
        for plane, streams in self._streams().items():
            for stream in streams:
                self._farewell(plane, stream)

    def close(self) -> None:
        """Close the sockets."""
        for servers in self._servers.values():
            servers.close()
        if hasattr(self, "_context"):
            self._context.term()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last few seconds."""
        self._measure(self.clock())
        refused = sum((servers.refused for servers in self._servers.values()), Counter[Refusal]())
        return {
            "groups": len(self.groups),
            "envs": sum(group.num_envs for group in self.groups),
            "agent_steps": sum(group.agent_steps for group in self.groups),
            "rollouts_sent": sum(group.outbox.sent for group in self.groups),
            "unacked": sum(group.outbox.unacked for group in self.groups),
            "rollouts": sum(group.outbox.seq * group.num_envs for group in self.groups),
            "rollouts_cut": sum(sum(group.cut.values()) for group in self.groups),
            "rollouts_cut_by_peer": {
                peer: sum(group.cut[peer] for group in self.groups) for peer in self.groups[0].cut
            },
            "streams": [[group.slot, group.num_envs, group.outbox.seq, group.outbox.acked] for group in self.groups],
            "sender": self.sender,
            "policy_version": max(group.version for group in self.groups),
            "policy_version_drops": sum(group.version_drops for group in self.groups),
            "episodes_dropped": sum(group.outbox.episodes_dropped for group in self.groups),
            "reconnects": self._reconnects,
            "moves": self._moves,
            "setbacks": sum(stream.setbacks for streams in self._streams().values() for stream in streams),
            "trouble": self._trouble(self.clock()),
            "refused": refused.total(),
            "refused_by_reason": dict(refused),
            **self._rates,
        }

    def _look_for_servers(self, now: float) -> None:
        changed = False
        for plane, servers in self._servers.items():
            for slot in servers.refresh(now):
                self._abandon(plane, slot, now)
            changed |= servers.connect(self._context)
            if servers.lost and not servers.ports and now - self.awake_since > self.config.actor.connect_timeout_s:
                raise servers.lost
        if changed:
            self._renew_poller()

    def _send_due(self, now: float) -> None:
        for plane, servers in self._servers.items():
            for group in self.groups:
                if port := servers.port_of(group.slot):
                    self._send(plane, port, group, now)

    def _send(self, plane: Plane, port: ClientPort, group: EnvGroup, now: float) -> None:
        while work := group.due(plane, now):
            header, frames = work
            if not port.send(header, *frames, copy=plane is not Plane.ROLLOUTS):
                self._absent_since.setdefault((plane, group.slot), now)
                return
            self._absent_since.pop((plane, group.slot), None)
            group.mark_sent(plane, now)
            if header.kind is Kind.HELLO or plane is not Plane.ROLLOUTS:
                return

    def _receive(self, plane: Plane, servers: Servers, now: float) -> None:
        dismissed = []
        for port, message in servers.received():
            group = self.groups[message.header.slot]
            was_open = group.stream(plane).open
            group.take(plane, message, port.refuse, now)
            if message.header.kind is Kind.BYE and was_open and not group.stream(plane).open:
                dismissed.append(group.slot)
        for slot in dismissed:
            self._try_elsewhere(plane, slot, now)

    def _streams(self) -> dict[Plane, list[Stream]]:
        return {
            Plane.STEPS: [group.steps for group in self.groups],
            Plane.INFERENCE: [group.inference for group in self.groups if group.env],
            Plane.ROLLOUTS: [group.outbox.stream for group in self.groups if group.policy],
        }

    def _watch(self, plane: Plane, stream: Stream, now: float) -> None:
        """Give up on a server that stays away too long; before, try another one or a new connection.

        Raises:
          PeerLost: nobody has answered for `actor.connect_timeout_s`, or had room.
        """
        silence = min(stream.silent_s(now), now - self.awake_since)
        if silence > (limit_s := self.config.actor.connect_timeout_s):
            raise PeerLost(self._complaint(plane, stream, limit_s))
        key = (plane, stream.slot)
        self._note_trouble(key, stream.trouble)
        if stream.open:
            self._moves_in_vain.pop(key, None)
        if self._servers[plane].port_of(stream.slot) is None:
            self._tried_at[key] = self._moved_at[key] = now  # its name is unknown: there is nothing to be silent yet
        if self._is_gone(key, stream, silence, now) and self._try_elsewhere(plane, stream.slot, now):
            return
        if min(silence, now - self._tried_at[key]) > SILENT_S and not stream.busy:
            self._reopen(plane, stream.slot, now)

    def _is_gone(self, key: tuple[Plane, int], stream: Stream, silence: float, now: float) -> bool:
        """Whether a server is worth leaving: it cannot be asked, is silent, or sends nothing that can be used."""
        here = now - self._moved_at[key]
        absent = min(here, now - self._absent_since.get(key, now))
        useless = here if stream.trouble else min(here, silence)
        patience = 2.0 ** min(self._moves_in_vain[key], MOST_DOUBLINGS)
        return absent > ABSENT_S * patience or useless > SILENT_S * patience

    def _complaint(self, plane: Plane, stream: Stream, silence_s: float) -> str:
        """What is wrong with a server that has given no answer for so long."""
        port = self._servers[plane].port_of(stream.slot)
        return stream.complaint(port.malformed if port else 0, silence_s)

    def _note_trouble(self, key: tuple[Plane, int], trouble: str) -> None:
        """Say it once, when it begins."""
        if trouble and key not in self._troubled:
            log.warning("%s: it is asked less often", trouble)
            self._troubled.add(key)
        elif not trouble:
            self._troubled.discard(key)

    def _trouble(self, now: float) -> str:
        """What keeps groups from going on: the first sentence of all, and how many more there are."""
        found = [str(servers.lost) for servers in self._servers.values() if servers.lost and not servers.ports]
        for plane, streams in self._streams().items():
            for stream in streams:
                silence = min(stream.silent_s(now), now - self.awake_since)
                found += [stream.trouble] if stream.trouble else []
                found += [self._complaint(plane, stream, round(silence))] if silence > SILENT_S else []
        return found[0] + (f" (and {len(found) - 1} more)" if found[1:] else "") if found else ""

    def _try_elsewhere(self, plane: Plane, slot: int, now: float) -> bool:
        """Move a group to another server, if there is one."""
        servers = self._servers[plane]
        if not servers.elsewhere(slot, now):
            return False
        self._abandon(plane, slot, now)
        servers.connect(self._context)
        self._renew_poller()
        return True

    def _abandon(self, plane: Plane, slot: int, now: float) -> None:
        group = self.groups[slot]
        self._farewell(plane, group.stream(plane))
        group.abandon(plane, now)
        self._moves += 1
        self._moves_in_vain[plane, slot] += 1
        self._tried_at[plane, slot] = self._moved_at[plane, slot] = now
        self._absent_since.pop((plane, slot), None)

    def _farewell(self, plane: Plane, stream: Stream) -> None:
        """Also to a server that has not answered yet: it may be making environments."""
        self._servers[plane].say(Header(Kind.BYE, self.sender, stream.slot, stream.epoch))

    def _reopen(self, plane: Plane, slot: int, now: float) -> None:
        servers = self._servers[plane]
        for other in servers.sharing(slot):
            self._tried_at[plane, other] = now
            self.groups[other].stream(plane).ask_again(now)
        self._reconnects += 1
        log.warning("%s: connecting anew", self._complaint(plane, self.groups[slot].stream(plane), SILENT_S))
        servers.reopen(slot)
        self._renew_poller()

    def _renew_poller(self) -> None:
        self._poller = Poller([port for servers in self._servers.values() for port in servers.ports.values()])

    def _measure(self, now: float) -> None:
        for group in self.groups:
            group.waits.book(now)
        then, steps_then, waited_then = self._past
        if now - then < min(RATE_PERIOD_S, now - self.started_at):
            return
        span = max(now - then, 1e-9)
        steps = sum(group.agent_steps for group in self.groups)
        waited = {wait: sum(group.waits.seconds[wait] for group in self.groups) for wait in Wait}
        self._past = (now, steps, waited)
        self._rates = {"agent_steps_per_s": round((steps - steps_then) / span, 1)}
        for wait in Wait:
            share = (waited[wait] - waited_then[wait]) / (span * len(self.groups))
            self._rates[f"waiting_{wait}_fraction"] = round(share, 3)


def _of_group(config: RunConfig, group: int) -> RunConfig:
    """Of a run with several environments a group has one; the groups of all actors take turns."""
    tasks = config.env.tasks
    return config.model_copy(update={"env": config.env.alone(tasks[group % len(tasks)])})


def _seed(run_seed: int, envs_before: int, start: int) -> int:
    """Of a group's first environment. Those of different groups never overlap, nor do those of nearby run seeds.

    Where a random id stands for the index of an actor without one, they differ in every run and are as good as certain
    not to overlap. As certain is that a run which continues does not repeat the seeds of an earlier start.
    """
    return continued(run_seed * 1_000_003 + envs_before, start) % (MAX_ENV_SEED + 1)
