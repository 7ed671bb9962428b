"""The env-server: hosts vector environments, one per session that an actor opens."""

import os
import sys
from importlib import import_module

from zerobeast.common.process.environ import restrict_imports
from zerobeast.common.service.entry import main

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("describe", "check", "time"):
        restrict_imports()
        code = import_module("zerobeast.services.envserver.describe").main(sys.argv[1:])
        sys.stdout.flush()
        os._exit(code)  # threads that an environment has started would keep this process
    sys.exit(main("envserver", sys.argv[1:]))
