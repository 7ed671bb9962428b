"""The worker: steps environments and acts in them, an env-server, an actor and a broker that share a process."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    sys.exit(main("worker", sys.argv[1:]))
