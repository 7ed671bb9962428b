"""The actor's shell: its env groups and the servers that they use. One loop, one poller, no torch."""

import time
from collections.abc import Callable
from typing import Any

from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.common.service.base import Service
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import Poller, random_id
from zerobeast.common.transport.lookup import Lookup, Lookups, Resolve
from zerobeast.common.wire import MAX_ENV_SEED
from zerobeast.common.wire.messages import Plane
from zerobeast.common.wire.seeds import continue_seed
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.peers import Peers
from zerobeast.services.actor.servers import Servers
from zerobeast.services.actor.waits import TIMEOUTS, Timeouts, Wait, Waits

RATE_SPAN_S = 5.0
DRAIN_S = 1.0


class Actor(Service):
    """Drives env groups, asks brokers for actions, pushes rollouts to the learner.

    Args:
      config: of the run.
      instance: which actor this is.
      timeouts: how long it waits for what.
      clock: monotonic seconds.
      resolve: finds the addresses of a server's name.
    """

    role = "actor"

    def __init__(
        self,
        config: RunConfig,
        instance: Instance,
        *,
        timeouts: Timeouts = TIMEOUTS,
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolve = Endpoint.addresses,
    ) -> None:
        super().__init__(clock=clock)
        self.config, self._index = config, instance.index
        learner = config.learner
        if len(learner.endpoints) != learner.ranks:
            expected = f"{learner.ranks - 1}, one for each rank after the first of learner.ranks {learner.ranks}"
            raise ConfigError(f"learner.rank_endpoints {learner.rank_endpoints!r}: expected {expected}")
        self.sender = random_id(instance.index)
        now, count = self.clock(), config.actor.env_groups
        first = count * (self.sender if instance.index is None else instance.index)  # counted over all actors' groups

        def group(slot: int) -> EnvGroup:
            own, seed = assign_group(config, first + slot, instance.start)
            return EnvGroup(own, self.sender, slot, seed, Waits(now, self.hops), timeouts)

        self.groups = [group(slot) for slot in range(count)]
        more = self.sender, count, first, timeouts
        self._env_servers = Servers(Plane.STEPS, Lookup(config.envserver.endpoint, resolve), *more)
        brokers = Servers(Plane.INFERENCE, Lookup(config.broker.endpoint, resolve), *more)
        self._learners = Servers(Plane.ROLLOUTS, Lookups(config.learner.endpoints, resolve), *more)
        self.servers = [self._env_servers, brokers, self._learners]
        self._peers = Peers(self.groups, self.servers, timeouts, config.actor.connect_timeout_s, now)
        self._window = SlidingWindow(RATE_SPAN_S)

    def open(self) -> None:
        """Connect; names that do not resolve yet are looked up again.

        Raises:
          ConfigError: the run is deterministic, and this actor has no index.
        """
        if self.config.deterministic and self._index is None:
            raise ConfigError(path="index", expected="an index, because a deterministic run orders its actors by index")
        self._peers.open(self.open_context(self.config.security), self.clock())
        self.resources.callback(self._peers.close)
        self.poller = self._peers.poller

    def take(self) -> None:
        self._peers.take(self.clock())

    def tick(self, now: float) -> None:
        """Handle servers that appear, leave or stay silent."""
        self._peers.tick(now, self.awake_since)
        self.poller = self._peers.poller

    def deadline(self) -> float:
        return self._peers.deadline()

    def idle(self) -> bool:
        """Whether env-servers still make all environments, or all groups wait for a learner that answers."""
        waits = [group.waits.current is Wait.CREDIT and group.rollouts.outbox.stream.open for group in self.groups]
        return all(waits) or self._peers.is_preparing(self._env_servers, self.clock())

    def drain(self) -> None:
        """Give complete rollouts a moment to be acknowledged, then send BYE."""
        until = self.clock() + DRAIN_S
        while self.clock() < until and any(group.rollouts.outbox.in_transit for group in self.groups):
            Poller(self._learners.ports.values()).wait(0.05)
            self._peers.receive(self._learners, self.clock())
        self._peers.farewell()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last few seconds."""
        groups, outboxes = self.groups, [group.rollouts.outbox for group in self.groups]
        refused, now = self._peers.refused, self.clock()
        peers = {"envserver": Plane.STEPS, "broker": Plane.INFERENCE}
        cut = {peer: sum(group.planes[plane].cut for group in groups) for peer, plane in peers.items()}
        return {
            "groups": len(groups),
            "envs": sum(group.num_envs for group in groups),
            "agent_steps": sum(group.steps.agent_steps for group in groups),
            "rollouts_sent": sum(outbox.sent for outbox in outboxes),
            "unacked": sum(outbox.unacked for outbox in outboxes),
            "rollouts": sum(group.rollouts.outbox.seq * group.rollouts_each for group in groups),
            "rollouts_cut": sum(cut.values()),
            "rollouts_cut_by_peer": cut,
            "streams": [
                [each.stream.slot, group.rollouts_each, each.seq, each.acked]
                for group, each in zip(groups, outboxes, strict=True)
            ],
            "sender": self.sender,
            "policy_version": max(group.inference.version for group in groups),
            "policy_version_drops": sum(group.inference.version_drops for group in groups),
            "episodes_dropped": sum(outbox.episodes_dropped for outbox in outboxes),
            "reconnects": self._peers.reconnects,
            "moves": self._peers.moves,
            "setbacks": sum(link.stream.setbacks for link in self._peers.links),
            "trouble": self._peers.trouble(now, self.awake_since),
            "refused": refused.total(),
            "refused_by_reason": dict(refused),
            **self._rates(now),
        }

    def _rates(self, now: float) -> dict[str, float]:
        for group in self.groups:
            group.waits.book(now)
        waited = [sum(group.waits.seconds[wait] for group in self.groups) for wait in Wait]
        steps_per_s, *shares = self._window.per_s(now, sum(group.steps.agent_steps for group in self.groups), *waited)
        fractions = {
            f"waiting_{wait}_fraction": round(share / len(self.groups), 3)
            for wait, share in zip(Wait, shares, strict=True)
        }
        return {"agent_steps_per_s": round(steps_per_s, 1), **fractions}


def assign_group(config: RunConfig, group: int, start: int) -> tuple[RunConfig, int]:
    """The settings of a group, which is numbered over all actors, and the seed of its first environment.

    In a run with several environments each group has one, dealt out in turn. The seeds of different groups never
    overlap, nor do those of nearby run seeds. Those of an actor without an index, for which a random id stands in, and
    of a run that continues, almost certainly do not.
    """
    own = config.env.for_task(config.env.tasks[group % len(config.env.tasks)])
    seed = continue_seed(config.seed * 1_000_003 + group * config.actor.envs_per_group, start) % (MAX_ENV_SEED + 1)
    return config.model_copy(update={"env": own}), seed
