"""A gymnasium vector environment over rows, and the one for a single env-server.

envs = RemoteVectorEnv("tcp://host:5550", "CartPole-v1", num_envs=64)    # in place of gymnasium.make_vec(...)
"""

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.env_session import EnvAnswer, EnvSource, Episodes, Infos, Mask, fill_actions
from zerobeast.clients.remote.arguments import MASK, autoreset_mode_of, check_seeds, gymnasium_spec, refuse_mask
from zerobeast.clients.remote.spaces import Observations, select
from zerobeast.common.errors import ConfigError
from zerobeast.common.transport import Context
from zerobeast.common.wire import MAX_ENV_SEED, EnvSeeds, action_record, short
from zerobeast.services.envserver.spaces import gym_space

Step = tuple[Any, NDArray[np.float64], Mask, Mask, Infos]

ATTRIBUTES = ("spec", "render_mode", "metadata", "observation_space", "action_space")  #: that `get_attr` has


class RowsVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """N environments of a source, as a gymnasium vector environment.

    An environment is *lost* while its env-server does not answer, and in the step in which its env-server makes it
    anew because it failed. Its episode is then cut off where it was last seen, truncated with reward 0. The mask
    `infos["lost"]` marks it in that step, and in every later step that brings nothing new from it.

    Args:
      open_source: opens the source of their rows, under the terms of HELLO.
      env_id, num_envs, env, autoreset_mode, context: as for `RemoteVectorEnv`.

    Attributes:
      episodes: (unclipped return, length) of the whole episodes that ended in the newest step: whole games, even if a
        setting ends an episode with each life.
    """

    def __init__(
        self,
        open_source: Callable[[Context, dict[str, Any]], EnvSource],
        env_id: str,
        num_envs: int,
        env: Mapping[str, Any] | None,
        autoreset_mode: str | AutoresetMode,
        context: Context | None,
    ) -> None:
        self._mode = autoreset_mode_of(autoreset_mode)
        terms = {"env": {**(env or {}), "id": env_id}, "num_envs": num_envs, "seed": secrets.randbelow(MAX_ENV_SEED)}
        terms |= {"infos": True, "reset_masks": self._mode is not AutoresetMode.NEXT_STEP}
        with contextlib.ExitStack() as stack:
            self.source = open_source(context or stack.enter_context(Context()), terms)
            stack.callback(self.source.close)
            self._resources = stack.pop_all()  #: released by `close`
        spec = self.source.spec
        self.num_envs = num_envs
        self.single_observation_space = gym_space(spec.obs, spec.stack)
        self.single_action_space = gym_space(spec.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": self._mode}
        self.spec = gymnasium_spec(env_id)
        self.episodes: Episodes = []
        self._observations = Observations(spec, num_envs)
        self._steps = False  #: whether a step is under way
        self._was_reset = False
        self._over = self._none()  #: environments whose newest step ended an episode, with no new one begun yet
        self._lost = self._none()  #: whose env-server did not answer
        self._unseen = self._none()  #: whose new episode has not been shown yet
        self._to_cut = self._none()  #: whose episode is gone without this having been shown yet
        self._first = self._none()  #: the flag `first` of the newest rows

    def reset(self, *, seed: EnvSeeds = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Begin new episodes: in all environments, or in those of `options["reset_mask"]`, [N] booleans.

        Args:
          seed: environment i is seeded with seed + i, or with entry i of a list; None: its generator goes on.
          options: options of the environments' own `reset`, besides the mask.

        Raises:
          ConfigError: seed, options or mask are invalid.
          PeerLost: no answer in time.
        """
        self._expect_nothing_begun()
        seeds = check_seeds(seed, self.num_envs)
        rest = dict(options or {})
        mask = rest.pop(MASK, None)
        if mask is not None:
            refuse_mask(mask, self.num_envs, was_reset=self._was_reset)
        self.source.begin_reset(seeds, rest or None, mask)
        super().reset(seed=seeds if isinstance(seeds, int) else None)
        answer, asked = self.source.finish(), ~self._none() if mask is None else mask
        rows, lost = answer.rows, answer.lost
        back = self._lost & ~lost
        self._to_cut |= rows["first"] & ~self._first & ~asked & ~lost & ~back
        shown = (asked | back) & ~lost
        self._observations.take(rows, shown, shown)
        for mask in (self._over, self._unseen, self._to_cut):
            mask[asked | back] = False
        self._was_reset, self.episodes, self._first = True, [], rows["first"].copy()
        self._lost = lost & (asked | self._lost)  # the next step shows that the others are lost
        return self._observations.all(), self._with_flags(select(answer.infos, shown), rows, self._lost)

    def step(self, actions: Any) -> Step:
        """One step of all environments.

        Raises:
          ConfigError: actions of the wrong shape, kind or range, or an environment has ended and nothing resets it.
          PeerLost: no answer in time.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a `step`, without waiting for the answer."""
        self._expect_nothing_begun()
        if not self._was_reset:
            raise ConfigError("step before reset: expected reset first")
        waiting = self._over & ~self._lost
        if self._mode is AutoresetMode.DISABLED and waiting.any():
            expected = f'with autoreset_mode DISABLED, expected reset(options={{"{MASK}": ...}}) before the next step'
            raise ConfigError(f"environment {np.argmax(waiting)} has ended and was not reset: {expected}")
        rows = np.zeros(self.num_envs, action_record(self.source.spec.action).dtype)["action"]
        fill_actions(rows, self.source.spec.action, actions, own=True)
        self.source.begin_step(rows)
        self._steps = True

    def step_wait(self) -> Step:
        """Wait for the answer to `step_async`; returns the same as `step`."""
        if not self._steps:
            raise ConfigError("step_wait: no step is under way, expected step_async first")
        self._steps = False
        answer = self.source.finish()
        rows, lost, first = answer.rows, answer.lost, answer.rows["first"]
        begins = (first & (self._over | self._lost)) | self._unseen
        cut = ((first & ~begins) | (lost & ~self._lost) | self._to_cut) & ~self._over
        begins &= ~cut
        terminated = rows["terminated"] & ~begins & ~cut
        truncated = (rows["truncated"] & ~begins) | cut
        reward = np.where(begins | cut | lost, 0.0, rows["reward"].astype(np.float64))
        self._observations.take(rows, ~cut & ~lost, begins)
        self.episodes, self._over, self._lost = answer.episodes, terminated | truncated, lost
        self._unseen, self._to_cut, self._first = cut & ~lost, self._none(), first.copy()
        infos, gone = select(answer.infos, ~cut & ~lost), cut | lost
        if self._mode is AutoresetMode.SAME_STEP and self._over.any():
            rows, infos, late = self._begin_anew(answer, cut)
            truncated, gone = truncated | late, cut | (lost & self._lost) | late  # some may be back by now
        return self._observations.all(), reward, terminated, truncated, self._with_flags(infos, rows, gone)

    def _begin_anew(self, answer: EnvAnswer, cut: Mask) -> tuple[NDArray[Any], Infos, Mask]:
        """SAME_STEP: show a new episode in place of each ended one, whose last observation and infos become final.

        Args:
          answer: the answer to the step.
          cut: which episodes were cut off, not ended by their environments.

        Returns:
          The rows and infos to show now, and which episodes were cut off meanwhile.
        """
        ended, infos = self._over, select(answer.infos, ~self._over)
        final_obs, rows, late = self._observations.each(ended), answer.rows, self._none()
        replaced = cut & ~answer.lost
        self._observations.take(rows, replaced, replaced)
        select(answer.infos, replaced, infos)
        if (asked := ended & ~cut).any():
            self.source.begin_reset(None, None, asked)
            second = self.source.finish()
            rows, here = second.rows, ~second.lost
            late = ((rows["first"] & ~self._first & ~answer.lost) | (second.lost & ~answer.lost)) & ~ended
            final_obs[late] = self._observations.each(late)[late]
            shown = (asked | late | answer.lost) & here & rows["first"]
            self._observations.take(rows, shown, shown)
            infos = select(second.infos, shown, select(infos, ~late))
            self._lost, self._first = second.lost, rows["first"].copy()
        final = ended | late
        infos |= {"final_obs": final_obs, "_final_obs": final}
        infos |= {"final_info": select(answer.infos, final & ~cut), "_final_info": final.copy()}
        self._over, self._unseen = self._none(), self._none()
        return rows, infos, late

    def render(self) -> NoReturn:
        """Refuse: frames stay where the environments are."""
        raise ConfigError("render is not supported: an env-server sends no frames")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment, of the few whose names are known here.

        Raises:
          ConfigError: another name, which only the env-server could look up.
        """
        if name not in ATTRIBUTES:
            known = ", ".join(ATTRIBUTES)
            raise ConfigError(f"attribute {short(name)} stays in the env-server, expected any of {known}")
        value = getattr(self, f"single_{name}" if name.endswith("_space") else name)
        return (value,) * self.num_envs

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As `get_attr`: nothing is called in an env-server. Raises ConfigError for arguments or another name."""
        if args or kwargs:
            raise ConfigError(f"call({short(name)}, ...): an env-server runs no methods of its environments")
        return self.get_attr(name)

    def set_attr(self, name: str, values: Any) -> NoReturn:
        """Refuse: nothing can be set in an env-server."""
        del values
        raise ConfigError(f"attribute {short(name)} cannot be set: it stays in the env-server")

    def close_extras(self, **_kwargs: Any) -> None:
        """Send BYE; each env-server closes its environments."""
        self._resources.close()

    def _expect_nothing_begun(self) -> None:
        if self.closed:
            raise ConfigError("this vector environment is closed")
        if self._steps:
            raise ConfigError("a step is under way, expected step_wait first")

    def _with_flags(self, infos: Infos, rows: NDArray[Any], gone: Mask) -> Infos:
        if gone.any():
            infos |= {"lost": gone.copy(), "_lost": gone.copy()}
        if self.source.spec.action_mask:
            infos |= {"action_mask": rows["action_mask"].copy(), "_action_mask": ~self._none()}
        return infos

    def _none(self) -> Mask:
        return np.zeros(self.num_envs, np.bool_)


class RemoteVectorEnv(RowsVectorEnv):
    """N environments of one env-server.

    Actions and observations are those of the environments, except that float64 becomes float32. Infos have only the
    numeric entries.

    Args:
      endpoint: the endpoint of the env-server.
      env_id: the id of the environments.
      num_envs: N.
      env: further settings, named as in `EnvConfig`, such as {"kwargs": {...}, "frame_stack": 1}.
      autoreset_mode: gymnasium's, by name or value. SAME_STEP costs a second request in each step that ends an episode.
      timeout_s: how long the env-server may be silent, and how long any answer may take for each environment.
      context: context whose keys protect the connection; None: a connection without keys.

    Raises:
      ConfigError: the env-server refuses, for instance because it does not have the environment.
      PeerLost: no answer in time (in any method), or the env-server lost the session.
      RemoteProtocolError: the env-server sent an invalid answer.

    Examples:
      An env-server runs on this machine: `python -m zerobeast.services.envserver`.

      >>> import zerobeast as zb
      >>> envs = zb.RemoteVectorEnv("tcp://127.0.0.1:5550", "CartPole-v1", num_envs=8)
      >>> observations, infos = envs.reset(seed=1)
      >>> observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
      >>> observations.shape, rewards.shape
      ((8, 4), (8,))
      >>> envs.close()
    """

    def __init__(
        self,
        endpoint: str,
        env_id: str,
        num_envs: int,
        *,
        env: Mapping[str, Any] | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        timeout_s: float = 60.0,
        context: Context | None = None,
    ) -> None:
        def open_source(context: Context, terms: dict[str, Any]) -> EnvClient:
            return EnvClient(context, endpoint, timeout_s=timeout_s, **terms)

        super().__init__(open_source, env_id, num_envs, env, autoreset_mode, context)
