"""Another commit of this repository, and runs that its own `beast train` starts."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import zerobeast
from zerobeast.common.errors import BeastError
from zerobeast.common.files import run_files
from zerobeast.common.health.pages import fetch_announced_page
from zerobeast.common.process.roles import SERVICES
from zerobeast.launcher.private_folder import private_folder
from zerobeast_tools.watched_run import WatchedRun

HERE = Path(zerobeast.__file__).resolve().parents[1]  #: the repository, if this is a clone
STOP_LIMIT_S = 60.0
NAME = "run"
COMMIT = Path(__file__).with_name("commit")  #: a file with the commit, as tools/offline/bundle writes it


def own_commit() -> str | None:
    """The commit of the code that runs, with + if its files differ; None if that is unknown, as in an installation."""
    if COMMIT.exists():
        return COMMIT.read_text().strip()
    with contextlib.suppress(BeastError):
        if (HERE / ".git").exists():  # or git would name the repository around an installation
            return _git("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
    return None


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The files of a commit in a folder, which is removed afterwards.

    Raises:
      BeastError: this is no clone, or it has no such commit.
    """
    with private_folder() as folder:
        tree = folder / "tree"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            _refuse_own_tree(tree)
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    try:
        line = ["git", "-C", str(HERE), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BeastError(f"git cannot be started: {error.strerror or error}") from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BeastError(f"git {arguments[0]} {arguments[-1]}: {why}")
    return done.stdout.strip()


def _refuse_own_tree(tree: Path) -> None:
    """Check that Python imports the files of a tree, not those that are installed."""
    (python, *_), environ = beast_command(tree)
    asked = [python, "-c", "import zerobeast; print(zerobeast.__file__)"]
    found = subprocess.run(asked, env=environ, cwd=tree, capture_output=True, text=True, check=False).stdout.strip()
    if not Path(found).resolve().is_relative_to(tree.resolve()):
        raise BeastError(f"Python imports {found or 'nothing'} for {tree}: expected a commit with a package zerobeast")


def beast_command(tree: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """A command line of `beast` as a tree has it, and its environment: this Python and its packages."""
    places = (str(tree), str(tree / "tools"), os.environ.get("PYTHONPATH"))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    return [sys.executable, "-m", "zerobeast", *arguments], environ


class TreeRun(WatchedRun):
    """A run of a tree that trains until it is left; entered once it trains.

    Args:
      tree: the files of a commit.
      flags: settings of the run.
      folder: an empty one, for its files.

    Raises:
      BeastError: it does not train.
    """

    def __init__(self, tree: Path, flags: Sequence[str], folder: Path) -> None:
        self._tree, self._flags, self.folder = tree, flags, folder
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = set[int]()

    def __enter__(self) -> Self:
        own = ("--name", NAME, "--root", str(self.folder), "--total_steps", str(10**9))
        line, environ = beast_command(self._tree, "train", *self._flags, *own)
        self._log = (self.folder / "output").open("wb")
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(line, env=environ, cwd=self.folder, **streams)
        try:
            self.until_it_trains()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process is not None, "it was entered"
        assert self._log is not None, "it was entered"
        self.thaw_all()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    def pages(self, role: str) -> list[dict[str, Any]]:
        files = sorted((self.folder / NAME / run_files.SERVICES).glob(f"{role}*.json"))
        return [page for file in files if (page := fetch_announced_page(file, remote=False))]

    def check(self) -> None:
        assert self._process is not None, "it was entered"
        if self._process.poll() is not None:
            last = (self.folder / "output").read_text(errors="replace").strip().splitlines()[-1:]
            raise BeastError(f"beast train of {self._tree} has ended with {self._process.returncode}: {''.join(last)}")

    def freeze_all(self) -> None:
        """Suspend its services and what started them."""
        assert self._process is not None, "it was entered"
        self._frozen = {self._process.pid, *(int(page["pid"]) for role in SERVICES for page in self.pages(role))}
        self._signal_all(signal.SIGSTOP)

    def thaw_all(self) -> None:
        """Resume them."""
        self._signal_all(signal.SIGCONT)
        self._frozen.clear()

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def training_of(tree: Path, flags: Sequence[str]) -> Iterator[TreeRun]:
    """A run of a tree in a folder of its own; see `TreeRun`."""
    with private_folder() as folder, TreeRun(tree, flags, folder) as run:
        yield run
