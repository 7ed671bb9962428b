"""The learner: optimises the policy on the actors' rollouts, publishes weights, keeps the checkpoint."""

import os
import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    code = main("learner", sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a thread that waits for a rank that is cut off would abort an ordinary exit
