"""The learner: optimises the policy on the actors' rollouts, publishes weights, keeps the checkpoint."""

import sys
from typing import TYPE_CHECKING

from common.entry import Instance, main

if TYPE_CHECKING:
    from common.config.tree import RunConfig
    from common.service import Service


def build(config: "RunConfig", instance: Instance) -> "Service":
    from services.learner.service import Learner

    return Learner(config, instance)


if __name__ == "__main__":
    sys.exit(main("learner", build, sys.argv[1:]))
