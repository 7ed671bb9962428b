"""A worker whose environments do what a file says when made or stepped; it takes the arguments of `services.worker`.

The file is `<ODD>/<make or step>-<index of the worker>`, written atomically; ODD is an environment variable.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerobeast.common.service.entry import main
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv

FOLDER = "ODD"


def _wait(file: Path) -> None:
    while file.exists():
        time.sleep(0.05)


def _raise(file: Path) -> None:
    file.unlink()
    raise ZeroDivisionError


def _abort(file: Path) -> None:
    file.unlink()
    os.abort()


DEEDS: dict[str, Callable[[Path], None]] = {"wait": _wait, "raise": _raise, "abort": _abort}


def odd(call: Callable[..., Any], file: Path) -> Callable[..., Any]:
    def instead(*args: Any, **kwargs: Any) -> Any:
        if file.exists():
            DEEDS[file.read_text()](file)
        return call(*args, **kwargs)

    return instead


if __name__ == "__main__":
    folder, index = Path(os.environ[FOLDER]), sys.argv[sys.argv.index("--index") + 1]
    for moment, name in {"make": "__init__", "step": "finish_step"}.items():
        setattr(NativeVectorEnv, name, odd(getattr(NativeVectorEnv, name), folder / f"{moment}-{index}"))
    sys.exit(main("worker", sys.argv[1:]))
