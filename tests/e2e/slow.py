"""A service with one slow part: `python -m tests.e2e.slow`, with the flags of the service and SLOW=<role>."""

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from zerobeast.common.service.entry import main

#: role -> the method of it that is slowed down, and by how many seconds per call
PARTS = {
    "learner": ("zerobeast.services.learner.update", "Trainer", "step", 0.2),
    "broker": ("zerobeast.rl.acting.inference", "Inference", "submit", 0.03),
    "actor": ("zerobeast.services.actor.group", "EnvGroup", "take", 0.03),
}


def slowed(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return slow


if __name__ == "__main__":
    role = os.environ["SLOW"]
    module, owner, name, seconds = PARTS[role]
    part = getattr(import_module(module), owner)
    setattr(part, name, slowed(getattr(part, name), seconds))
    sys.exit(main(role, sys.argv[1:]))
