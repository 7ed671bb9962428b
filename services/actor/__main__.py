"""The actor: drives groups of environments, asks the broker for actions and sends rollouts to the learner."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    sys.exit(main("actor", sys.argv[1:]))
