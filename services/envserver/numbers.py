"""Numbers of environments, for whatever copies of one cannot share, such as a port.

A number is held by a socket with a name in the kernel's abstract namespace, which no other process can take, and which
is free again when the process has ended, however it ended. So the numbers of all environments that are alive on a
machine differ: "Numbers of environments" in the README here.
"""

import errno
import itertools
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

VARIABLE = "ZEROBEAST_ENV_NUMBER"  #: has the number while an environment is made
PLACEHOLDER = "{number}"  #: stands for it in strings of `env.kwargs`
INTEGER = re.compile(r'(?<!\\)"([1-9]\d*|)\{number\}"(?!:)')  #: in JSON, a whole string that becomes an integer

#: gives the next environment its number, while the environments of a place are made
_next: ContextVar[Callable[[], int] | None] = ContextVar("_next", default=None)


class Numbered:
    """Makes the environments of a process, each with a number; one that is made anew gets the same again."""

    _from: ClassVar[int] = 0  #: all numbers below are held by this process, or were taken when it looked

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._first: list[Any] = []
        self._held: dict[tuple[int, int], tuple[int, socket.socket]] = {}

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
            holder.close()
            Numbered._from = min(Numbered._from, number)

    __del__ = close  # if they could not be made

    def _number(self, place: tuple[int, int]) -> int:
        if place not in self._held:
            self._held[place] = _claimed(Numbered._from)
            Numbered._from = self._held[place][0] + 1
        return self._held[place][0]


def _claimed(least: int) -> tuple[int, socket.socket]:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for number in itertools.count(least):
        try:
            holder.bind(f"\0zerobeast-env-{number}")
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return number, holder


@contextmanager
def numbered(kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
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
