"""The worker: steps environments and acts in them, an env-server, an actor and a broker that share a process."""

import sys

from zerobeast.common.service.entry import lazy, main
from zerobeast.services.worker.placement import fused

build = fused(
    lazy("zerobeast.services.broker.service:Broker"),
    lazy("zerobeast.services.envserver.service:EnvServer"),
    lazy("zerobeast.services.actor.service:Actor"),
)

if __name__ == "__main__":
    sys.exit(main("worker", build, sys.argv[1:]))
