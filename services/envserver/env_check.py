"""What an environment looks like, and what is found when it plays at random: a level and a sentence each.

An error is what no run can learn from, a warning what is accepted and seldom meant.
"""

import os
import random
import select
import signal
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.process.usage import descendants
from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.net import readings
from zerobeast.common.wire import EnvSpec, action_record, iterate_arrays
from zerobeast.common.wire.spaces import UNBOUNDED_LIMIT
from zerobeast.services.envserver.agents import MASK
from zerobeast.services.envserver.backend import backend_of
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.env_reader import WatchedEnv
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.shard import Shard, describe_error, format_account, seed_spaces
from zerobeast.services.envserver.vector import VectorEnv

SEED, MAX_SENTENCE_LENGTH, MAX_STEPS, ENOUGH_EPISODES = (
    7,
    300,
    2000,
    20,
)  #: of environments and actions; characters of a sentence; steps; episodes
NO_CHECK_S, BRIEF_CHECK_S, THOROUGH_CHECK_S = 0.0, 0.5, 8.0  #: for how many seconds an environment plays
POLL_S, CLOSE_S = 0.1, 5.0
WIDE_BOUND = 1e6  #: a box of actions beyond which it is worth a word
Finding = tuple[str, str]  #: "ok", "warning" or "error", and a sentence
TIMING_S, TIMED_ENVS = 0.2, 4  #: for how long one and then so many environments play, to time one more


def check_env(config: RunConfig, task: str, seconds: float = NO_CHECK_S) -> tuple[EnvSpec, int, list[Finding]]:
    """Make an environment in this process, and let it play.

    Args:
      config: of a run.
      task: which of its environments, or another id.
      seconds: NOT, BRIEF or THOROUGH.

    Returns:
      its spec, how many agents it has, and what is found.

    Raises:
      EnvError: it cannot be made.
    """
    made = list[WatchedEnv]()
    with _open_env(config, task, made, alone=seconds == THOROUGH_CHECK_S) as envs:
        found = list(_judge(config, envs, made, seconds)) if seconds else []
    checkable = made and not (callable(made[0].observation_space) or envs.spec.action_mask)  # it draws illegal actions
    if seconds == THOROUGH_CHECK_S and checkable and all(level != "error" for level, _ in found):
        found += (("warning", f"gymnasium's checker: {text}") for text in _check_by_gymnasium(config, task))
    return envs.spec, envs.agents, found


@contextmanager
def _open_env(
    config: RunConfig, task: str, made: list[WatchedEnv], *, alone: bool = True
) -> Iterator[InlineEnvs | VectorEnv]:
    """One environment, which joins `made` if its backend makes it alone, as all do that can if `alone` is true."""

    def watch(env: Any) -> Any:
        made.append(WatchedEnv(env))
        return made[-1]

    env, backend = config.env.for_task(task), backend_of(task)
    alone &= backend is None or backend.has_single_environments
    server = config.envserver.model_copy(update={"in_process": True})
    several = make_vector_env(env, env.agents or 1, SEED, server, masks=alone, watch=watch)
    try:
        with raise_as(EnvError, f"env.id {task!r} cannot be made"):
            envs: Any = several.make(1, SEED) if isinstance(several, InlineVectorEnv) else several
            while envs is several and not several.collect():
                select.select(several.files, (), (), POLL_S)
    except EnvError as error:
        several.count_failures([[0, format_account(error)]] if error.__cause__ else [], task)
        raise
    try:
        yield envs
    finally:
        _close(envs)


def _close(envs: InlineEnvs | VectorEnv) -> None:
    """Close environments, and wait at most CLOSE_S for each."""
    signal.signal(signal.SIGALRM, _refuse_to_wait)
    signal.setitimer(signal.ITIMER_REAL, CLOSE_S, CLOSE_S)
    with suppress(TimeoutError):
        envs.close()
    signal.setitimer(signal.ITIMER_REAL, 0)


def time_step(config: RunConfig, task: str) -> float | None:
    """Make environments in this process, and step them at random.

    Returns:
      seconds of CPU time for a step of one more of several; None if that is not known here, because an environment has
      several agents or other processes.

    Raises:
      EnvError: they cannot be made or stepped.
    """
    env, server = config.env.for_task(task), config.envserver.model_copy(update={"in_process": True, "threads": 1})
    seconds = list[float]()
    with raise_as(EnvError, f"env.id {task!r} cannot be played"), ExitStack() as made:
        for count in (1, TIMED_ENVS):  # the first one takes what a step of any number takes
            envs = _settle(make_vector_env(env, env.agents or count, SEED, server))
            made.callback(_close, envs)
            envs.reset(SEED)
            _settle(envs)
            if envs.agents > 1 or any(descendants(os.getpid())):
                return None
            seconds.append(statistics.median(_time_steps(envs)))
    return max(0.0, seconds[1] - seconds[0]) / (TIMED_ENVS - 1)


def _time_steps(envs: VectorEnv) -> Iterator[float]:
    """Seconds of CPU time, which other processes do not change, of each of some random steps of environments."""
    rng, until = np.random.default_rng(SEED), time.monotonic() + TIMING_S
    while time.monotonic() < until:
        actions, began = random_actions(rng, envs), time.process_time()
        envs.step(actions)
        _settle(envs)
        yield time.process_time() - began


def _settle(envs: VectorEnv) -> VectorEnv:
    """Wait until what has begun is done."""
    while not envs.collect():
        select.select(envs.files, (), (), POLL_S)
    return envs


def _refuse_to_wait(*_: Any) -> None:
    raise TimeoutError  # in what closes an environment: nothing depends on it


def _judge(
    config: RunConfig, envs: InlineEnvs | VectorEnv, made: list[WatchedEnv], seconds: float
) -> Iterator[Finding]:
    if not (made and isinstance(envs, Shard)):
        yield "ok", "its backend only makes vector environments, which cannot be checked one by one"
        return
    yield from (("ok", line) for line in readings(envs.spec, config.net))
    try:
        yield from (("warning", sentence) for sentence in _find_unsaid(made[0], envs))
        yield from _play(envs, made, seconds, config.learner.max_lost_episodes)
    except EnvError as error:
        yield "error", str(error)
    except Exception as error:  # of the check itself: what it cannot judge may still be trained in
        yield "warning", f"the check could not continue: {describe_error(error)}"


def _play(envs: Shard, made: list[WatchedEnv], seconds: float, most: float) -> Iterator[Finding]:
    """Play, and report what came, lost episodes as an error if the share of them is above `most` or play is THOROUGH.

    Raises EnvError if no episode could begin, or there is no point in another try.
    """
    until = time.monotonic() + seconds

    def there_is_time() -> bool:  # for a reset
        return time.monotonic() + max(_call_seconds(made, "reset"), default=0.0) < until

    first = _first_observations(envs, made[0])
    if there_is_time() and first != _first_observations(envs, made[-1]):
        yield "warning", "two resets with the same seed give different first observations: runs are not reproducible"
    rng, odd, lost, lengths, steps = np.random.default_rng(SEED), dict[str, str](), Counter[str](), list[int](), 0
    while not steps or (steps < MAX_STEPS and time.monotonic() < until and (not envs.over() or there_is_time())):
        failures, steps = len(envs.failures), steps + 1
        envs.step(random_actions(rng, envs))
        lost.update(reason for reason, _ in envs.lost)
        lengths += [one[1] for one in envs.episodes if one]
        if len(envs.failures) == failures and made[-1].answer:
            odd.update(_find_oddities(made[-1]))
    gone, why = lost.total(), "".join(text.partition("\n")[0] for _, text in envs.failures[:1])
    if why and not (gone or _call_seconds(made, "step")):
        raise EnvError(f"every reset failed, the first with {why}")
    if gone:  # a run counts them, and ends by itself if they are many
        played = gone + len(lengths)
        level = (
            "error"
            if seconds == THOROUGH_CHECK_S or (played >= ENOUGH_EPISODES and gone > most * played)
            else "warning"
        )
        yield level, f"{gone} of {played} episodes were lost, most to {lost.most_common(1)[0][0]}"
    elif why:
        yield "warning", f"a reset or an episode's last observation failed: {why}"
    yield from (("warning", sentence) for sentence in odd.values())
    ended = f"{len(lengths)} episodes of {np.mean(lengths):.0f} steps" if lengths else "no episode ended"
    times = ", ".join(f"a {name} takes {_milliseconds(made, name)}" for name in ("step", "reset"))
    yield "ok", f"{steps} random steps, {ended}; {times}"


def _first_observations(envs: Shard, env: Any) -> bytes:
    """The first observations, if all that a run seeds has a seed."""
    random.seed(SEED)
    np.random.seed(SEED)
    seed_spaces(env, SEED)
    envs.reset(SEED)
    return envs.rows["obs"].tobytes()


def _call_seconds(made: list[WatchedEnv], name: str) -> list[float]:
    return [seconds for each in made for seconds in each.seconds[name]]


def _milliseconds(made: list[WatchedEnv], name: str) -> str:
    taken = np.multiply(1000, _call_seconds(made, name) or [0.0])
    return f"{taken.mean():.2g} ms, at most {taken.max():.2g}"


def random_actions(rng: np.random.Generator, envs: Shard | VectorEnv) -> Any:
    """Random legal actions, [N, *shape]."""
    actions, start = np.zeros(envs.num_envs, action_record(envs.spec.action).dtype)["action"], 0
    ranks = rng.random((envs.num_envs, sum(envs.spec.action.choices)))
    ranks *= envs.rows["action_mask"] if envs.spec.action_mask else 1
    for space, chosen in iterate_arrays(envs.spec.action, actions):
        if space.kind == "box":
            low, high = (np.where(space.bounded, bound, end) for bound, end in zip(space.bounds, (-1, 1), strict=True))
            chosen[...] = rng.uniform(low, high, chosen.shape)
            continue
        for place, size in enumerate(space.choices):
            chosen.reshape(envs.num_envs, -1)[:, place] = ranks[:, start : start + size].argmax(1)
            start += size
    return actions


def _find_unsaid(env: Any, envs: Shard) -> Iterator[str]:
    """What spaces suggest and settings do not say."""
    spaces, action = getattr(env.observation_space, "spaces", {}), envs.spec.action
    for name in spaces if isinstance(spaces, dict) and not envs.spec.action_mask else ():
        if MASK in str(name) and spaces[name].shape == (sum(action.choices),):
            mask = f"--env.action_mask {name} uses it as the mask"
            yield f"observation entry {name!r} looks like an action mask but is used as an ordinary input; {mask}"
    for low, high in (array.bounds for array in action.arrays if array.kind == "box"):
        if WIDE_BOUND < (high - low).max() < UNBOUNDED_LIMIT:
            real = "if these are not real limits, declare infinite bounds"
            yield f"exploration covers the whole action Box, {low.min():g} to {high.max():g}; {real}"


def _find_oddities(env: WatchedEnv) -> Iterator[tuple[str, str]]:
    """What is accepted in the newest answer, by what it is about."""
    by_agent = callable(env.observation_space)
    for agent, seen in env.answer[0].items() if by_agent else [("", env.answer[0])]:
        space = env.observation_space(agent) if by_agent else env.observation_space
        for name, box, value in _boxes(space, seen, f"observation{agent and f' of {agent}'}"):
            array = np.asarray(value)
            if array.dtype.kind != box.dtype.kind:
                yield f"{name} type", f"{name} is of type {array.dtype}, in a Box of {box.dtype}"
            for at in map(tuple, np.argwhere((array < box.low) | (array > box.high))[:1]):
                where, bounds = f" at {[*map(int, at)]}" * bool(at), f"{box.low[at]:g} to {box.high[at]:g}"
                yield f"{name} bounds", f"{name} has {array[at]:g}{where}, outside its Box of {bounds}"
    for name, end in zip(("terminated", "truncated"), env.answer[2:4], strict=False):
        for one in end.values() if isinstance(end, Mapping) else [end]:
            if not isinstance(one, bool | np.bool_):
                yield name, f"{name} is {one!r:.50} of type {type(one).__name__}, expected a boolean"


def _boxes(space: Any, value: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Each box of a gymnasium space with its part of a value."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        yield name, space, value
    named = (
        space.items() if isinstance(space, spaces.Dict) else enumerate(space) if isinstance(space, spaces.Tuple) else ()
    )
    for key, part in named:
        yield from _boxes(part, value[key], f"{name}.{key}")


def _check_by_gymnasium(config: RunConfig, task: str) -> Iterator[str]:
    from gymnasium.utils.env_checker import check_env

    made = list[WatchedEnv]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _open_env(config, task, made):
                check_env(made[0].unwrapped, skip_render_check=True)
        except Exception as error:  # foreign code, of the environment's too
            yield f"{type(error).__name__}: {error}"
    for text in dict.fromkeys(str(each.message) for each in caught):
        if "infinity" not in text and "normalized" not in text:  # of no concern here
            yield text.removeprefix("\x1b[33mWARN: ").removesuffix("\x1b[0m")
