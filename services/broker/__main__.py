"""The broker: infers actions for all actors in batches, with the newest weights."""

import sys
from typing import TYPE_CHECKING

from common.entry import Instance, main

if TYPE_CHECKING:
    from common.config.tree import RunConfig
    from common.service import Service


def build(config: "RunConfig", instance: Instance) -> "Service":
    from services.broker.service import Broker

    return Broker(config, instance)


if __name__ == "__main__":
    sys.exit(main("broker", build, sys.argv[1:]))
