"""Distributed deep RL in PyTorch as four small services over ZeroMQ.

What your own scripts need; each name is loaded when it is first used:

    train, start          train, and wait for the end or not; `Callbacks` hear of what happens meanwhile
    Run, runs             a run that exists, and all of them: figures, policies, values to log, settings to change
    plot, compare, record, sweep    curves of runs, a table, a video, many runs: as the commands of these names
    check                 whether an environment of one's own is as a run expects it
    load, evaluate        the policy of a saved run: to act with it in your own loop, or over whole episodes
    export                the same as a folder for others, with a model card: weights, or a graph
    RemoteVectorEnv, ClusterVectorEnv    gymnasium vector environments that env-servers host
    Context, EnvClient    the same without gymnasium, in rows; `EnvSpec` and `ArraySpace` describe environments
    PolicyClient, OwnEnv  let a run act in, and learn from, a program that steps itself
    RemoteActing          takes the learner's place: workers act with your policy and send back whole rollouts
    RunConfig             the settings of a run
    BeastError            base of every error raised on purpose: ConfigError, EnvError, CheckpointError, PeerLost
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from zerobeast.version import __version__ as __version__

if TYPE_CHECKING:
    from zerobeast.api.check import check as check
    from zerobeast.api.export import export as export
    from zerobeast.api.policies import evaluate as evaluate
    from zerobeast.api.policies import load as load
    from zerobeast.api.results import compare as compare
    from zerobeast.api.results import record as record
    from zerobeast.api.run import Callbacks as Callbacks
    from zerobeast.api.run import Run as Run
    from zerobeast.api.run import runs as runs
    from zerobeast.api.train import start as start
    from zerobeast.api.train import train as train
    from zerobeast.clients.env_client import EnvClient as EnvClient
    from zerobeast.clients.own_env import OwnEnv as OwnEnv
    from zerobeast.clients.policy_client import PolicyClient as PolicyClient
    from zerobeast.clients.remote.cluster import ClusterVectorEnv as ClusterVectorEnv
    from zerobeast.clients.remote.vector_env import RemoteVectorEnv as RemoteVectorEnv
    from zerobeast.clients.remote_acting import RemoteActing as RemoteActing
    from zerobeast.common.errors import BeastError as BeastError
    from zerobeast.common.errors import CheckpointError as CheckpointError
    from zerobeast.common.errors import ConfigError as ConfigError
    from zerobeast.common.errors import EnvError as EnvError
    from zerobeast.common.errors import PeerLost as PeerLost
    from zerobeast.common.settings import RunConfig as RunConfig
    from zerobeast.common.transport import Context as Context
    from zerobeast.common.wire import ArraySpace as ArraySpace
    from zerobeast.common.wire import EnvSpec as EnvSpec
    from zerobeast.playing.policy import Policy as Policy
    from zerobeast.results.reports import plot as plot
    from zerobeast.sweeping.sweep import sweep as sweep

#: module -> the names that it defines; env-servers and actors import this file too and never load torch
_NAMES = {
    "zerobeast.api.check": ["check"],
    "zerobeast.api.export": ["export"],
    "zerobeast.api.results": ["compare", "record"],
    "zerobeast.api.run": ["Callbacks", "Run", "runs"],
    "zerobeast.api.policies": ["evaluate", "load"],
    "zerobeast.api.train": ["start", "train"],
    "zerobeast.clients.env_client": ["EnvClient"],
    "zerobeast.clients.own_env": ["OwnEnv"],
    "zerobeast.clients.policy_client": ["PolicyClient"],
    "zerobeast.clients.remote.cluster": ["ClusterVectorEnv"],
    "zerobeast.clients.remote.vector_env": ["RemoteVectorEnv"],
    "zerobeast.clients.remote_acting": ["RemoteActing"],
    "zerobeast.common.errors": ["BeastError", "CheckpointError", "ConfigError", "EnvError", "PeerLost"],
    "zerobeast.common.settings": ["RunConfig"],
    "zerobeast.common.transport": ["Context"],
    "zerobeast.common.wire": ["ArraySpace", "EnvSpec"],
    "zerobeast.playing.policy": ["Policy"],
    "zerobeast.results.reports": ["plot"],
    "zerobeast.sweeping.sweep": ["sweep"],
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zerobeast' has no attribute {name!r}")
    from zerobeast.common.extras import name_extra

    with name_extra():
        part = getattr(import_module(_HOMES[name]), name)
    if isinstance(part, FunctionType):
        from zerobeast.api.python_terms import translate_errors

        part = translate_errors(part)
        part.__module__ = __name__  # by which another process finds this one
    globals()[name] = part
    return part
