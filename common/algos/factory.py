"""Make the algorithm of a run. Each algorithm is imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module

from zerobeast.common.algos.protocol import Algorithm
from zerobeast.common.algos.registry import ALGORITHMS
from zerobeast.common.settings.run import Run
from zerobeast.common.wire.specs import EnvSpec


def make_algorithm(config: Run, env: EnvSpec) -> Algorithm:
    """The algorithm that `config` names, for `env`.

    Raises:
      ConfigError: it cannot handle these observations or actions.
    """
    module = import_module(f"zerobeast.common.algos.{config.algo}.algorithm")
    algorithm: Algorithm = getattr(module, ALGORITHMS[config.algo].__name__.removesuffix("Config"))(config, env)
    return algorithm
