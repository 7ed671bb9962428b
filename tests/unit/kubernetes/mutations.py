"""Breaking one thing in a good set of objects, to see that a check says so."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.unit.kubernetes.checks import faults
from tests.unit.kubernetes.objects import Object, Objects, of_kind
from tests.unit.kubernetes.render import render

GONE = object()
POD = "spec template spec"
FIRST = f"{POD} containers 0"
SIDECAR = f"{POD} initContainers 0"
COMPONENT = "app.kubernetes.io/component"


class Broken(NamedTuple):
    """One thing to break, and what has to be said of it.

    Attributes:
      check: that has to find it.
      where: kind and name of an object; of a ConfigMap the name without its hash.
      path: keys and indices into it; an index behind a list's end appends.
      value: to put there, or GONE.
      sentence: how the check's begins.
      overlay: to break it in.
    """

    check: Callable[[Objects], Iterator[str]]
    where: str
    path: str
    value: Any
    sentence: str
    overlay: str = "base"

    def __repr__(self) -> str:
        return f"{self.check.__name__}: {self.where} {self.path.split()[-1]}"


def assert_named(broken: Broken) -> None:
    """Break it; the check has to name it, and all checks together have to say the same."""
    objects = render(broken.overlay)
    assert not list(broken.check(objects)), "a good set of objects is refused"
    _break(objects, broken)
    found = list(broken.check(objects))
    assert any(sentence.startswith(broken.sentence) for sentence in found), found
    assert set(found) <= set(faults(objects))


def _break(objects: list[Object], broken: Broken) -> None:
    *keys, last = [int(key) if key.isdigit() else key for key in broken.path.split()]
    holder: Any = functools.reduce(operator.getitem, keys, _object(objects, broken.where))
    if broken.value is GONE:
        del holder[last]
    elif isinstance(holder, list) and last == len(holder):
        holder.append(broken.value)
    else:
        holder[last] = broken.value


def _object(objects: list[Object], where: str) -> Any:
    kind, name = where.split()
    names = {found["metadata"]["name"]: found for found in of_kind(objects, kind)}
    return names.get(name) or next(found for key, found in names.items() if key.startswith(f"{name}-"))
