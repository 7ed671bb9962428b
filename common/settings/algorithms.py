"""The algorithms that runs can name: those of installed packages, our own among them, and those given by reference."""

from collections.abc import Iterator
from contextlib import suppress

from zerobeast.common import plugins
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.algorithm import AlgorithmSpec

GROUP = "zerobeast.algorithms"
_found: dict[str, AlgorithmSpec] = {}  #: by what `algo` said


def spec_of(algo: str) -> AlgorithmSpec:
    """The algorithm that `algo` names.

    Raises:
      ConfigError: it is unknown, cannot be imported, or is no algorithm.
    """
    if algo not in _found:
        spec = plugins.find(GROUP, algo, "algo")
        if not isinstance(spec, AlgorithmSpec):
            raise ConfigError(f"algo {algo}: expected an AlgorithmSpec, got {type(spec).__name__}")
        if ":" not in algo and spec.name != algo:
            raise ConfigError(f"algo {algo}: its name is {spec.name}, expected that of its entry point")
        if ":" in algo and section(spec.name) not in (None, spec):
            raise ConfigError(f"algo {algo}: another algorithm has its name, {spec.name}: expected a name of its own")
        _found[algo] = spec
    return _found[algo]


def usable() -> Iterator[AlgorithmSpec]:
    """The installed algorithms, without those that cannot be imported, and the ones given by reference so far."""
    for name in plugins.installed(GROUP):
        with suppress(ConfigError):
            spec_of(name)
    yield from {spec.name: spec for spec in _found.values()}.values()


def section(name: str) -> AlgorithmSpec | None:
    """The algorithm whose section of the settings has this name, if there is one.

    Raises:
      ConfigError: it is installed and cannot be imported.
    """
    if name in plugins.installed(GROUP):
        return spec_of(name)
    return next((spec for spec in _found.values() if spec.name == name), None)
