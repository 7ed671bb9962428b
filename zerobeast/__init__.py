"""Distributed deep RL in PyTorch as four small services over ZeroMQ.

What a script of your own needs, loaded when it is first used:

    Context, EnvClient    step environments that an env-server hosts; `EnvSpec` describes them
    Player                the policy of a saved run; `RunConfig` has the settings of one
    BeastError            base of every error raised on purpose: ConfigError, EnvError, CheckpointError, PeerLost
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zerobeast.version import __version__ as __version__

if TYPE_CHECKING:
    from zerobeast.common.config.tree import RunConfig
    from zerobeast.common.errors import BeastError, CheckpointError, ConfigError, EnvError, PeerLost
    from zerobeast.common.transport import Context
    from zerobeast.common.wire.specs import EnvSpec
    from zerobeast.env_client import EnvClient
    from zerobeast.player import Player

__all__ = [
    "BeastError",
    "CheckpointError",
    "ConfigError",
    "Context",
    "EnvClient",
    "EnvError",
    "EnvSpec",
    "PeerLost",
    "Player",
    "RunConfig",
]

# Env-servers and actors import this file too and never load torch.
_HOMES = {
    "Context": "zerobeast.common.transport",
    "EnvClient": "zerobeast.env_client",
    "EnvSpec": "zerobeast.common.wire.specs",
    "Player": "zerobeast.player",
    "RunConfig": "zerobeast.common.config.tree",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'zerobeast' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "zerobeast.common.errors")), name)
