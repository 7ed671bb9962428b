"""The process that hands a run to a tracker: it reads the files of the run, and writes none that a service reads."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zerobeast.common.config.layers import read_without_base
from zerobeast.common.config.settings_table import RUN, topic_of
from zerobeast.common.errors import BeastError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.files.links_outside import refuse_links_outside
from zerobeast.common.files.regular_files import open_regular
from zerobeast.common.files.run_files import lock
from zerobeast.common.health import status
from zerobeast.common.process.logs import WARNINGS
from zerobeast.common.settings.facts import About, facts_of
from zerobeast.tracking.feed import Feed
from zerobeast.tracking.sinks import Sink, TrackedRun

log = logging.getLogger(__name__)

PERIOD_S = 2.0  #: between two looks into the folder
AGAIN_S = 30.0  #: after a failure
TURN_S = 0.1  #: how late the end is noticed
STATUS = "status"  #: last part of the name of its status file
LIMIT_S = 10.0  #: for the last rows, once the run has ended
#: sections of settings that are not shown: those with nothing but peers and places of one machine
HIDDEN_SECTIONS = {path.partition(".")[0] for path in RUN}
HIDDEN_SECTIONS -= {
    path.partition(".")[0] for path in RUN if topic_of(path) is not About.PEERS and not facts_of(RUN[path]).of_host
}


class Follower:
    """Hands what is new in the folder of a run to a tracker, as often as `turn` is called.

    Args:
      folder: of the run; its config.yaml is shown as it is, and decides nothing.
      name: of the tracker.
      make: its class.
      project: under which it shows the run.

    Raises:
      ConfigError: there is no run in this folder.
    """

    def __init__(self, folder: Path, name: str, make: Callable[[TrackedRun], Sink], project: str) -> None:
        self._name, self._make = name, make
        tree = read_without_base(folder / run_files.CONFIG, f"file {folder / run_files.CONFIG}")
        shown = {section: value for section, value in tree.items() if section not in HIDDEN_SECTIONS}
        self._feed = Feed(folder, tracker_file(folder, name, "json"))
        self._run = TrackedRun(folder, project, str(tree.get("name") or folder.name), self._feed.position.id, shown)
        self._sink: Sink | None = None
        self.count = 0  #: items that were handed over
        self.trouble = ""  #: why the last turn did not come to its end, as a sentence

    def turn(self) -> None:
        """Write what is new. A failure is logged once, until it works again."""
        try:
            for item in self._feed.new():
                self._sink = self._sink or self._make(self._run)
                if isinstance(item.content, Path):
                    self._sink.video(item.content, item.agent_steps)
                else:
                    self._sink.write(item.content, item.agent_steps)
                self.count += 1
        except Exception as error:  # of the tracker's own code or of a network
            if not self.trouble:
                why = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
                log.warning("%s cannot be reached: %s; it is tried again, no service waits", self._name, why)
                with contextlib.suppress(BeastError):
                    status.write_status(
                        tracker_file(self._run.folder, self._name, STATUS), pid=os.getpid(), warnings=[*WARNINGS]
                    )
            self.trouble = f"{type(error).__name__}: {error}"
        else:
            self.trouble = ""

    def close(self) -> None:
        """End the tracker's part.

        Raises:
          BeastError: not everything was written.
        """
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception as error:
                self.trouble = self.trouble or f"{type(error).__name__}: {error}"
        if self.trouble:
            raise BeastError(f"{self._name} did not get everything: {self.trouble}")


def follow_run(follower: Follower, ended: Callable[[], bool]) -> None:
    """Take turns until `ended` shows that nothing more comes.

    Raises:
      BeastError: not everything was written.
    """
    due = 0.0
    while not ended():
        if (now := time.monotonic()) >= due:
            follower.turn()
            due = now + (AGAIN_S if follower.trouble else PERIOD_S)
        time.sleep(TURN_S)
    follower.turn()
    follower.close()


def end_with(parent: int) -> None:
    """Wait for the end of the parent process and then end this one, even if a tracker's code hangs."""
    while os.getppid() == parent:
        time.sleep(TURN_S)
    time.sleep(LIMIT_S)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def hold_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock, so that no row is written twice.

    Raises:
      ConfigError: another process hands the run to this tracker, or the folder cannot be written or leads elsewhere.
    """
    with contextlib.ExitStack() as stack:
        refuse_links_outside(folder)
        with explain_os_errors(f"{folder}: cannot be written"):
            file = stack.enter_context(open_regular(tracker_file(folder, name, "lock"), "ab"))
        lock(file.fileno(), folder, refusal=f"{folder}: another process hands this run to {name} now")
        yield


def tracker_file(folder: Path, name: str, suffix: str) -> Path:
    """A file of this tracker in the folder of a run."""
    return folder / f".tracked-{name.rpartition(':')[2]}.{suffix}"
