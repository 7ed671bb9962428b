"""The broker: infers actions for all actors in batches, with the newest weights."""

import sys
from typing import TYPE_CHECKING

from zerobeast.common.service.entry import main

if TYPE_CHECKING:
    from zerobeast.common.config.process import Instance
    from zerobeast.common.config.tree import RunConfig
    from zerobeast.common.service.base import Service


def build(config: "RunConfig", instance: "Instance") -> "Service":
    from zerobeast.services.broker.service import Broker

    return Broker(config, instance)


if __name__ == "__main__":
    sys.exit(main("broker", build, sys.argv[1:]))
