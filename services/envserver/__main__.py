"""The env-server: hosts vector environments, one per session that an actor opens."""

import sys

from zerobeast.common.process.environ import restrict_imports
from zerobeast.common.service.entry import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["describe"]:
        restrict_imports()
        from zerobeast.services.envserver.describe import main as describe

        sys.exit(describe(sys.argv[2:]))
    sys.exit(main("envserver", sys.argv[1:]))
