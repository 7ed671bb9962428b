"""Plays whole episodes of a policy, in environments that an env-server steps.

How many each environment contributes is settled before the first step: counting the first N that end would prefer short
ones. An episode that its environment fails in is played again there, and counted. Returns are unclipped, and a life is
not an episode. Of several agents in an environment, each has episodes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.env_session import fill_actions
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import BeastError
from zerobeast.common.settings import RunConfig, SecurityConfig
from zerobeast.common.transport import open_context
from zerobeast.common.wire import EnvSpec, action_record
from zerobeast.common.wire.episodes import Episode, LostEpisode, mean_infos
from zerobeast.playing.evaluation import Evaluation
from zerobeast.services.actor.sides import Sides
from zerobeast.services.envserver.levels import evaluation_envs

if TYPE_CHECKING:  # torch is loaded with the first policy
    from zerobeast.playing.policy import Policy

MAX_ENVS = 16
START_LIMIT_S = 60.0

Ends = Sequence[Episode | None]  #: of rows that end an episode, in order: the whole one, or None if it goes on
#: called after each step with the episodes that ended in it and the agent steps of all so far; may raise
Watch = Callable[[list[Episode], int], None]


def play(
    policy: Policy,
    config: RunConfig,
    endpoint: str,
    *,
    opponent: Policy | None = None,
    watch: Watch = lambda _episodes, _steps: None,
) -> Evaluation:
    """Play `config.evaluate.episodes` episodes in the one environment of `config`.

    Args:
      policy: acts.
      config: its settings, but for the environment and `evaluate`.
      endpoint: of the env-server, to which it has the key of an actor if they are not on one machine.
      opponent: acts for the other side (`env.opponents`), whose episodes do not count.
      watch: see `Watch`.

    Raises:
      BeastError: the policy does not fit the environment, or the environment cannot be made.
    """
    own, seed, greedy = config.evaluate, config.evaluation_seed, config.evaluate.greedy
    num_envs, limit_s = (
        count_agents(config, opposed=opponent is not None),
        START_LIMIT_S + config.envserver.step_timeout_s,
    )
    env = config.env.model_copy(update={"episodic_life": False}).terms()
    security = SecurityConfig() if Endpoint.parse(endpoint).is_local else config.security
    with (
        limit_threads(config.broker.threads or 1),
        open_context(security, "actor") as context,
        EnvClient(context, endpoint, env, num_envs, seed, limit_s) as envs,
    ):
        players = Players(policy, opponent, config, num_envs)
        players.begin(envs.spec, seed)
        counter, rows = EpisodeCounter(own.episodes, players.counted, own.max_steps), envs.reset()
        while not counter.complete:
            rows, _, _ = envs.step(players.act(rows, greedy=greedy))
            watch(counter.add(*players.judge_rows(rows, envs.ends, envs.lost)), counter.steps)
        found, spec = counter.episodes, envs.spec
        returns, lengths = [each.value for each in found], [each.length for each in found]
        infos, rest = (
            mean_infos(each.infos for each in found),
            (counter.bounded, counter.lost, counter.reason * (counter.lost > 0)),
        )
        return Evaluation(
            spec.env_id, returns, lengths, greedy, seed, spec.frame_skip, policy.agent_steps, infos, *rest
        )


def play_each(
    policy: Policy,
    config: RunConfig,
    endpoint: str,
    *,
    opponent: Policy | None = None,
    watch: Callable[[], Watch] = lambda: lambda _episodes, _steps: None,
) -> Iterator[tuple[str, Evaluation]]:
    """As `play`, in each environment in which these settings evaluate; yields by which name, and what was found.

    `watch` makes one for each environment.
    """
    for task, level in evaluation_envs(config).items():
        alone = config.model_copy(update={"env": config.env.for_task(task)})
        yield level, play(policy, alone, endpoint, opponent=opponent, watch=watch())


def count_agents(config: RunConfig, *, opposed: bool) -> int:
    """How many agents play at a time. If they face an opponent on either side, half of them are on each."""
    agents = config.env.agents or 1
    envs = max(1, min(config.evaluate.episodes, MAX_ENVS) // agents)
    if opposed and not config.env.opponents:
        envs = max(2, envs - envs % 2)
    return envs * agents


class Players:
    """A policy, and the one that acts for the other side, if there is one; both get all rows.

    Args:
      policy, opponent: those.
      config: settings of the evaluation.
      num_envs: N.

    Attributes:
      counted: how many of the rows are the policy's.

    Raises:
      ConfigError: there is an opponent, but no other side.
    """

    def __init__(self, policy: Policy, opponent: Policy | None, config: RunConfig, num_envs: int) -> None:
        self._policies, self._states = [policy.of_rows()], list[Any]([None])
        self._opposed, self._sides, self.counted = None, None, num_envs
        if opponent is not None and (opposed := config.env.opponent_rows(num_envs)) is not None:
            self._policies.append(opponent.of_rows())
            self._states.append(None)
            self._opposed, self._sides = opposed, Sides(opposed, config.env)
            self.counted = len(self._sides.learned)

    def begin(self, spec: EnvSpec, seed: int) -> None:
        """Draw actions by this seed. Raises CheckpointError if an environment with this spec is unlike the trained."""
        for number, policy in enumerate(self._policies):
            policy.refuse_unlike(spec)
            policy.seed(seed + number)
        self._spec = spec

    def act(self, rows: NDArray[Any], *, greedy: bool) -> Any:
        """Actions [N] for rows [N] of `step_record`."""
        mask = rows["action_mask"] if self._spec.action_mask else None
        given = {"last_reward": rows["reward"], "action_mask": mask}
        chosen = []
        for number, policy in enumerate(self._policies):
            actions, self._states[number] = policy.predict(
                rows["obs"], self._states[number], rows["first"], greedy, **given
            )
            chosen.append(actions)
        if self._opposed is None:
            return chosen[0]
        merged = np.zeros(len(rows), action_record(self._spec.action).dtype)["action"]
        fill_actions(merged, self._spec.action, chosen[0])
        other = merged.copy()
        fill_actions(other, self._spec.action, chosen[1])
        merged[self._opposed] = other[self._opposed]
        return merged

    def judge_rows(
        self, rows: NDArray[Any], ends: Ends, lost: Sequence[LostEpisode]
    ) -> tuple[NDArray[Any], Ends, Sequence[LostEpisode]]:
        """The policy's own rows, and ends and losses in them; with an opponent, infos of episodes show who has won."""
        if self._sides is None:
            return rows, ends, lost
        places = {row: place for place, row in enumerate(self._sides.learned.tolist())}
        own = [one._replace(row=places[one.row]) for one in lost if one.row in places]
        return rows[self._sides.learned], self._sides.judge_ends(rows, ends), own


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """Compute with this many threads: for small batches, more of them wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class EpisodeCounter:
    """Keeps the first whole episodes of every environment, equally many of each but for the remainder.

    An episode of `max_steps` counts as it is, and no later one of its environment does: that cannot always be reset.
    Nor does one of an agent that has not joined for as long.
    """

    def __init__(self, episodes: int, num_envs: int, max_steps: int) -> None:
        self.episodes: list[Episode] = []
        self.bounded = 0  #: episodes of `max_steps`
        self.lost, self.reason = 0, "an environment began anew"  #: those that are played again, and why the newest is
        self._asked = episodes
        self.steps = 0  #: agent steps of all environments
        self._most = max_steps
        self._left = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
        self._over = np.ones(num_envs, np.bool_)  #: whether the newest row ends an episode or a life
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)  #: of the whole ones so far
        self._away = np.zeros(num_envs, np.int64)  #: steps since an agent acted

    @property
    def complete(self) -> bool:
        """Whether every environment has contributed its share."""
        return not self._left.any()

    def add(self, rows: NDArray[Any], ends: Ends, lost: Sequence[LostEpisode] = ()) -> list[Episode]:
        """Take one step's rows, [N] of `step_record`, the ends in them, and the episodes that were lost before them.

        Returns:
          The episodes that it completes and that count.

        Raises:
          BeastError: more episodes are lost than were asked for: environments began anew in the middle. Or there are
            more or fewer ends than rows that end an episode.
        """
        first, ended = rows["first"], rows["terminated"] | rows["truncated"]
        self.reason = next((one.reason for one in lost if one.reason), self.reason)
        failed = np.isin(np.arange(len(rows)), [one.row for one in lost])
        failed |= first & (self._lengths > 0) & ~self._over  # an env-server need not report any
        self.lost += int((failed & (self._left > 0)).sum())
        if self.lost > self._asked:
            played = f"{len(self.episodes)} of {self._asked} episodes were played: too few for an evaluation"
            raise BeastError(f"{self.lost} episodes were lost to {self.reason}, and {played}")
        self._returns[failed] = self._lengths[failed] = 0
        if len(ends) != (count := np.count_nonzero(ended)):
            raise BeastError(f"the env-server reported {len(ends)} ends of episodes, expected {count}")
        self._over, self._away = ended, np.where(first, self._away + 1, 0)
        self.steps += int((~first).sum())
        self._returns += rows["reward"]
        self._lengths += ~first
        pairs = zip(np.flatnonzero(ended).tolist(), ends, strict=True)
        whole = {env: episode for env, episode in pairs if episode}
        over = np.isin(np.arange(len(rows)), list(whole))
        cut = ~over & (self._lengths >= self._most)
        counted = (over | cut) & (self._left > 0)
        self._left = np.where(cut | (self._away >= self._most), 0, self._left - counted)
        self.bounded += int((counted & cut).sum())
        episodes = [
            whole.get(env) or Episode(float(self._returns[env]), int(self._lengths[env]))
            for env in np.flatnonzero(counted).tolist()
        ]
        self._returns[over] = self._lengths[over] = 0
        self.episodes += episodes
        return episodes
