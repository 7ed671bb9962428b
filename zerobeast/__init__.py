"""Distributed deep RL in PyTorch as four small services over ZeroMQ.

What your own scripts need; each name is loaded when it is first used:

    train, start          train, and wait for the end or not; `Run` and `Callbacks` are of such a run
    load, evaluate        the policy of a saved run: to act with it in your own loop, or over whole episodes
    RemoteVectorEnv, ClusterVectorEnv    gymnasium vector environments that env-servers host
    Context, EnvClient    the same without gymnasium, in rows; `EnvSpec` and `ArraySpace` describe environments
    PolicyClient, OwnEnv  let a run act in, and learn from, a program that steps itself
    RemoteActing          takes the learner's place: workers act with your policy and send back whole rollouts
    RunConfig             the settings of a run
    BeastError            base of every error raised on purpose: ConfigError, EnvError, CheckpointError, PeerLost
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zerobeast.version import __version__ as __version__

if TYPE_CHECKING:
    from zerobeast.api.run import Callbacks, Run, start, train
    from zerobeast.api.saved import evaluate, load
    from zerobeast.clients.env_client import EnvClient
    from zerobeast.clients.own_env import OwnEnv
    from zerobeast.clients.policy import Policy
    from zerobeast.clients.policy_client import PolicyClient
    from zerobeast.clients.remote.cluster import ClusterVectorEnv
    from zerobeast.clients.remote.vector_env import RemoteVectorEnv
    from zerobeast.clients.remote_acting import RemoteActing
    from zerobeast.common.errors import BeastError, CheckpointError, ConfigError, EnvError, PeerLost
    from zerobeast.common.settings import RunConfig
    from zerobeast.common.transport import Context
    from zerobeast.common.wire import ArraySpace, EnvSpec

__all__ = [
    "ArraySpace",
    "BeastError",
    "Callbacks",
    "CheckpointError",
    "ClusterVectorEnv",
    "ConfigError",
    "Context",
    "EnvClient",
    "EnvError",
    "EnvSpec",
    "OwnEnv",
    "PeerLost",
    "Policy",
    "PolicyClient",
    "RemoteActing",
    "RemoteVectorEnv",
    "Run",
    "RunConfig",
    "evaluate",
    "load",
    "start",
    "train",
]

# Env-servers and actors import this file too and never load torch.
_HOMES = {
    "ArraySpace": "zerobeast.common.wire",
    "Callbacks": "zerobeast.api.run",
    "ClusterVectorEnv": "zerobeast.clients.remote.cluster",
    "Context": "zerobeast.common.transport",
    "EnvClient": "zerobeast.clients.env_client",
    "EnvSpec": "zerobeast.common.wire",
    "OwnEnv": "zerobeast.clients.own_env",
    "Policy": "zerobeast.clients.policy",
    "PolicyClient": "zerobeast.clients.policy_client",
    "RemoteActing": "zerobeast.clients.remote_acting",
    "RemoteVectorEnv": "zerobeast.clients.remote.vector_env",
    "Run": "zerobeast.api.run",
    "RunConfig": "zerobeast.common.settings",
    "evaluate": "zerobeast.api.saved",
    "load": "zerobeast.api.saved",
    "start": "zerobeast.api.run",
    "train": "zerobeast.api.run",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'zerobeast' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "zerobeast.common.errors")), name)
