"""Single environments in this process, stepped one after the other: in a worker, or in the env-server itself."""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zerobeast.common.errors import EnvError, Misfit, WrongInterface, raise_as
from zerobeast.common.settings.env import fill_progress
from zerobeast.common.text import in_line
from zerobeast.common.wire import EnvSeeds, EnvSpec, iterate_arrays
from zerobeast.common.wire.episodes import MAX_REASON
from zerobeast.common.wire.seeds import list_seeds
from zerobeast.services.envserver.env_reader import EnvReader, call_env, reward_of
from zerobeast.services.envserver.infos import InfoTable, count_recorded, extract_numbers
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.numbers import NumberedEnvs
from zerobeast.services.envserver.scenes import draw_env, names_of, pack_scene
from zerobeast.services.envserver.spaces import fit_value
from zerobeast.services.envserver.vector import EnvMask

MAX_FAILURES = 10  #: of one environment without a step in between, after which its session ends
FRESH_AFTER = 3  #: of these failures the next try is in a fresh process, if the environments have one of their own
MAX_TEXT = 4000
OWN_FOLDER = str(Path(__file__).parents[2])
FIRST_OUTCOME = 0.0, False, False  #: reward, terminated and truncated of a first observation
BACKOFF_S, LONGEST_BACKOFF_S, PAUSE_S = 0.1, 2.0, 0.1


def backoff_s(failures: int) -> float:
    """How long to wait before the next try: not at all after the first failure in a row, then ever longer."""
    return 0.0 if failures < 2 else min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (failures - 2))


def format_account(error: BaseException) -> str:
    """A line on what was raised and where, and the traceback."""
    return f"{describe_error(error)}\n{''.join(traceback.format_exception(error))[-MAX_TEXT:]}"


def describe_error(error: BaseException) -> str:
    """What was raised, and where in the environment's code, or else in that of a library."""
    text, origin = str(error).strip() or "no reason given", error.__cause__ or error
    if isinstance(origin, EnvError):
        return in_line(text, MAX_REASON)
    frames = traceback.extract_tb(origin.__traceback__ or error.__traceback__)  # a cause may never have been raised
    foreign = [frame for frame in frames if not frame.filename.startswith(OWN_FOLDER)]
    own = [frame for frame in foreign if "site-packages" not in frame.filename]
    kind = "" if isinstance(error, EnvError) else f"{type(error).__name__}: "
    where = "".join(f" ({Path(frame.filename).name[-80:]}:{frame.lineno})" for frame in (own or foreign or frames)[-1:])
    return in_line(kind + text, MAX_REASON - len(where)) + where


class Shard(InlineEnvs):
    """Some of a session's environments, of one agent each.

    One that has failed is replaced, at once or after a pause in which its rows are the first of episodes.

    Args:
      env_id: as the user wrote it.
      make: makes them.
      num_envs: n.
      seed: of the first environment's first reset, or None.
      mask: as in `EnvReader.of`.
      failed: how often each has failed in a row, in the process before this one.
      wants_infos: as in `InlineEnvs`.
      progress: called after each environment that was made, reset or stepped.

    Raises:
      EnvError: they cannot be made.
    """

    rendered = False  #: whether `scene` has a picture, for environments whose `render_mode` is "rgb_array"
    resets_when_made = False
    infos: InfoTable

    def __init__(
        self,
        env_id: str,
        make: NumberedEnvs,
        num_envs: int,
        seed: int | None,
        mask: str = "",
        *,
        failed: Sequence[int] = (),
        wants_infos: bool = False,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._make, self._progress = make, progress
        self.options: dict[str, Any] = {}  #: of each reset that has none of its own, as `env.options`
        self._envs = [self._make_env(i) for i in range(num_envs)]
        self._seeds = list_seeds(seed, num_envs)
        for env, own in zip(self._envs, self._seeds, strict=True):
            seed_spaces(env, own)
        super().__init__(self._read(env_id, mask), num_envs * self.agents)
        self.wants_infos = wants_infos
        self._done = np.zeros(num_envs, np.bool_)
        self._last: dict[int, dict[str, float]] = {}  #: numbers of the last info of rows whose episodes have ended
        self._recorded: list[int | None] = [None] * num_envs  #: episodes recorded when the newest of each began
        self.failed: list[int] = list(failed) or [0] * num_envs  #: how often each has failed without a step in between
        self._retry_at = [0.0] * num_envs  #: when to replace each that has failed; 0: it works
        self._fits = any(self.failed)  #: whether a step has fitted the spaces, perhaps in the process before this one
        self.worn = False  #: whether a fresh process may help an environment that this one does not

    def _read(self, env_id: str, mask: str) -> EnvSpec:
        """Find out how the environments are read; returns what each looks like."""
        self._reading = EnvReader.of(env_id, self._envs[0], mask)
        return self._reading.spec

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        """Begin new episodes; as `VectorEnv.reset`. Raises EnvError if an environment cannot be reset at all."""
        chosen = np.arange(len(self._envs)) if only is None else np.flatnonzero(only)
        self.episodes, self.lost, self.infos = [], [], InfoTable(self.num_envs)
        seeds = list_seeds(seed, len(self._envs))
        for i in chosen.tolist():
            self.statistics.forget(self._rows_of(i))
            if seeds[i] is not None:
                self._seeds[i] = seeds[i]
            if options is None or self._retry_at[i]:
                self._reset(i)
            else:
                what = f"environment {self.spec.env_id!r} cannot be reset with options {options!s:.200}"
                with raise_as(EnvError, what):
                    self._open_episode(i, options)
        self.pack()

    def finish_step(self) -> None:
        """Step all environments. Raises EnvError if one cannot go on at all."""
        self.lost, self.infos = [], InfoTable(self.num_envs)
        for i in range(len(self._envs)):
            if self._done[i] or self._retry_at[i]:
                self._reset(i)
                continue
            try:
                self._step(i)
            except Exception as error:  # foreign code: contained, counted and reported
                self.lost += [[describe_error(error), row] for row in self._playing_rows(i)]
                self._fail(i, error)
            else:
                self.failed[i], self._fits = 0, True
                self._progress()
        if all(self._retry_at):  # nothing was stepped, and the next step is not to come at once
            time.sleep(min(PAUSE_S, max(0.0, min(self._retry_at) - time.monotonic())))
        self.pack()
        rows = self.rows
        over = rows["terminated"] | rows["truncated"]
        self.episodes = self.statistics.update(rows["reward"], rows["first"], over, self._numbers_of)

    def close(self) -> None:
        for env in self._envs:
            _close(env)
        self._make.close()

    def over(self) -> int:
        return int(self._done.sum())

    def scene(self) -> dict[str, Any]:
        env = self._envs[0]
        if not self.rendered:
            return {}
        return pack_scene(draw_env(env, self.spec.env_id), (env.metadata or {}).get("render_fps"), names_of(env))

    def _make_env(self, i: int) -> Any:
        env = self._make(i)
        self._progress()
        return env

    def _call(self, i: int, name: str, *args: Any, **kwargs: Any) -> Any:
        return call_env(self._envs[i], self.spec.env_id, name, *args, **kwargs)

    def _rows_of(self, i: int) -> slice:
        """Those of environment i."""
        return slice(i * self.agents, (i + 1) * self.agents)

    def _playing_rows(self, i: int) -> Iterable[int]:
        """The rows of environment i in which an episode is in progress, unless it begins anew."""
        return (i,)

    def _numbers_of(self, row: int) -> dict[str, float]:
        """What is reported with an episode that ends."""
        return self._last[row]

    def _step(self, i: int) -> None:
        answer = self._call(i, "step", self._reading.action(self.actions[i]))
        self._done[i] = self._write(i, self._reading, *answer)

    def _write(self, i: int, reading: Any, *answer: Any) -> bool:
        """Write what `step` has returned into row i, as `reading` converts it; returns whether its episode is over."""
        obs, reward, terminated, truncated, info = answer
        number, row, over = reward_of(reward), self.rows[i], bool(terminated or truncated)
        try:
            entries = iterate_arrays(self.spec.obs, reading.adapt_obs(obs))
            for name, (space, column), (_, value) in zip(self.names, self.columns, entries, strict=True):
                column[i] = fit_value(name, value, space)
            if self.own.action_mask:
                row["action_mask"][: self.own.mask_size] = reading.legal(obs, info, over=over)
        except Exception as error:
            if not terminated:
                raise
            # nothing is learned from it; the one before stands in for it
            self.failures.append([i // self.agents, format_account(error)])
        row["reward"] = number
        row["terminated"], row["truncated"], row["first"] = bool(terminated), bool(truncated), False
        if over:
            self._last[i] = extract_numbers(info)
            before, now = self._recorded[i // self.agents], count_recorded(self._envs[i // self.agents])
            # a limit outside of what records ends an episode too, while a lost life is a termination
            self.statistics.whole[i] = None if before is None or now is None else now > before or bool(truncated)
        if self.wants_infos:
            self.infos.put_one(info, i)
        return over

    def _reset(self, i: int) -> None:
        """Begin an episode, in another environment if this one has failed and its pause is over."""
        if time.monotonic() < self._retry_at[i]:
            return
        try:
            if self._retry_at[i]:
                self._envs[i] = self._make_env(i)
            self._open_episode(i, None)
        except Exception as error:  # foreign code, as in step
            self._fail(i, error)
        else:
            self._retry_at[i] = 0.0

    def _open_episode(self, i: int, options: dict[str, Any] | None) -> None:
        seed, self._seeds[i] = self._seeds[i], None
        if options is None and self.options:
            options = fill_progress(self.options, self.progress)
        asked = {} if options is None else {"options": options}
        self._begin(i, *self._call(i, "reset", seed=seed, **asked))
        self._recorded[i] = count_recorded(self._envs[i])
        self._done[i] = False
        self._progress()

    def _begin(self, i: int, obs: Any, info: Any) -> None:
        """Write the first rows of an episode."""
        self._write(i, self._reading, obs, *FIRST_OUTCOME, info)
        self.rows[i]["first"] = True

    def _fail(self, i: int, error: Exception) -> None:
        """Note a failure. Raises EnvError if there is no point in another try."""
        self.failures.append([i, format_account(error)])
        self.failed[i] += 1
        _close(self._envs[i])
        if isinstance(error, WrongInterface):
            raise error
        if isinstance(error, Misfit) and not self._fits:
            raise WrongInterface(f"environment {self.spec.env_id!r}: {error}") from error
        if self.failed[i] >= MAX_FAILURES:
            times = f"environment {self.spec.env_id!r} failed {self.failed[i]} times in a row"
            raise EnvError(f"{times}, the last time with {describe_error(error)}") from error
        part, self._done[i] = self._rows_of(i), False
        self.statistics.forget(part)
        rows = self.rows[part]
        rows["reward"], rows["terminated"], rows["truncated"], rows["first"] = 0, False, False, True
        self._retry_at[i] = time.monotonic() + backoff_s(self.failed[i])
        self.worn |= self.failed[i] % FRESH_AFTER == 0
        self._reset(i)


def seed_spaces(env: Any, seed: int | None) -> None:
    """Make what an environment draws from its spaces repeatable."""
    for space in (env.observation_space, env.action_space) if seed is not None else ():
        with contextlib.suppress(Exception):  # foreign code; of several agents, these are methods
            space.seed(seed)


def _close(env: Any) -> None:
    with contextlib.suppress(Exception):  # foreign code, and nothing depends on it
        env.close()
