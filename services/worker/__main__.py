"""The worker: steps environments and acts in them, an env-server, an actor and a broker that share a process."""

import sys

from zerobeast.common.service.entry import main
from zerobeast.services.worker.hosting import hosting

if __name__ == "__main__":
    sys.exit(main("worker", hosting("worker"), sys.argv[1:]))
