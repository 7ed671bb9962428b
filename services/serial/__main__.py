"""A whole run in one process: a learner, a broker, an env-server and an actor that take turns."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    sys.exit(main("serial", sys.argv[1:]))
