"""The list of algorithms: the only place that knows them all. Torch-free: each is imported when it is asked for.

An algorithm `name: Class` is `Class` in `common/algos/<name>/algorithm.py`, its settings `ClassConfig` in `config.py`
beside it; they are the section `name` of the tree of settings. Presets of its own stand in `presets/` beside them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from zerobeast.common.config.setting import Section

if TYPE_CHECKING:
    from zerobeast.common.algos.protocol import Algorithm
    from zerobeast.common.config.tree import RunConfig
    from zerobeast.common.wire.specs import EnvSpec

ALGORITHMS = {
    "impala": "Impala",
    "a2c": "A2C",
    "ppo": "PPO",
    "vmpo": "VMPO",
    "impact": "Impact",
}


def settings_type(name: str) -> type[Section]:
    """The class of an algorithm's settings."""
    kind: type[Section] = getattr(import_module(f"zerobeast.common.algos.{name}.config"), f"{ALGORITHMS[name]}Config")
    return kind


def make_algorithm(config: RunConfig, env: EnvSpec) -> Algorithm:
    """The algorithm that `config` names, for `env`.

    Raises:
      ConfigError: it cannot handle these observations or actions.
    """
    module = import_module(f"zerobeast.common.algos.{config.algo}.algorithm")
    algorithm: Algorithm = getattr(module, ALGORITHMS[config.algo])(config, env)
    return algorithm
