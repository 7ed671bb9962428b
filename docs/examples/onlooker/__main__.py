"""The onlooker: follows the news of the learner's versions, as an example of a further service."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    sys.exit(main("onlooker", sys.argv[1:]))
