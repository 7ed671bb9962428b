"""The list of algorithms: the only place that knows them all. Each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from common.algos.protocol import Algorithm
from common.config.tree import RunConfig
from common.specs import EnvSpec

ALGORITHMS = {
    "impala": "common.algos.impala.algorithm:Impala",
    "a2c": "common.algos.a2c.algorithm:A2C",
    "ppo": "common.algos.ppo.algorithm:PPO",
}


def make_algorithm(config: RunConfig, env: EnvSpec) -> Algorithm:
    """The algorithm that `config` names, for `env`.

    Raises:
      ConfigError: it cannot handle these observations or actions.
    """
    module, name = ALGORITHMS[config.algo].split(":")
    algorithm: Algorithm = getattr(import_module(module), name)(config, env)
    return algorithm
