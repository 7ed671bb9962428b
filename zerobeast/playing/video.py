"""Records episodes of a policy as a video.

Episode i begins with the seed of the run's evaluations plus i, as environment i of one of these does. The environment
is the one that the env-server would step, in a process of its own, and the policy gets the same rows. If actions are
greedy, that environment plays the same episode, as far as rounding in a batch of several allows. Drawn actions are
those of the evaluation only if it has one episode: otherwise its environments draw from the same stream by turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zerobeast.clients.env_session import fill_actions
from zerobeast.common.settings import RunConfig
from zerobeast.playing.pictures import Painter, VideoFrame
from zerobeast.playing.play import limit_threads
from zerobeast.playing.step_summary import summarize_step
from zerobeast.playing.video_files import Writer, check_path, video_file
from zerobeast.services.envserver.levels import evaluation_envs
from zerobeast.services.envserver.rendering import RenderedEnv

if TYPE_CHECKING:
    from zerobeast.playing.policy import Policy
    from zerobeast.playing.tensors import State

PAUSE_S = 1.5  #: for which the last moment of an episode stays


@dataclass(frozen=True)
class Recording:
    """What is in a video."""

    returns: list[float]  #: of each episode, undiscounted and unclipped
    lengths: list[int]  #: of each episode, in agent steps
    bounded: list[bool]  #: whether it was cut off at `evaluate.max_steps`


#: called after each step with the number of the episode and its steps so far; may raise
Watch = Callable[[int, int], None]


def record_video(
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
    policy = policy.of_rows()
    own, painter, found = config.evaluate, Painter(config.name or path.stem), Recording([], [], [])
    with limit_threads(config.broker.threads or 1), ExitStack() as stack:
        add: Writer | None = None
        for task in evaluation_envs(config):
            alone = config.env.for_task(task).model_copy(update={"episodic_life": False})
            with closing(RenderedEnv(alone, config.envserver.step_timeout_s)) as env:
                policy.refuse_unlike(env.spec)
                policy.seed(config.evaluation_seed)
                for number in range(episodes):
                    env.reset(config.evaluation_seed + number)
                    add = add or stack.enter_context(video_file(path, env.scene.fps))
                    painter.begin(f"episode {number + 1} of {episodes}")
                    for frame in _video_frames(policy, env, greedy=own.greedy, max_steps=own.max_steps):
                        picture = painter.draw(frame)
                        for _ in range(1 if frame.summary else round(PAUSE_S * env.scene.fps)):
                            add(picture)
                        if frame.step:
                            watch(len(found.returns) + 1, frame.step)
                    found.returns.append(frame.value)
                    found.lengths.append(frame.step)
                    found.bounded.append(not _is_over(env))
    return found


def _video_frames(policy: Policy, env: RenderedEnv, *, greedy: bool, max_steps: int) -> Iterator[VideoFrame]:
    """What there is to see of an episode, from a reset on: one at each step, and one at the end."""
    state: State | None = None
    value, step = 0.0, 0
    while not _is_over(env) and step < max_steps:
        rows = env.rows
        given = {"last_reward": rows["reward"], "action_mask": rows["action_mask"] if env.spec.action_mask else None}
        actions, after = policy.predict(rows["obs"], state, rows["first"], greedy, **given)
        task = env.spec.env_id if env.spec.env_id in policy.config.env.tasks else ""
        view = summarize_step(policy, rows["obs"], state, actions, task, episode_start=rows["first"], **given)
        yield VideoFrame(env.scene.picture, env.scene.names, env.spec.env_id, step, value, view)
        env.step(partial(fill_actions, space=env.spec.action, actions=actions))
        state, value, step = after, value + float(env.rows["reward"][0]), step + int(not env.rows["first"].all())
    remark = f"{'over' if _is_over(env) else 'cut off'} after {step:,} steps"
    yield VideoFrame(env.scene.picture, env.scene.names, env.spec.env_id, step, value, None, remark)


def _is_over(env: RenderedEnv) -> bool:
    """Whether the whole episode of its agent is over, or that of the last of several."""
    ended = env.rows["terminated"] | env.rows["truncated"]
    return bool(ended.any() and (ended | env.rows["first"]).all() and all(env.ends))
