"""Putting services into one process: planes between them become inproc endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerobeast.common.errors import ConfigError
from zerobeast.common.service.entry import Build

if TYPE_CHECKING:
    from zerobeast.common.config.process import Instance
    from zerobeast.common.config.tree import RunConfig
    from zerobeast.common.service.base import Service

INSIDE = ("broker", "envserver")  #: roles whose planes stay in the process


def fused(*builds: Build) -> Build:
    """Builds all of these for one process, in which they meet."""

    def build(config: RunConfig, instance: Instance) -> list[Service]:
        inside = within(config)
        return [service for each in builds for service in each(inside, instance)]

    return build


def within(config: RunConfig) -> RunConfig:
    """The same settings with the planes of `INSIDE` at inproc endpoints.

    Raises:
      ConfigError: one secret key for all, where broker and actor need their own.
    """
    if config.security.secret:
        raise ConfigError(
            f"security.secret {config.security.secret!r}: expected nothing for a worker, which takes "
            "secret/broker.key_secret and secret/actor.key_secret from the folder security.keys"
        )
    update = {role: getattr(config, role).model_copy(update={"endpoint": f"inproc://{role}"}) for role in INSIDE}
    return config.model_copy(update=update)
