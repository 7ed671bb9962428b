"""The broker: infers actions for all actors in batches, with the newest weights."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    sys.exit(main("broker", sys.argv[1:]))
