"""The learner: optimises the policy on the actors' rollouts, publishes weights, keeps the checkpoint."""

import sys
from typing import TYPE_CHECKING

from zerobeast.common.service.entry import main

if TYPE_CHECKING:
    from zerobeast.common.config.process import Instance
    from zerobeast.common.config.tree import RunConfig
    from zerobeast.common.service.base import Service


def build(config: "RunConfig", instance: "Instance") -> "Service":
    from zerobeast.services.learner.service import Learner

    return Learner(config, instance)


if __name__ == "__main__":
    sys.exit(main("learner", build, sys.argv[1:]))
