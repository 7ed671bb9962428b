"""The env-server: hosts vector environments, one per session that an actor opens."""

import sys
from importlib import import_module

from zerobeast.common.process.environ import restrict_imports
from zerobeast.common.service.entry import main

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("describe", "check"):
        restrict_imports()
        sys.exit(import_module(f"zerobeast.services.envserver.{sys.argv[1]}").main(sys.argv[2:]))
    sys.exit(main("envserver", sys.argv[1:]))
