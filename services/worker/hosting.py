"""Hosts services in one process: the planes of those that act become inproc endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from zerobeast.common.errors import ConfigError
from zerobeast.common.process.roles import HOSTED
from zerobeast.common.service.entry import Build, main

if TYPE_CHECKING:
    from zerobeast.common.config.process import Instance
    from zerobeast.common.service.base import Service
    from zerobeast.common.settings import RunConfig

INSIDE = ("broker", "envserver")  #: roles whose planes stay in the process


def hosting(process: str) -> Build:
    """A function that builds the services of a kind of process."""

    def build(config: RunConfig, instance: Instance) -> list[Service]:
        inside = within(config)
        builds = [import_module(f"zerobeast.services.{role}.__main__").build for role in HOSTED[process]]
        return [service for each in builds for service in each(inside, instance)]

    return build


def within(config: RunConfig) -> RunConfig:
    """The same settings with the planes of `INSIDE` at inproc endpoints.

    Raises:
      ConfigError: there is one secret key for all, but each role needs its own.
    """
    if config.security.secret:
        raise ConfigError(
            f"security.secret {config.security.secret!r}: expected nothing for a worker, which takes "
            "secret/broker.key_secret and secret/actor.key_secret from the folder security.keys"
        )
    update = {role: getattr(config, role).model_copy(update={"endpoint": f"inproc://{role}"}) for role in INSIDE}
    return config.model_copy(update=update)


def run_serial(flags: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run all services of a run in this process until it ends; returns the exit code."""
    return main("serial", hosting("serial"), flags, environ)
