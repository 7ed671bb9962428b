"""The evaluator: plays whole episodes of a run's policies while they are trained."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    sys.exit(main("evaluator", sys.argv[1:]))
