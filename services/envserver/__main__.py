"""The env-server: hosts vector environments, one per session that an actor opens."""

import sys
from typing import TYPE_CHECKING

from zerobeast.common.service.entry import main

if TYPE_CHECKING:
    from zerobeast.common.config.process import Instance
    from zerobeast.common.config.tree import RunConfig
    from zerobeast.common.service.base import Service


def build(config: "RunConfig", instance: "Instance") -> "Service":
    from zerobeast.services.envserver.service import EnvServer

    return EnvServer(config, instance)


if __name__ == "__main__":
    if sys.argv[1:2] == ["describe"]:
        from zerobeast.services.envserver.describe import main as describe

        sys.exit(describe(sys.argv[2:]))
    sys.exit(main("envserver", build, sys.argv[1:]))
