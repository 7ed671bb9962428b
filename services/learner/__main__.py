"""The learner: optimises the policy on the actors' rollouts, publishes weights, keeps the checkpoint."""

import sys

from zerobeast.common.service.entry import lazy, main

build = lazy("zerobeast.services.learner.service:Learner")

if __name__ == "__main__":
    sys.exit(main("learner", build, sys.argv[1:]))
