"""A service that does nothing, as a process: `python -m tests.integration.trivial_service`."""

import errno
import os
import signal
import sys
from pathlib import Path

from zerobeast.common.config.process import Instance
from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.common.service import loop
from zerobeast.common.service.base import Service
from zerobeast.common.service.entry import main
from zerobeast.common.settings.tree import RunConfig


class Trivial(Service):
    """Records its calls in the file `steps`, and does what the run's name says."""

    role = "trivial"

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        super().__init__()
        self.steps = Path(config.root) / "steps"
        self.wish = config.name

    def note(self, step: str) -> None:
        with self.steps.open("a") as file:
            file.write(f"{step} ")

    def open(self) -> None:
        self.note("open")
        if self.wish == "lost":
            raise PeerLost("the broker did not answer\nfor 60 s")
        if self.wish == "wrong":
            raise ConfigError("no such environment")
        if self.wish == "quits":
            sys.exit(0)
        if self.wish == "bug":
            raise KeyError("bug")
        if self.wish == "away":
            os.chdir("/")
            self.note("away")

    def take(self) -> None:
        if self.wish == "away":
            self.stop()
        if self.wish in ("SIGTERM", "SIGINT"):
            os.kill(os.getpid(), signal.Signals[self.wish])
            self.wish = ""

    def drain(self) -> None:
        self.note("drain")

    def close(self) -> None:
        self.note("close")


def build(_process: str, config: RunConfig, instance: Instance) -> list[Service]:
    service = Trivial(config, instance)
    service.note(" ".join(os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")))
    if config.name.startswith("early-"):
        service.note("building")
        os.kill(os.getpid(), signal.Signals[config.name.removeprefix("early-")])
    if config.name == "extra":
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    return [service]


def fill_disk() -> None:
    """While there is a file `full` in the root, none can be written."""
    root, write_bytes = Path(sys.argv[sys.argv.index("--root") + 1]), Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        if (root / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(path, data)

    Path.write_bytes = write  # type: ignore[assignment,method-assign]
    loop.LOOK_S = 0.01


if __name__ == "__main__":
    fill_disk()
    sys.exit(main(os.environ.get("ROLE", "trivial"), sys.argv[1:], build=build))
