"""Which rank of a run's learner a process is, and how it meets the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.load import differences
from zerobeast.common.config.process import Instance
from zerobeast.common.config.table import about
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.rl.ops import ranks
from zerobeast.version import __version__


@dataclass(frozen=True)
class Rank:
    """A process that is the learner, alone or with others."""

    number: int
    endpoint: str  #: that it binds: the one of its number in `learner.rank_endpoints`, if there are any

    @classmethod
    def of(cls, config: RunConfig, instance: Instance, environ: Mapping[str, str] = os.environ) -> Rank:
        """The rank of this process: its --index, or what torchrun has given it.

        Raises:
          ConfigError: with `learner.ranks` it has no number.
        """
        count = config.learner.ranks
        index = instance.index if instance.index is not None else environ.get("RANK")
        if count > 1 and (index is None or int(index) >= count):
            raise ConfigError(
                f"index {index}: expected 0 to {count - 1}, as learner.ranks is {count}; without --index torchrun "
                f"gives it as RANK"
            )
        number = int(index or 0) if count > 1 else 0
        endpoints = config.learner.endpoints
        return cls(number, endpoints[number] if number < len(endpoints) else endpoints[0])

    def join(self, config: RunConfig, environ: Mapping[str, str] = os.environ) -> None:
        """Meet the other ranks.

        Raises:
          ConfigError: they are of other settings or another version, or the setting of the meeting place is wrong.
          PeerLost: one does not come.
        """
        settings, meeting = config.learner, config.learner.meeting
        if not meeting and {"MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
            meeting = f"tcp://{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
        if not meeting:
            raise ConfigError(
                "learner.meeting is empty: expected tcp://host:port of the first rank, as there is no MASTER_ADDR and "
                "MASTER_PORT of torchrun either"
            )
        alike = {"version": __version__, "name": config.name, "learner.ranks": settings.ranks, "algo": config.algo}
        alike |= {path: value for path, value in differences(config).items() if path == "seed" or not about(path)}
        identity = {name: as_text(value) for name, value in alike.items()}
        ranks.join(self.number, settings.ranks, meeting, settings.rank_timeout_s, identity)
