"""The broker: infers actions for all actors in batches, with the newest weights."""

import sys

from zerobeast.common.service.entry import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["opponent"]:
        from zerobeast.rl.acting.opponents import main as opponent

        sys.exit(opponent(*sys.argv[2:]))
    sys.exit(main("broker", sys.argv[1:]))
