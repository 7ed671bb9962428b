"""The contents of a run's folder, by name, and locks of its files."""

import contextlib
import functools
import glob
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files.regular_files import open_regular, read_small_text

ROOT = "runs"  #: folder of run folders, unless another one is named
LATEST_FILE = (
    "latest"  #: beside run folders: a file with the name of the newest. TensorBoard would show a link's run twice
)
CONFIG = "config.yaml"  #: the settings that the run is trained with
CHECKPOINT = "checkpoint.pt"
PREVIOUS_CHECKPOINT = "checkpoint.previous.pt"
PARENT = "parent.pt"  #: the checkpoint of another run that this one began from
CHECKPOINT_DRAFT = ".checkpoint.pt.new"  #: a checkpoint that is being written
METRICS = "metrics.csv"
REACHED_FILE = "reached"  #: there if the run has ended because of `stop_at_return`
LOST_FILE = "lost"  #: there if episodes are lost: the most frequent reason
EPISODES = "episodes.csv"
EVALUATIONS = "evaluations.csv"
CHECKPOINTS = "checkpoints"  #: <agent_steps>.pt: those that are kept
TO_EVALUATE = "evaluate"  #: <agent_steps>.pt: those that wait for the evaluator
BEST_CHECKPOINT = Path("best", "checkpoint.pt")  #: of the policy with the best evaluation, or training return
VIDEOS = "videos"
TENSORBOARD = "tensorboard"  #: event files of the learner
TENSORBOARD_EVALUATIONS = Path(TENSORBOARD, "evaluations")  #: event files of the evaluator
TENSORBOARD_SERVICES = Path(TENSORBOARD, "services")  #: event files of the launcher, which reads all pages
STORE = "store"  #: rows kept by an algorithm that has its own replay
LOGS = "logs"  #: <role>-<index>.log
REQUESTS = "requests"  #: of callers, to the learner: `zerobeast.common.files.requests`
SERVICES = "services"  #: <role>-<index>.json: where the health page of that service is, or how it has ended
KEYS = "keys"  #: of the run's own services, unless other ones are given
SWEEP = "sweep.jsonl"  #: the journal in the folder of a sweep, whose runs are folders beside it
LAUNCHER_LOCK = ".lock"
LEARNER_LOCK = ".learner.lock"
#: what is there if the first start was killed before it wrote the settings
FILES_BEFORE_CONFIG = {LAUNCHER_LOCK, LEARNER_LOCK, LOGS, SERVICES, KEYS, STORE, TO_EVALUATE, PARENT}
FILES_BEFORE_CONFIG |= {f".{name}.new" for name in (PARENT, CONFIG)}

ASIDE_NAME = re.compile(r"\.old-\d{8}-\d{6}")  #: in the names of runs that --fresh has replaced
TRIES, RETRY_S = 3, 0.02  #: of a lock that `is_held` may have for an instant

warn_once = functools.cache(logging.getLogger(__name__).warning)


def root_of(root: str | os.PathLike[str] | None) -> Path:
    """The folder of run folders: this one, or for None that of the variable, or else ROOT."""
    return Path(root or os.environ.get("BEAST_ROOT") or ROOT).expanduser()


def is_run(folder: Path) -> bool:
    """Whether a folder has the settings of a run."""
    return os.path.isfile(folder / CONFIG)


def refuse_other(folder: Path) -> None:
    """Refuse a folder that has files but not those of a run.

    Raises:
      ConfigError: it is such a folder.
      OSError: it cannot be read.
    """
    if not is_run(folder) and {path.name for path in folder.iterdir()} - FILES_BEFORE_CONFIG:
        raise ConfigError(f"{folder} is not the folder of a run: expected a new or an empty folder", path=str(folder))


def candidate_paths(name: str, root: Path | str) -> list[Path]:
    """The paths that a run may mean: the one of that name below `root`, then the name as a path; only that for ./x."""
    return [expand_path(place) for place in (Path(root, name), name)[name.startswith(("./", "../", "~")) :]]


def expand_path(place: Path | str) -> Path:
    """A path with ~ expanded, and with the run that the file LATEST names in place of that file."""
    place = Path(os.path.expanduser(place))
    for part in (place, *place.parents):
        if part.name == LATEST_FILE:
            with contextlib.suppress(OSError, ValueError):  # a folder, or a file of somebody else's
                return part.with_name(read_small_text(part).strip()) / place.relative_to(part)
    return place


def find_first(name: str, root: Path | str, wanted: Callable[[Path], bool] = os.path.isfile) -> Path | None:
    """The first of these paths that is a run, a file or what is wanted: nothing in the current folder hides a run."""
    return next((one for one in candidate_paths(name, root) if is_run(one) or os.path.isfile(one) or wanted(one)), None)


def find_run(name: str, root: Path | str) -> Path:
    """The folder of a run, by its name below `root` or by its path.

    Raises:
      ConfigError: there is none.
    """
    for place in filter(is_run, candidate_paths(name, root)):
        return place.resolve()
    raise _no_run(name, root)


def find_runs(names: Sequence[str], root: Path | str) -> list[Path]:
    """The folders of the runs that some names mean, each once.

    Args:
      names: as for `find_run`, or of folders of runs, or patterns (`CartPole-*`). The last two leave out what is no
        run, and runs that --fresh has set aside.
      root: folder of run folders.

    Raises:
      ConfigError: there is no run of one of these names.
    """
    found: dict[Path, None] = {}
    for name in names:
        runs = next(
            filter(None, (_runs_at(place, str(expand_path(root))) for place in candidate_paths(name, root))), []
        )
        if not runs:
            raise _no_run(name, root)
        found |= dict.fromkeys(run.resolve() for run in runs)
    return list(found)


def find_run_or_checkpoint(run: str, root: Path | str) -> Path:
    """What RUN, RUN:best, RUN:AGENT_STEPS or the path of a checkpoint names: the folder of a run, or a checkpoint.

    Raises:
      ConfigError: there is none of that name.
    """
    name, _, which = run.rpartition(":")
    if given := find_first(run, root):
        return find_run(run, root) if is_run(given) else given
    folder = find_run(name or run, root)
    path = folder / (checkpoint_path(int(which)) if which.isdecimal() else BEST_CHECKPOINT)
    if (which == "best" or which.isdecimal()) and os.path.isfile(path):
        return path
    those = [str(steps) for steps, _ in list_checkpoints(folder)] + ["best"] * (folder / BEST_CHECKPOINT).is_file()
    others = f"one of {', '.join(those)}" if those else f"{name}, its newest and only checkpoint"
    raise ConfigError(
        f"run {folder.name} has no checkpoint {which}, expected {others}", path="run", value=run, expected=others
    )


def folder_of(checkpoint: Path) -> Path | None:
    """The folder of the run that has a checkpoint, or itself if it is one; None if there is none."""
    return next(filter(is_run, (checkpoint, *checkpoint.absolute().parents[:2])), None)


def _runs_at(place: Path, root: str) -> list[Path]:
    """Runs in a folder, or of a pattern, in which the name of the root has no special characters."""
    if is_run(place):
        return [place]
    name, start = str(place), root * str(place).startswith(root)
    pattern = f"{glob.escape(name)}/*" if os.path.isdir(place) else glob.escape(start) + name[len(start) :]
    inside = map(Path, glob.glob(pattern))
    return sorted(path for path in inside if is_run(path) and not ASIDE_NAME.search(path.name))


def _no_run(name: str, root: Path | str) -> ConfigError:
    runs = [f"{name}/{path.name}" for path in _runs_at(Path(root, name), str(root))][:5]
    expected = f", but {', '.join(runs)}" if runs else f": expected {Path(root, name, CONFIG)}"
    return ConfigError(f"there is no run {name!r}{expected}; --root names another folder", path="run", value=name)


def lock(descriptor: int, folder: Path, tries: int = TRIES, refusal: str = "") -> None:
    """Lock an open file of a run's folder until it is closed; only warn, once, if its file system has no locks.

    Lustre may be mounted without them, and some network file systems have none.

    Raises:
      BlockingIOError: another process holds the lock.
      ConfigError: the same, if there is a sentence for it.
    """
    import fcntl  # which Windows lacks, on which clients run

    for left in reversed(range(tries)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if not left:
                raise (ConfigError(refusal, path=str(folder)) if refusal else error) from None
            time.sleep(RETRY_S)
        except OSError as error:
            sentence = "%s: its file system has no locks (%s): of two learners there, the earlier one will stop"
            warn_once(sentence, folder, error.strerror)
            break


def is_held(path: Path) -> bool:
    """Whether a process of this machine holds the lock of a file; False if the file or its file system has none."""
    import fcntl

    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def checkpoint_path(agent_steps: int) -> Path:
    """A checkpoint that is kept by its number."""
    return Path(CHECKPOINTS, f"{agent_steps}.pt")


def saver_of(checkpoint: Path) -> Path | None:
    """The folder of the run that saved a checkpoint; None unless it is there under a name that runs give to their own.

    parent.pt, exports and copies under other names are of other policies than the run had at the same step.
    """
    folder, own = folder_of(checkpoint), (Path(CHECKPOINT), Path(PREVIOUS_CHECKPOINT), BEST_CHECKPOINT)
    name = checkpoint.absolute().relative_to(folder) if folder else Path()
    return folder if name in own or name.parent == Path(CHECKPOINTS) else None


def is_best(checkpoint: Path) -> bool:
    """Whether it is, by its name, that of the best policy of a run."""
    return checkpoint.parts[-2:] == BEST_CHECKPOINT.parts


def list_checkpoints(folder: Path, kind: str = CHECKPOINTS) -> list[tuple[int, Path]]:
    """The numbered checkpoints of a run, or those that wait for the evaluator, by agent steps, oldest first."""
    return sorted((int(path.stem), path) for path in (folder / kind).glob("*.pt") if path.stem.isdecimal())


def move_aside(path: Path) -> None:
    """Rename a file to <name>.old, or .old1 and so on, if it is there."""
    names = (path.with_name(f"{path.name}.old{number or ''}") for number in itertools.count())
    with contextlib.suppress(FileNotFoundError):
        path.replace(next(name for name in names if not name.exists()))


def list_videos(folder: Path) -> list[Path]:
    """The videos of a run that are complete; no links, which may lead out of an untrusted folder."""
    found = (path for path in (folder / VIDEOS).glob("[!.]*") if path.suffix in (".mp4", ".gif"))
    return sorted(path for path in found if path.is_file() and not path.is_symlink())
