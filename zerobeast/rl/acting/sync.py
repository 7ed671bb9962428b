"""One acting process's part of `sync.rule`: when it takes newer weights, and what that saves.

The weights are pulled. The learner announces in small messages (NEWS) which version is the newest, how many agent steps
the run has made, on which exploration may depend, and, for each process that acts, how far the policy has moved from
the one that acts there, measured on the rollouts that it receives anyway.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.sync_rule import ALWAYS_RULE, Rule
from zerobeast.common.wire.messages import Header

SILENCE_S = 30.0  #: after this long without news, take any version that arrives


class News(NamedTuple):
    """The learner's announcement of its versions: the body of NEWS."""

    version: int  #: the newest published
    entries: dict[int, tuple[int, float]]  #: acting process -> (its newest measured version, its divergence)
    agent_steps: int = 0  #: of the run

    @classmethod
    def from_wire(cls, body: tuple[Any, ...]) -> News:
        """Check a body.

        Raises:
          RemoteProtocolError: an entry is not [acting, policy_version, divergence].
        """
        version, entries, agent_steps = body
        for entry in entries:
            if not (
                isinstance(entry, list)
                and [type(each) for each in entry] == [int, int, float]
                and entry[0] >= 0
                and entry[1] >= 0
                and math.isfinite(entry[2])
            ):
                raise RemoteProtocolError(f"a divergence is [acting, policy_version, number], not {entry!r:.100}")
        return cls(version, {acting: (of, divergence) for acting, of, divergence in entries}, agent_steps or 0)


class Sync:
    """The rule of one acting process, and its counts. Time is an argument.

    Args:
      rule: of the process.
      acting: its epoch, by which the learner identifies it.
      publish_every: the learner's.
    """

    def __init__(self, rule: Rule = ALWAYS_RULE, acting: int = 0, publish_every: int = 1) -> None:
        self.rule, self._acting, self._every = rule, acting, publish_every
        self._epoch = 0  #: of the learner whose weights act
        self._version, self._taken_at = -1, -math.inf  #: of the weights that act
        self._announced_epoch, self._news = 0, News(-1, {})
        self._news_at = -math.inf  #: when news last came or a version was taken
        self._syncs = self._announced = 0  #: versions taken, and published meanwhile
        self._n_bytes = 0  #: of the weights

    @property
    def continuous(self) -> bool:
        """Whether every version is taken as it arrives, unconditionally."""
        return self.rule.name == "always"

    @property
    def agent_steps(self) -> int:
        """Agent steps of the run, by the newest announcement of the learner whose weights act; 0: there is none."""
        return self._news.agent_steps if self._announced_epoch == self._epoch else 0

    def note_news(self, header: Header, now: float) -> None:
        """Take note of NEWS.

        Raises:
          RemoteProtocolError: it is malformed.
        """
        news = News.from_wire(header.body)
        if header.epoch == self._announced_epoch:
            self._announced += max(0, news.version - self._news.version) // self._every
        self._announced_epoch, self._news, self._news_at = header.epoch, news, now

    def wants(self, now: float) -> bool:
        """Whether to take the newest weights now: the first of each learner, then according to the rule."""
        if self._version < 0 or self.continuous or self._announced_epoch not in (0, self._epoch):
            return True
        name, value = self.rule
        if name == "never":
            return False
        return now - self._news_at > SILENCE_S or (self._behind > 0 and self._due(value, now))

    def note_taken(self, epoch: int, version: int, n_bytes: int, now: float) -> None:
        """Count a version of `n_bytes` that acts from now on."""
        self._epoch, self._version, self._n_bytes, self._taken_at = epoch, version, n_bytes, now
        self._news_at = max(self._news_at, now)
        self._syncs += 1

    def page(self) -> dict[str, Any]:
        """For the health page."""
        saved = max(0, self._announced + 1 - self._syncs) if self._syncs else 0
        return {
            "syncs": self._syncs,
            "sync_bytes": self._syncs * self._n_bytes,
            "sync_bytes_saved": 0 if self.continuous else saved * self._n_bytes,
            "versions_behind": self._behind,
            "divergence": self._divergence if self.rule.measured else None,
        }

    def _due(self, value: float, now: float) -> bool:
        if self.rule.name == "versions":
            return self._behind >= value * self._every
        if self.rule.name == "seconds":
            return now - self._taken_at >= value
        of, _ = self._news.entries.get(self._acting, (-1, 0.0))  # a later version is of an earlier start of the learner
        return of > self._version or self._divergence > value

    @property
    def _behind(self) -> int:
        return max(0, self._news.version - self._version) if self._announced_epoch == self._epoch else 0

    @property
    def _divergence(self) -> float:
        """Divergence of the weights that act; what was measured of earlier ones does not count."""
        of, divergence = self._news.entries.get(self._acting, (-1, 0.0))
        return divergence if of >= self._version else 0.0
