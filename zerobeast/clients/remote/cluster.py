"""One gymnasium vector environment over many env-servers; it goes on when some of them are gone.

envs = ClusterVectorEnv(["tcp://a:5550", "tcp://b:5550"], "CartPole-v1", num_envs=64)
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.vector import AutoresetMode

from zerobeast.clients.env_session import EnvAnswer, Episodes, Infos, Mask, fill_actions
from zerobeast.clients.remote.part import ClusterPart
from zerobeast.clients.remote.spaces import put
from zerobeast.clients.remote.vector_env import RowsVectorEnv
from zerobeast.common.errors import ConfigError, PeerLost, RequestRefused
from zerobeast.common.transport import Context, Poller
from zerobeast.common.wire import MAX_ENV_SEED, EnvSeeds, action_record, short, step_record
from zerobeast.common.wire.messages import Reason
from zerobeast.common.wire.seeds import slice_seeds

OnLoss = Literal["mask", "remake"]


class ClusterFleet:
    """The environments of a `ClusterVectorEnv`. The constructor opens a session with each env-server.

    Arguments and errors are those of `ClusterVectorEnv`; `terms` are those of HELLO, for all environments together.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        context: Context,
        terms: Mapping[str, Any],
        *,
        on_loss: OnLoss,
        step_timeout_s: float,
        timeout_s: float,
    ) -> None:
        self._endpoints, self._on_loss = endpoints, on_loss
        self._step_timeout_s, self.timeout_s = step_timeout_s, timeout_s
        self._num_envs: int = terms["num_envs"]
        bounds = np.linspace(0, self._num_envs, len(endpoints) + 1).astype(int).tolist()
        self._parts: list[ClusterPart] = []
        for home in range(len(endpoints)):
            slot = slice(bounds[home], bounds[home + 1])
            share = {"num_envs": slot.stop - slot.start, "seed": _seed(terms["seed"], slot)}
            self._parts.append(ClusterPart(context, {**terms, **share}, slot, home, self._place))
        self._poller, self._polled = Poller(), list[Any]()
        self._began = self._limit_s = self._deadline = 0.0
        self._here_at = time.monotonic()  #: when any part was last here
        self._resets_all = False  #: whether the request under way resets all environments
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self._rows = np.zeros(self._num_envs, step_record(self.spec, packed=False).dtype)
        self._actions = np.zeros(self._num_envs, action_record(self.spec.action).dtype)["action"]

    def begin_reset(self, seed: EnvSeeds, options: dict[str, Any] | None, mask: Mask | None) -> None:
        """As in `EnvSource`. Environments that come back later are reset without a seed or options."""
        self._begin(self._step_timeout_s if mask is not None else self.timeout_s)
        self._resets_all = mask is None
        for part in self._parts:
            if mask is None or mask[part.slot].any():
                part_seed = _seed(seed, part.slot) if isinstance(seed, int) else slice_seeds(seed, part.slot)
                part.begin_reset(part_seed, options, None if mask is None else mask[part.slot])

    def begin_step(self, actions: Any) -> None:
        """As in `EnvSource`. Actions of lost environments have no effect."""
        fill_actions(self._actions, self.spec.action, actions)  # or one env-server would refuse what others have begun
        self._begin(self._step_timeout_s)
        self._resets_all = False
        for part in self._parts:
            part.begin_step(self._actions[part.slot])

    def finish(self) -> EnvAnswer:
        """Wait until all parts that are here have answered. Those that have not by the deadline are lost.

        Raises:
          ConfigError: an env-server refuses a reset. That loses no environments except those that fail.
          PeerLost: all have been lost for too long.
        """
        self._deadline = time.monotonic() + self._limit_s  # the caller's own work since the request does not count
        while not self._is_done() and time.monotonic() < self._deadline:
            self._wait()
        refusals = []
        for part in self._parts:
            failed = (
                isinstance(part.refusal, RequestRefused) and part.refusal.reason == Reason.ENVIRONMENT
            )  # a valid request
            if part.asked:
                name, waited_s = "" if self._resets_all else "step_", round(time.monotonic() - self._began, 1)
                part.lose(PeerLost(f"{part.complaint(waited_s)}: {name}timeout_s is {self._limit_s:g}"))
            elif part.refusal is not None and failed and not self._resets_all:
                part.lose(part.refusal)
            elif part.refusal is not None:
                refusals.append(part.refusal)
        if refusals:
            raise refusals[0]
        self._check_that_one_is_here()
        return self._merge()

    def close(self) -> None:
        """Send BYE to all env-servers."""
        for part in self._parts:
            part.close()

    def _open(self) -> None:
        """Open the first session of each part."""
        self._begin(self.timeout_s)
        while not (self._is_done() and all(part.here for part in self._parts)):
            for part in self._parts:
                if not isinstance(part.trouble, PeerLost | None):  # a lost peer may come back
                    raise part.trouble
                if not part.here and time.monotonic() > self._deadline:
                    raise PeerLost(f"{part.complaint(self.timeout_s)}: timeout_s is {self.timeout_s:g}")
            self._wait()
        self.spec = self._parts[0].session.spec
        for part in self._parts:
            if part.spec != self.spec:
                raise ConfigError(
                    f"the {part.session.server} has {part.spec}, expected {self.spec} as on the other env-servers"
                )

    def _begin(self, limit_s: float) -> None:
        self._began = time.monotonic()
        self._limit_s, self._deadline = limit_s, self._began + limit_s
        for part in self._parts:
            if part.asked:
                part.lose(PeerLost("the call before was interrupted"))
            part.answered, part.refusal = False, None
        if any(part.here for part in self._parts):
            self._here_at = self._began

    def _is_done(self) -> bool:
        for part in self._parts:
            part.tend()
        return not any(part.asked for part in self._parts) and any(part.here for part in self._parts)

    def _wait(self) -> None:
        ports = [port for part in self._parts for port in part.ports]
        if ports != self._polled:
            self._poller, self._polled = Poller(ports), ports
        pause_s = min(part.pause_s() for part in self._parts)
        self._poller.wait(max(0.0, min(pause_s, self._deadline - time.monotonic())))

    def _place(self, part: ClusterPart) -> tuple[int, str]:
        """Where to look for a part's environments: at home or, with "remake", alternately where the fewest are."""
        host, hosting = part.home, Counter[int]()
        for other in self._parts:
            hosting[other.host] += other.size if other.here else 0
        hosting = +hosting
        if self._on_loss == "remake" and part.attempts % 2 and hosting:
            host = min(hosting, key=hosting.__getitem__)
        return host, self._endpoints[host]

    def _check_that_one_is_here(self) -> None:
        now = time.monotonic()
        if any(part.here for part in self._parts):
            self._here_at = now
        elif now - self._here_at > self.timeout_s:
            what = f"none of {len(self._endpoints)} env-servers has answered for {now - self._here_at:.0f} s"
            raise PeerLost(f"{what}, the last trouble: {self._parts[0].trouble}")

    def _merge(self) -> EnvAnswer:
        rows, lost = self._rows.copy(), np.zeros(self._num_envs, np.bool_)
        infos: Infos = {}
        episodes: Episodes = []
        for part in self._parts:
            if part.here and part.answered:
                rows[part.slot] = part.session.rows
                episodes += part.session.episodes
                there = np.arange(part.size)
                put(infos, part.session.infos, self._num_envs, there + part.slot.start, there)
            elif not part.here:
                lost[part.slot] = True
                for name in ("reward", "terminated", "truncated", "first"):
                    rows[name][part.slot] = 0
        self._rows = rows
        return EnvAnswer(rows, infos, episodes, lost)


def _seed(seed: int, slot: slice) -> int:
    return int((seed + slot.start) % (MAX_ENV_SEED + 1))


class ClusterVectorEnv(RowsVectorEnv):
    """N environments spread evenly over env-servers that step in parallel.

    An env-server that is killed, stopped or cut off costs one step of `step_timeout_s`. Its environments are then lost:
    see `RowsVectorEnv`. They repeat their last observation with reward 0 until they are made anew and a new episode
    begins, as after any other end of an episode. No method waits longer than the time that it was
    given, but a step in SAME_STEP mode that ends episodes makes two requests and may take twice `step_timeout_s`.

    Args:
      endpoints: the endpoints of the env-servers; each hosts a slice of the environments.
      env_id, num_envs, env, autoreset_mode, context: as in `RemoteVectorEnv`.
      on_loss: where lost environments are made anew. "mask": at their own env-server, when it is back; until then the
        others go on without them. "remake": at any env-server that answers, first at the one with the fewest
        environments.
      step_timeout_s: how long a step may take.
      timeout_s: how long opening the sessions or a reset of all environments may take, and how long all of them may be
        lost before PeerLost is raised.

    Raises:
      ConfigError: an env-server refuses, or two of them have different environments.
      PeerLost: at the start, an env-server does not answer in time; later, none of them does.

    Examples:
      Two env-servers, or one that serves both halves, as here:

      >>> import zerobeast as zb
      >>> endpoints = ["tcp://127.0.0.1:5550", "tcp://127.0.0.1:5550"]
      >>> envs = zb.ClusterVectorEnv(endpoints, "CartPole-v1", num_envs=8)
      >>> observations, infos = envs.reset(seed=1)
      >>> observations.shape
      (8, 4)
      >>> envs.close()
    """

    def __init__(  # noqa: PLR0913 - a constructor for users, who name what they mean
        self,
        endpoints: Sequence[str],
        env_id: str,
        num_envs: int,
        *,
        env: Mapping[str, Any] | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        on_loss: OnLoss = "mask",
        step_timeout_s: float = 10.0,
        timeout_s: float = 60.0,
        context: Context | None = None,
    ) -> None:
        if isinstance(endpoints, str) or not 0 < len(endpoints) <= num_envs:
            raise ConfigError(f"endpoints are {short(endpoints)}, expected a list of 1 to {num_envs} (num_envs)")
        if on_loss not in get_args(OnLoss):
            raise ConfigError(argument="on_loss", value=on_loss, expected=" or ".join(get_args(OnLoss)))
        opened = partial(ClusterFleet, endpoints, on_loss=on_loss, step_timeout_s=step_timeout_s, timeout_s=timeout_s)
        super().__init__(opened, env_id, num_envs, env, autoreset_mode, context)
