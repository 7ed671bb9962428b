"""The actor: drives groups of environments, asks the broker for actions and sends rollouts to the learner."""

import sys
from typing import TYPE_CHECKING

from zerobeast.common.service.entry import main

if TYPE_CHECKING:
    from zerobeast.common.config.process import Instance
    from zerobeast.common.config.tree import RunConfig
    from zerobeast.common.service.base import Service


def build(config: "RunConfig", instance: "Instance") -> "Service":
    from zerobeast.services.actor.service import Actor

    return Actor(config, instance)


if __name__ == "__main__":
    sys.exit(main("actor", build, sys.argv[1:]))
