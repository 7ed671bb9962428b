"""The learner: optimises the policy on the actors' rollouts, publishes weights, keeps the checkpoint."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    sys.exit(main("learner", sys.argv[1:]))
