"""Numbers of environments, for whatever copies of one cannot share, such as a port.

A number is held by a lock of a folder that no other user can enter; the kernel releases it when the process has ended,
however it ended. So the numbers of all environments of a user that are alive on a machine differ: "Numbers of
environments" in docs/environments.md.
"""

import fcntl
import itertools
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

VARIABLE = "ZEROBEAST_ENV_NUMBER"  #: has the number while an environment is made
PLACEHOLDER = "{number}"  #: stands for it in strings of `env.kwargs`
INTEGER = re.compile(r'(?<!\\)"([1-9]\d*|)\{number\}"(?!:)')  #: in JSON, a whole string that becomes an integer

PLACE = "/tmp"  # noqa: S108 - with a folder of its own there

#: gives the next environment its number, while the environments of a place are made
_next: ContextVar[Callable[[], int] | None] = ContextVar("_next", default=None)


class NumberedEnvs:
    """Makes the environments of a process, each with a number; one that is made anew gets the same again."""

    _from: ClassVar[int] = 0  #: all numbers below are held by this process, or were taken when it looked

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._first: list[Any] = []
        self._held: dict[tuple[int, int], tuple[int, int]] = {}  #: by place: number, descriptor

    def __call__(self, place: int) -> Any:
        """Make the environment that has this place in its process."""
        if self._first:
            return self._first.pop()
        counter = itertools.count()
        token = _next.set(lambda: self._number((place, next(counter))))
        try:
            return self._make()
        finally:
            _next.reset(token)

    def first(self) -> Any:
        """Make the first environment; the next call returns it."""
        self._first = [self(0)]
        return self._first[0]

    def close(self) -> None:
        """Give all numbers back."""
        while self._held:
            number, holder = self._held.popitem()[1]
            os.close(holder)
            NumberedEnvs._from = min(NumberedEnvs._from, number)

    __del__ = close  # if they could not be made

    def _number(self, place: tuple[int, int]) -> int:
        if place not in self._held:
            self._held[place] = _claim_number(NumberedEnvs._from)
            NumberedEnvs._from = self._held[place][0] + 1
        return self._held[place][0]


def _claim_number(least: int) -> tuple[int, int]:
    """The first free number from `least` on, and the descriptor that holds it."""
    place = _own_place()
    for number in itertools.count(least):
        (place / str(number)).mkdir(exist_ok=True)  # what removes old files leaves folders that are locked alone
        holder = os.open(place / str(number), os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            os.close(holder)
    return number, holder


def _own_place() -> Path:
    """The folder of this user's numbers: the same for all processes, also for those with a TMPDIR of their own.

    It is made if need be, under a name that nobody else has taken.
    """
    place = Path(PLACE if os.access(PLACE, os.W_OK) else tempfile.gettempdir())
    prefix = f"zerobeast-{os.getuid()}-"
    there = sorted(place.glob(f"{prefix}*"))  # first: a name before it may have become free
    return next(
        filter(_is_own, itertools.chain(there, map(_make_folder, (place / f"{prefix}{n}" for n in itertools.count()))))
    )


def _make_folder(path: Path) -> Path:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return path


def _is_own(path: Path) -> bool:
    """Whether it is a folder that this user alone can enter."""
    with suppress(FileNotFoundError):  # another user has removed it meanwhile
        found = path.lstat()
        return (found.st_uid, stat.S_IFMT(found.st_mode), found.st_mode & 0o77) == (os.getuid(), stat.S_IFDIR, 0)
    return False


@contextmanager
def fill_number(kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments of an environment with its number in place of placeholders; `VARIABLE` has it meanwhile."""
    if (following := _next.get()) is None:
        yield kwargs
        return
    os.environ[VARIABLE] = number = str(following())
    if PLACEHOLDER in str(kwargs):
        text = INTEGER.sub(rf"\g<1>{number}", json.dumps(kwargs)).replace(PLACEHOLDER, number)
        kwargs = json.loads(text)
    try:
        yield kwargs
    finally:
        os.environ.pop(VARIABLE, None)
