"""Where the rows of a vector environment come from: one env-server, or a fleet of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.env_session import Episodes, Infos
from zerobeast.common.wire.seeds import EnvSeeds
from zerobeast.common.wire.specs import EnvSpec

Mask = NDArray[np.bool_]  #: [N]


class EnvAnswer(NamedTuple):
    """The result of one step or reset."""

    rows: NDArray[Any]  #: [N] of `step_record`
    infos: Infos
    episodes: Episodes  #: whole ones that ended
    lost: Mask  #: whose env-server does not answer: their rows repeat the last ones, with no reward, end or start


class EnvSource(Protocol):
    """N environments that answer in rows."""

    spec: EnvSpec

    def begin_reset(self, seed: EnvSeeds, options: dict[str, Any] | None, mask: Mask | None) -> None:
        """Begin new episodes, as in `EnvClient.reset`."""

    def begin_step(self, actions: Any) -> None:
        """Begin a step, as in `EnvClient.step`."""

    def finish(self) -> EnvAnswer:
        """Wait for the answer to what was begun."""

    def close(self) -> None:
        """Release the environments."""


class OneServer:
    """The environments of one session."""

    def __init__(self, client: EnvClient) -> None:
        self._client = client
        self.spec = client.spec
        self.begin_reset, self.begin_step, self.close = client.begin_reset, client.begin_step, client.close

    def finish(self) -> EnvAnswer:
        rows, episodes, infos = self._client.finish()
        return EnvAnswer(rows, infos, episodes, np.zeros(len(rows), np.bool_))
