"""The env-server: hosts vector environments, one per session that an actor opens."""

import sys
from typing import TYPE_CHECKING

from common.entry import Instance, main

if TYPE_CHECKING:
    from common.config.tree import RunConfig
    from common.service import Service


def build(config: "RunConfig", instance: Instance) -> "Service":
    from services.envserver.service import EnvServer

    return EnvServer(config, instance)


if __name__ == "__main__":
    sys.exit(main("envserver", build, sys.argv[1:]))
