"""`python -m zerobeast.services.envserver check --env ID`: play an environment at random, and print as JSON what is
found: [[level, sentence], ...], each "ok", "warning" or "error". With BRIEF in front, for a moment, as a run begins.

An error is what no run can learn from, a warning what is accepted and seldom meant.
"""

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.settings.net import readings
from zerobeast.common.text import in_line
from zerobeast.common.wire import action_record, by_array
from zerobeast.common.wire.spaces import UNBOUNDED
from zerobeast.services.envserver.agents import MASK, shard
from zerobeast.services.envserver.backend import backend_of
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.describe import answered
from zerobeast.services.envserver.reading import Watched
from zerobeast.services.envserver.shard import Shard, described

BRIEF = "brief"
SEED, LONG, MOST = 7, 300, 2000  #: of environments and actions; characters of a sentence; steps
SECONDS = {True: 0.5, False: 8.0}  #: by whether it is brief
WIDE = 1e6  #: a box of actions beyond which it is worth a word
Found = tuple[str, str]


def main(argv: list[str]) -> int:
    brief = argv[:1] == [BRIEF]
    return answered(argv[brief:], lambda config: [*checked(config, brief=brief)])


def checked(config: RunConfig, *, brief: bool) -> Iterator[Found]:
    """What is found about each environment of a run. Raises EnvError if one cannot be made."""
    for task in config.env.tasks:
        prefix = f"{task}: " if len(config.env.tasks) > 1 else ""
        for level, sentence in _checked(config, config.env.alone(task), brief=brief):
            yield level, in_line(prefix + sentence, LONG)


def _checked(config: RunConfig, env: EnvConfig, *, brief: bool) -> Iterator[Found]:
    backend, made = backend_of(env.id), list[Watched]()
    if backend and not backend.has_single_environments:
        yield "ok", "its backend makes many that step together, which are not checked one by one"
        return
    make = partial(make_env, env.id, dict(env.kwargs), several=True, leave_out=env.leave_out)

    def watched() -> Watched:
        made.append(Watched(make()))
        return made[-1]

    envs = shard(env.id, watched, 1, SEED, config=env)
    yield from (("ok", line) for line in readings(envs.spec, config.net))
    yield from (("warning", sentence) for sentence in _unsaid(made[0], envs))
    try:
        yield from _played(envs, made, brief=brief)
    except EnvError as error:
        yield "error", str(error)
        return
    except Exception as error:  # of the check itself: what it cannot judge may still be trained in
        yield "warning", f"it could not be judged further: {described(error)}"
        return
    finally:
        envs.close()
    if not (brief or callable(made[0].observation_space)):
        yield from (("warning", f"gymnasium's checker: {text}") for text in _by_gymnasium(make().unwrapped))


def _played(envs: Shard, made: list[Watched], *, brief: bool) -> Iterator[Found]:
    """Play, and report what came; raises EnvError if there is no point in another try."""
    first = []
    for _ in range(2):
        envs.reset(SEED)
        first.append(envs.rows["obs"].tobytes())
    if first[0] != first[1]:
        yield "warning", "two resets with the same seed begin with different observations: runs do not repeat"
    rng, odd, lost, lengths = np.random.default_rng(SEED), dict[str, str](), Counter[str](), list[int]()
    steps, until = 0, time.monotonic() + SECONDS[brief]
    envs.failures = []
    while steps < MOST and time.monotonic() < until:
        failures, steps = len(envs.failures), steps + 1
        envs.step(_drawn(rng, envs))
        lost.update(reason for reason, _ in envs.lost)
        lengths += [one[1] for one in envs.episodes if one]
        if len(envs.failures) == failures:
            odd.update(_odd(made[-1]))
    failed = sum(lost.values())
    if failed:  # a run counts them, and ends by itself if they are many
        share = f"{failed} of {failed + len(lengths)} episodes"
        yield "warning" if brief else "error", f"{share} were lost, most to {lost.most_common(1)[0][0]}"
    elif envs.failures:
        yield "warning", f"an episode's last observation cannot be used: {envs.failures[0][1].partition(chr(10))[0]}"
    yield from (("warning", sentence) for sentence in odd.values())
    ended = f"{len(lengths)} episodes of {np.mean(lengths):.0f} steps" if lengths else "no end of an episode"
    times = ", ".join(f"a {name} takes {_milliseconds(made, name)}" for name in ("step", "reset"))
    yield "ok", f"{steps} random steps, {ended}; {times}"


def _milliseconds(made: list[Watched], name: str) -> str:
    taken = [1000 * seconds for each in made for seconds in each.seconds[name]] or [0.0]
    return f"{np.mean(taken):.2g} ms, at most {max(taken):.2g}"


def _drawn(rng: np.random.Generator, envs: Shard) -> Any:
    """Random legal actions, [N, *shape]."""
    actions, start = np.zeros(envs.num_envs, action_record(envs.spec.action).dtype)["action"], 0
    ranks = rng.random((envs.num_envs, sum(envs.spec.action.choices)))
    ranks *= envs.rows["action_mask"] if envs.spec.action_mask else 1
    for space, chosen in by_array(envs.spec.action, actions):
        if space.kind == "box":
            low, high = (np.where(space.bounded, bound, end) for bound, end in zip(space.bounds, (-1, 1), strict=True))
            chosen[...] = rng.uniform(low, high, chosen.shape)
            continue
        for place, size in enumerate(space.choices):
            chosen.reshape(envs.num_envs, -1)[:, place] = ranks[:, start : start + size].argmax(1)
            start += size
    return actions


def _unsaid(env: Any, envs: Shard) -> Iterator[str]:
    """What spaces suggest and settings do not say."""
    spaces, action = getattr(env.observation_space, "spaces", {}), envs.spec.action
    for name in spaces if isinstance(spaces, dict) and not envs.spec.action_mask else ():
        if MASK in str(name) and spaces[name].shape == (sum(action.choices),):
            mask = f"--env.action_mask {name} makes it the mask of legal actions"
            yield f"observations have {name!r}, which is an input as any other: {mask}"
    for low, high in (array.bounds for array in action.arrays if array.kind == "box"):
        if WIDE < (high - low).max() < UNBOUNDED:
            yield f"actions are explored in all of their Box, {low.min():g} to {high.max():g}; infinite bounds are none"


def _odd(env: Watched) -> Iterator[tuple[str, str]]:
    """What is accepted in the newest answer, by what it is about."""
    by_agent = callable(env.observation_space)
    for agent, seen in env.answer[0].items() if by_agent else [("", env.answer[0])]:
        space = env.observation_space(agent) if by_agent else env.observation_space
        for name, box, value in _boxes(space, seen, f"observation{agent and f' of {agent}'}"):
            array = np.asarray(value)
            if array.dtype.kind != box.dtype.kind:
                yield f"{name} type", f"{name} is of type {array.dtype}, in a Box of {box.dtype}"
            if ((array < box.low) | (array > box.high)).any():
                bounds = f"{box.low.min():g} to {box.high.max():g}"
                yield f"{name} bounds", f"{name} has {array.min():g} to {array.max():g}, outside of its Box of {bounds}"
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


def _by_gymnasium(env: Any) -> Iterator[str]:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:  # foreign code, of the environment's too
            yield f"{type(error).__name__}: {error}"
    for text in dict.fromkeys(str(each.message) for each in caught):
        if "infinity" not in text and "normalized" not in text:  # of no concern here
            yield text.removeprefix("\x1b[33mWARN: ").removesuffix("\x1b[0m")
