"""Plays whole episodes of a policy, in environments that an env-server steps.

How many each environment contributes is settled before the first step: counting the first N that end would prefer short
ones. Returns are unclipped, and a life is not an episode. Of several agents in an environment, each has episodes of its
own.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import BeastError
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import Context
from zerobeast.common.wire.episodes import Episode
from zerobeast.services.envserver.vector import EpisodeTracker
from zerobeast.services.evaluator.results import Evaluation

if TYPE_CHECKING:  # torch is loaded with the first policy
    from zerobeast.clients.policy import Policy

MAX_ENVS = 16
START_LIMIT_S = 60.0

#: called after each step with the episodes that ended in it and the agent steps of all so far; may raise
Watch = Callable[[list[Episode], int], None]


def play(
    policy: Policy,
    config: RunConfig,
    endpoint: str,
    *,
    watch: Watch = lambda _episodes, _steps: None,
) -> Evaluation:
    """Play `config.evaluate.episodes` episodes in the one environment of `config`.

    Args:
      policy: acts.
      config: its settings, but for the environment and `evaluate`.
      endpoint: of the env-server.
      watch: see `Watch`.

    Raises:
      BeastError: the policy does not fit the environment, or the environment cannot be made.
    """
    own = config.evaluate
    greedy = config.algorithm.drawing_explores if own.actions == "auto" else own.actions == "greedy"
    agents, limit_s = config.env.agents or 1, START_LIMIT_S + config.envserver.step_timeout_s
    num_envs = max(1, min(own.episodes, MAX_ENVS) // agents) * agents
    env = config.env.model_copy(update={"episodic_life": False}).terms()
    with (
        threads(config.broker.threads or 1),
        Context() as context,
        EnvClient(context, endpoint, env, num_envs, own.seed, limit_s) as envs,
    ):
        policy.refuse_unlike(envs.spec)
        policy.seed(own.seed)
        counter = EpisodeCounter(own.episodes, num_envs, own.max_steps)
        state, rows = None, envs.reset()
        while not counter.complete:
            mask = rows["action_mask"] if envs.spec.action_mask else None
            given = {"last_reward": rows["reward"], "action_mask": mask}
            actions, state = policy.predict(rows["obs"], state, rows["first"], greedy, **given)
            rows, *_ = envs.step(actions)
            watch(counter.add(rows, envs.episode_infos), counter.steps)
        found, spec = counter.episodes, envs.spec
        return Evaluation(
            spec.env_id,
            [episode.value for episode in found],
            [episode.length for episode in found],
            greedy,
            own.seed,
            spec.frame_skip,
            policy.agent_steps,
            means(found),
            counter.bounded,
        )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this many threads: for small batches, more of them wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def means(episodes: list[Episode]) -> dict[str, float]:
    """The mean of each number in infos, over the episodes that have it."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, number in episode.infos.items():
            found[name].append(number)
    return {name: statistics.fmean(numbers) for name, numbers in found.items()}


class EpisodeCounter:
    """Keeps the first episodes of every environment, equally many of each but for the remainder.

    An episode of `max_steps` counts as it is, and no later one of its environment does: that cannot always be reset.
    Nor does one of an agent that has not joined for as long.
    """

    def __init__(self, episodes: int, num_envs: int, max_steps: int) -> None:
        self.episodes: list[Episode] = []
        self.bounded = 0  #: episodes of `max_steps`
        self.steps = 0  #: agent steps of all environments
        self._most = max_steps
        self._left = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
        self._lengths, self._over = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)
        self._away = np.zeros(num_envs, np.int64)  #: steps since an agent acted
        self._tracker = EpisodeTracker(num_envs)

    @property
    def complete(self) -> bool:
        """Whether every environment has contributed its share."""
        return not self._left.any()

    def add(self, rows: NDArray[Any], infos: Sequence[Mapping[str, float]]) -> list[Episode]:
        """Take one step's rows, [N] of `step_record`, and the infos of episodes that ended in it, in that order.

        Returns:
          The episodes that it completes and that count.

        Raises:
          BeastError: an environment began anew in the middle of an episode: it had failed, and was replaced.
        """
        first, over = rows["first"], rows["terminated"] | rows["truncated"]
        self._tracker.forget(first)
        if (lost := np.flatnonzero(first & (self._lengths > 0) & ~self._over & (self._left > 0))).size:
            raise BeastError(f"environment {lost[0]} failed in the middle of an episode: no statistics without it")
        self._lengths, self._over = np.where(first, 0, self._lengths + 1), over
        self.steps += int((~first).sum())
        of = dict(zip(np.flatnonzero(over).tolist(), infos, strict=False))
        bounded = ~over & (self._lengths >= self._most) & (self._left > 0)
        counted = (over & (self._left > 0)) | bounded
        self._away = np.where(first, self._away + 1, 0)
        self._left = np.where(bounded | (self._away >= self._most), 0, self._left - counted)
        self.bounded += int(bounded.sum())
        found = self._tracker.update(rows["reward"], first, counted, lambda env: dict(of.get(env, {})))
        episodes = [Episode(*entry) for entry in found]
        self.episodes += episodes
        return episodes
