"""The broker: infers actions for all actors in batches, with the newest weights."""

import sys

from zerobeast.common.service.entry import lazy, main

build = lazy("zerobeast.services.broker.service:Broker")

if __name__ == "__main__":
    sys.exit(main("broker", build, sys.argv[1:]))
