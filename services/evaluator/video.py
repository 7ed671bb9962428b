"""Records episodes of a policy as a video: those that the first environments of an evaluation would play.

Episode i begins with the seed of an evaluation plus i, as environment i of an evaluation does. The environment is the
one that the env-server would step, in a process of its own, and the policy gets the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zerobeast.clients.env_session import fill_actions
from zerobeast.common.settings import RunConfig
from zerobeast.services.envserver.rendering import RenderedEnv
from zerobeast.services.evaluator.outlook import Outlook, outlook
from zerobeast.services.evaluator.pictures import Moment, Painter
from zerobeast.services.evaluator.play import threads
from zerobeast.services.evaluator.video_files import VideoFile, check_path, video_file

if TYPE_CHECKING:
    from zerobeast.clients.policy import Policy, State

PAUSE_S = 1.5  #: for which the last moment of an episode stays


@dataclass(frozen=True)
class Recording:
    """A video, and what is in it."""

    path: Path
    returns: list[float]  #: of each episode, undiscounted and unclipped
    lengths: list[int]  #: of each episode, in agent steps
    bounded: int  #: episodes that were cut off at `evaluate.max_steps`
    seconds: float  #: it takes to play
    size: int  #: bytes


#: called after each step with the number of the episode and its steps so far; may raise
Watch = Callable[[int, int], None]


def record(
    policy: Policy,
    config: RunConfig,
    path: Path,
    *,
    episodes: int = 1,
    watch: Watch = lambda _episode, _steps: None,
) -> Recording:
    """Play episodes in each environment of `config`, at most `evaluate.max_steps` long, and write them as one video.

    Args:
      policy: acts.
      config: its settings, but for the environments and `evaluate`.
      path: of the video, .mp4 or .gif; its folder is made if need be.
      episodes: of each environment.
      watch: see `Watch`.

    Raises:
      BeastError: the policy does not fit the environment, or the environment cannot be made, fails, or draws nothing;
        or the video cannot be written, in which case nothing is left of it.
      ModuleNotFoundError: a package of the extra `video` is missing.
    """
    check_path(path)
    own, painter = config.evaluate, Painter(config.name or path.stem)
    greedy = config.algorithm.drawing_explores if own.actions == "auto" else own.actions == "greedy"
    played: list[_Played] = []
    with threads(config.broker.threads or 1), ExitStack() as stack:
        file: VideoFile | None = None
        for task in config.env.tasks:
            alone = config.env.alone(task).model_copy(update={"episodic_life": False})
            with closing(RenderedEnv(alone, config.envserver.step_timeout_s)) as env:
                policy.refuse_unlike(env.spec)
                policy.seed(own.seed)
                for number in range(episodes):
                    env.reset(own.seed + number)
                    file = file or stack.enter_context(video_file(path, env.scene.fps))
                    text = f"episode {number + 1} of {episodes}"
                    episode = _Episode(policy, env, painter, file, text, greedy=greedy, max_steps=own.max_steps)
                    played.append(episode.play(partial(watch, len(played) + 1)))
    assert file is not None, "there is an environment and an episode"
    values, lengths, bounded = zip(*played, strict=True)
    return Recording(path, list(values), list(lengths), sum(bounded), file.seconds, path.stat().st_size)


class _Played(NamedTuple):
    value: float
    length: int
    bounded: bool


class _Episode:
    """One episode, from a reset on."""

    def __init__(
        self,
        policy: Policy,
        env: RenderedEnv,
        painter: Painter,
        file: VideoFile,
        text: str,
        *,
        greedy: bool,
        max_steps: int,
    ) -> None:
        self._policy, self._env, self._painter, self._file, self._text = policy, env, painter, file, text
        self._greedy, self._max_steps = greedy, max_steps
        self._value, self._length = 0.0, 0

    def play(self, watch: Callable[[int], None]) -> _Played:
        """To its end, or its last step; `watch` is called with its steps so far."""
        state: State | None = None
        self._painter.begin()
        while not (over := bool(self._env.rows["terminated"][0] | self._env.rows["truncated"][0])):
            if self._length >= self._max_steps:
                break
            state = self._step(state)
            watch(self._length)
        self._draw(None, f"over after {self._length:,} steps" if over else f"cut off after {self._length:,} steps")
        return _Played(self._value, self._length, not over)

    def _step(self, state: State | None) -> State:
        env, rows = self._env, self._env.rows
        given = {"last_reward": rows["reward"], "action_mask": rows["action_mask"] if env.spec.action_mask else None}
        actions, after = self._policy.predict(rows["obs"], state, rows["first"], self._greedy, **given)
        self._draw(outlook(self._policy, rows["obs"], state, actions, episode_start=rows["first"], **given))
        env.step(partial(fill_actions, space=env.spec.action, actions=actions))
        self._value += float(env.rows["reward"][0])
        self._length += 1
        return after

    def _draw(self, view: Outlook | None, remark: str = "") -> None:
        """Add what there is to see, for a while if the episode is over."""
        scene = self._env.scene
        moment = Moment(
            scene.picture,
            scene.names,
            self._env.spec.env_id,
            self._text,
            self._length,
            self._value,
            view,
            remark,
        )
        picture = self._painter.draw(moment)
        for _ in range(1 if view else round(PAUSE_S * scene.fps)):
            self._file.add(picture)
