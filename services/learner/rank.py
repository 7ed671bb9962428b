"""Which rank of a run's learner a process is, and how it meets the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.load import differences
from zerobeast.common.config.process import Instance
from zerobeast.common.config.table import about
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.rl.nets import pick_device
from zerobeast.rl.ops.meeting import join
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
        index = environ.get("RANK", "") if instance.index is None else str(instance.index)
        if count > 1 and (not index.isdecimal() or int(index) >= count):
            raise ConfigError(
                f"index {index or None}: expected 0 to {count - 1}, as learner.ranks is {count}; without --index, "
                f"torchrun gives it as RANK"
            )
        number = int(index) if count > 1 else 0
        endpoints = config.learner.endpoints
        return cls(number, endpoints[number] if number < len(endpoints) else endpoints[0])

    def device(self, config: RunConfig, environ: Mapping[str, str] = os.environ) -> torch.device:
        """What this rank learns on: of several GPUs, each rank of a machine has its own.

        Raises:
          ConfigError: as `pick_device`.
        """
        device = pick_device(config.learner.device, "learner.device")
        if config.learner.ranks == 1 or device.type == "cpu" or device.index is not None:
            return device
        return torch.device("cuda", int(environ.get("LOCAL_RANK", self.number)) % torch.cuda.device_count())

    def join(
        self, config: RunConfig, device: str, stopped: Callable[[], bool], environ: Mapping[str, str] = os.environ
    ) -> None:
        """Meet the other ranks.

        Args:
          config: of the run.
          device: kind of device of this rank.
          stopped: whether to give up.
          environ: of this process.

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
        alike |= {"device": device}
        given = differences(config).items()
        alike |= {path: value for path, value in given if not about(path) or path in ("seed", "parent.run")}
        identity = {name: as_text(value) for name, value in alike.items()}
        join(self.number, settings.ranks, meeting, settings.rank_timeout_s, identity, stopped)
