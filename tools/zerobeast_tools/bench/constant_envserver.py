"""An env-server whose environments never change and cost nothing."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.service.entry import main
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire import ArraySpace, EnvSeeds, EnvSpec
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.vector import EnvMask

ENV = EnvSpec("Constant-v0", ArraySpace.box((4,)), ArraySpace.discrete(2))


class _ConstantEnvs(InlineEnvs):
    """N environments whose observations never change."""

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        del seed, options, only
        self.fill_first(np.zeros_like(self.rows["obs"]))

    def begin_step(self, actions: NDArray[Any]) -> None:
        """See the base class."""

    def finish_step(self) -> None:
        self.rows["first"] = False

    def close(self) -> None:
        """See the base class."""


@contextlib.contextmanager
def constant(env: EnvSpec) -> Iterator[None]:
    """Make every env-server of this process serve constant environments within this context."""

    def make(_config: EnvConfig, num_envs: int, _seed: int, _server: EnvServerConfig, **_: bool) -> InlineVectorEnv:
        return InlineVectorEnv(lambda n, _first_seed: _ConstantEnvs(env, n), num_envs, seed=0, most=num_envs)

    with patch("zerobeast.services.envserver.service.make_vector_env", make):
        yield


if __name__ == "__main__":
    with constant(ENV):
        sys.exit(main("envserver", sys.argv[1:]))
