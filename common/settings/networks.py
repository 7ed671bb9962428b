"""The torsos that runs can name (`net.torso`): those of installed packages, our own among them, and those by reference.

A torso is described in `zerobeast.rl.nets.torso`. A package registers its class, or a `TorsoSpec`, as an entry point of
the group `zerobeast.networks`; `net.torso` also takes a reference to either, `module:NAME` or `folder/file.py:NAME`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from zerobeast.common import plugins
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.run import NETWORKS


@dataclass(frozen=True)
class TorsoSpec:
    """A torso, with what has to be known before there is one. The launcher reads it, so its module imports no torch."""

    make: str | Callable[..., Any]  #: the class, or `module:NAME` of it
    bare: str = ""  #: the same without dense layers, for policies and critics that have their own; by default `make`
    smallest_image: int = 0  #: smallest side, in pixels, of the images that it is for; 0: it reads any observation
    threads: bool = False  #: whether its matrix products are large enough for several threads
    fills_a_core: bool = False  #: whether its learner never waits, so that workers must not be bound to cores

    def load(self, name: str, *, bare: bool = False) -> Callable[..., Any]:
        """The class, or the bare one; `name` is what `net.torso` says.

        Raises:
          ConfigError: it cannot be imported.
        """
        make = self.bare if bare and self.bare else self.make
        make = plugins.load(make, f"net.torso {name}") if isinstance(make, str) else make
        if callable(make):
            return make
        raise ConfigError(f"net.torso {name}: expected a class, got {type(make).__name__}")


@cache
def torso_of(name: str) -> TorsoSpec:
    """The torso that `net.torso` names.

    Raises:
      ConfigError: it is unknown, several packages bring one of this name, or it cannot be imported.
    """
    found = plugins.find(NETWORKS, name, "net.torso")
    return found if isinstance(found, TorsoSpec) else TorsoSpec(found)
