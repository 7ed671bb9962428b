"""A client for programs that step themselves: a game, a robot, a simulator that cannot be stepped from outside.

    env = OwnEnv("Catch-v0", Box(0, 1, (50,)), Discrete(3))
    with PolicyClient("tcp://host:5555", "tcp://host:5560", env) as client:
        while True:
            action = client.start(game.restart())            # the first observation of an episode
            while not game.over:
                obs, reward = game.play(action)
                if not game.over:
                    action = client.act(obs, reward)         # the reward that the last action brought
            client.end(obs, reward, terminated=True)         # the last observation, of which no action follows

To broker and learner it looks like an actor.
"""

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerobeast.clients.own_env import OwnEnv
from zerobeast.common.errors import ConfigError, EnvError, PeerLost
from zerobeast.common.health.hops import Hops
from zerobeast.common.service.base import STANDSTILL_S
from zerobeast.common.service.loop import MAX_WAIT_S
from zerobeast.common.transport import Context, Keys, random_id
from zerobeast.common.transport.lookup import Lookup, Lookups
from zerobeast.common.wire import EnvSpec
from zerobeast.common.wire.episodes import MAX_RETURN
from zerobeast.common.wire.messages import Plane
from zerobeast.services.actor.group import AgentGroup
from zerobeast.services.actor.peers import Peers
from zerobeast.services.actor.servers import Servers
from zerobeast.services.actor.waits import TIMEOUTS, Wait, Waits

MAX_AGENTS = 1024
Row = NDArray[np.void]
Masks = Mapping[int, ArrayLike]  #: agent -> which of the choices of all components are legal


@dataclass
class _Episode:
    """What has been reported of an episode in progress."""

    total: float = 0.0
    length: int = 0


class PolicyClient(AbstractContextManager["PolicyClient"]):
    """Asks a broker for actions and sends the resulting rollouts to the learner. For use by one thread.

    Each agent plays its own episodes: `start`, then `act` any number of times, then `end`. Any amount of time may pass
    between two calls. Agents that ask together (`start_many`, `act_many`) share a batch of the broker.

    A server restart costs at most the rollouts in progress. Every call, and the constructor, returns or raises within
    `timeout_s`. A call that raises PeerLost gives up the episodes that it concerned, and `start` may begin new ones.

    Args:
      broker, learner: their endpoints.
      env: the environment that it plays: an `OwnEnv` or, without gymnasium, an `EnvSpec`.
      agents: how many agents there are, numbered from 0.
      when_full: what to do while the learner's window for rollouts is full: "wait", or go on and "drop" the newest
        one. A client that drops does not wait for an absent learner either.
      timeout_s: how long a call may take; also an attribute.
      keys: folder of keys, with which the process is an actor; None: no encryption.
      context: context to use instead of one of its own.

    Raises:
      ConfigError: an argument is wrong, or (in any method) a server refuses.
      EnvError: no server would accept these spaces; in other methods, an argument or the order of calls is wrong, and
        nothing was done.
      PeerLost: no answer in time (in any method).

    Examples:
      A run with the placement `serve` has a learner and a broker, and no environments:

      >>> import numpy as np
      >>> import zerobeast as zb
      >>> env = zb.EnvSpec("Catch-v0", zb.ArraySpace.box((50,)), zb.ArraySpace.discrete(3))
      >>> endpoints = "tcp://127.0.0.1:5555", "tcp://127.0.0.1:5560"
      >>> how = {"preset": "classic-ppo", "local": {"placement": "serve"}}
      >>> with zb.start("Catch-v0", "ppo", total_steps=2_000, name="catch", **how) as run:
      ...     with zb.PolicyClient(*endpoints, env, keys=run.folder / "keys") as client:
      ...         action = client.start(np.zeros(50, np.float32))
      ...         client.end(np.ones(50, np.float32), reward=1.0, terminated=True)
      ...         client.report()["episodes"]
      1
    """

    def __init__(
        self,
        broker: str,
        learner: str,
        env: OwnEnv | EnvSpec,
        *,
        agents: int = 1,
        when_full: Literal["wait", "drop"] = "wait",
        timeout_s: float = 60.0,
        keys: str | Path | None = None,
        context: Context | None = None,
    ) -> None:
        if when_full not in ("wait", "drop"):
            raise ConfigError(argument="when_full", value=when_full, expected="'wait' or 'drop'")
        if type(agents) is not int or not 0 < agents <= MAX_AGENTS:
            raise ConfigError(argument="agents", value=agents, expected=f"1 to {MAX_AGENTS}")
        if context is not None and keys is not None:
            raise ConfigError("keys and a context are given, expected one of them: a context has its own keys")
        self.timeout_s = timeout_s
        self._env = OwnEnv.of(env) if isinstance(env, EnvSpec) else env
        self.spec = self._env.spec
        self._playing: list[_Episode | None] = [None] * agents
        self._finished = self._abandoned = 0
        sender, now = random_id(), time.monotonic()
        self._awake_since = self._turned_at = now
        hops = Hops("actor", now)
        self.groups = [
            AgentGroup(self.spec, sender, slot, broker, learner, Waits(now, hops), drops=when_full == "drop")
            for slot in range(agents)
        ]
        servers = [
            Servers(Plane.INFERENCE, Lookup(broker), sender, agents, sender),
            Servers(Plane.ROLLOUTS, Lookups(learner.split(",")), sender, agents, sender),
        ]
        self._peers = Peers(self.groups, servers, TIMEOUTS, math.inf, now)
        with ExitStack() as stack:
            if context is None:
                context = Context(Keys(str(keys), "actor") if keys else None)
                stack.callback(context.term)
            stack.callback(self._peers.close)
            self._peers.open(context, now)
            self._until_free(range(agents), now + timeout_s)
            self._resources = stack.pop_all()

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self, obs: Any, *, agent: int = 0, mask: ArrayLike | None = None) -> Any:
        """Begin an episode with its first observation; returns the action to take."""
        return self.start_many({agent: obs}, {} if mask is None else {agent: mask})[agent]

    def act(self, obs: Any, reward: float = 0.0, *, agent: int = 0, mask: ArrayLike | None = None) -> Any:
        """Report the observation and the sum of rewards since the last action; returns the action to take now."""
        return self.act_many({agent: (obs, reward)}, {} if mask is None else {agent: mask})[agent]

    def end(
        self, obs: Any, reward: float = 0.0, *, terminated: bool = False, truncated: bool = False, agent: int = 0
    ) -> None:
        """End an episode with its last observation and reward; does not wait for a server.

        Args:
          terminated: it has ended by its own rules: no reward can follow this observation.
          truncated: it was cut off, for instance by a time limit.
        """
        episode = self._episode_of(agent)
        if not (terminated or truncated):
            raise EnvError(f"end of agent {agent}: expected terminated=True or truncated=True")
        row = self._env.row(obs, reward, terminated=terminated, truncated=truncated)
        total = _sum(episode, row)
        group = self.groups[agent]
        group.steps.episodes.append([total, episode.length + 1])
        self._playing[agent], self._finished = None, self._finished + 1
        group.observe(row, self._turn())
        self._turn()

    def abandon(self, *, agent: int = 0) -> None:
        """Give up an episode in progress whose outcome is unknown; its return is not reported."""
        self._episode_of(agent)
        self._playing[agent], self._abandoned = None, self._abandoned + 1

    def start_many(self, observations: Mapping[int, Any], masks: Masks | None = None) -> dict[int, Any]:
        """`start` for several agents together: agent -> first observation; returns agent -> action."""
        for agent in observations:
            if self._playing_now(agent) is not None:
                raise EnvError(f"start of agent {agent} during its episode, expected end or abandon first")
        rows = {agent: self._row(agent, masks, obs, first=True) for agent, obs in observations.items()}
        until = time.monotonic() + self.timeout_s
        self._until_free(rows, until)  # the last row of an earlier episode may still be in progress
        self._playing = [_Episode() if agent in rows else episode for agent, episode in enumerate(self._playing)]
        return self._ask(rows, until)

    def act_many(self, steps: Mapping[int, tuple[Any, float]], masks: Masks | None = None) -> dict[int, Any]:
        """`act` for several agents together: agent -> (observation, reward); returns agent -> action."""
        episodes = {agent: self._episode_of(agent) for agent in steps}
        rows = {agent: self._row(agent, masks, obs, reward) for agent, (obs, reward) in steps.items()}
        totals = {agent: _sum(episode, rows[agent]) for agent, episode in episodes.items()}
        for agent, episode in episodes.items():
            episode.total, episode.length = totals[agent], episode.length + 1
        return self._ask(rows, time.monotonic() + self.timeout_s)

    def report(self) -> dict[str, int]:
        """Counters so far, over all agents."""
        outboxes = [group.rollouts.outbox for group in self.groups]
        return {
            "agent_steps": sum(group.steps.agent_steps for group in self.groups),
            "episodes": self._finished,
            "episodes_abandoned": self._abandoned,
            "rollouts": sum(outbox.seq for outbox in outboxes),
            "rollouts_unacked": sum(outbox.unacked for outbox in outboxes),
            "rollouts_cut": sum(group.inference.cut for group in self.groups),
            "rollouts_dropped": sum(group.dropped for group in self.groups),
            "policy_version": max(group.inference.version for group in self.groups),
            "reconnects": self._peers.reconnects,
            "refused": self._peers.refused.total(),
        }

    def close(self) -> None:
        """Send BYE. Complete rollouts are still sent, if the learner is there."""
        with self._resources:
            self._peers.take(time.monotonic())
            self._peers.farewell()

    def _playing_now(self, agent: int) -> _Episode | None:
        if type(agent) is not int or not 0 <= agent < len(self.groups):
            raise EnvError(argument="agent", value=agent, expected=f"0 to {len(self.groups) - 1}")
        return self._playing[agent]

    def _episode_of(self, agent: int) -> _Episode:
        if (episode := self._playing_now(agent)) is None:
            raise EnvError(f"agent {agent} has no episode in progress, expected start first")
        return episode

    def _row(self, agent: int, masks: Masks | None, obs: Any, reward: float = 0.0, *, first: bool = False) -> Row:
        return self._env.row(obs, reward, (masks or {}).get(agent), first=first)

    def _ask(self, rows: Mapping[int, Row], until: float) -> dict[int, Any]:
        """Pass agents their next rows, and wait for their actions."""
        now = self._turn()
        for agent, row in rows.items():
            self.groups[agent].observe(row, now)
        try:
            self._until_free(rows, until)
        except BaseException:  # interrupts too: an action that was not taken must not look as if it had been
            self._playing = [None if agent in rows else episode for agent, episode in enumerate(self._playing)]
            raise
        return {agent: self._env.action(self.groups[agent].steps.action) for agent in rows}

    def _until_free(self, agents: Iterable[int], until: float) -> None:
        """Exchange messages until all of these agents wait for their caller, or time `until` is reached."""
        groups = [self.groups[agent] for agent in agents]
        now = self._turn()
        while not all(group.is_free for group in groups):
            if now >= until:
                raise PeerLost(self._complaint(groups))
            self._peers.poller.wait(min(MAX_WAIT_S, max(0.0, min(self._peers.deadline(), until) - now)))
            now = self._turn()

    def _turn(self) -> float:
        """Receive what has arrived and send what is due; returns the time."""
        now = time.monotonic()
        if now - self._turned_at > STANDSTILL_S:  # the program was busy and received nothing meanwhile
            self._awake_since = now
        self._turned_at = now
        self._peers.take(now)
        self._peers.tick(now, self._awake_since)
        return now

    def _complaint(self, groups: list[AgentGroup]) -> str:
        """A sentence on what a call waited for until it timed out."""
        limit_s = self.timeout_s
        for servers in self._peers.servers:
            if servers.lost and not servers.ports:
                return str(servers.lost)
        stuck = next(group for group in groups if not group.is_free)
        if stuck.waits.current is Wait.CREDIT and stuck.rollouts.stream.open:
            server = stuck.rollouts.stream.server
            return f"the {server} has admitted no further rollout for {limit_s:g} s"
        ends = (stuck.inference, stuck.rollouts)
        waiting = [end for end in ends if end.greets and (not end.stream.open or end.stream.waiting)]
        return waiting[0].stream.complaint(0, limit_s) if waiting else f"no answer for {limit_s:g} s"


def _sum(episode: _Episode, row: Row) -> float:
    """The return of an episode including the reward of one more row."""
    total = episode.total + float(row["reward"][0])
    if abs(total) > MAX_RETURN:
        raise EnvError(f"reward is {row['reward'][0]}, which makes the return {total}, expected at most {MAX_RETURN}")
    return total
