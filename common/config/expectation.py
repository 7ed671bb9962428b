"""Plain words for people: what a setting takes, and what a misspelt name may have meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

KINDS: dict[Any, str] = {
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    float | None: "a number",
    bool: "true or false",
    str: "text",
}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
MAX_SHOWN = 80


def expectation(field: FieldInfo) -> str:
    """What a setting takes, such as "a whole number, at least 1 and at most 64"."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        *some, last = (str(choice) for choice in get_args(kind))
        return f"{', '.join(some)} or {last}" if some else last
    if get_origin(kind) is dict:
        return "a mapping such as {name: value}"
    name = KINDS.get(kind, "text")
    bounds = " and ".join(_bounds(field))
    return f"{name}, {bounds}" if bounds else name


def _bounds(field: FieldInfo) -> Iterator[str]:
    for entry in field.metadata:
        for name, words in BOUNDS.items():
            if (bound := getattr(entry, name, None)) is not None:
                yield f"{words} {bound}"


def shown(value: Any) -> str:
    """A value as the user may recognise it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean a.b?", or nothing.

    Compares whole names with '.' as good as '_', and the last parts alone: `batch_size` may mean
    `learner.batch_size`, `threads` any of three.
    """
    names = list(known)
    leaves: dict[str, list[str]] = {}
    for path in names:
        leaves.setdefault(path.rpartition(".")[2], []).append(path)
    flat = {path.replace(".", "_"): path for path in names}
    if name in leaves:
        found = leaves[name]
    elif whole := get_close_matches(name.replace(".", "_"), flat, n=1, cutoff=0.75):
        found = [flat[whole[0]]]
    else:
        part = get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=0.75)
        found = leaves[part[0]] if part else []
    return f"; did you mean {' or '.join(found)}?" if found else ""
