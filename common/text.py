"""Text of people: made safe for a terminal and a log, suggestions for misspelt names, lists of environments."""

import os
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

#: characters that control a terminal, end a line or, with Unicode's property Bidi_Control, change the direction of text
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNPRINTABLE_IN_LINES = re.compile(_UNPRINTABLE.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))

SIMILAR = 0.75  #: lowest similarity of a suggestion, out of 1
MAX_SHORT = 100  #: characters of a value in a sentence
MIN_BEGUN = 3  #: shortest name, in characters, that is suggested for a longer one that begins with it


def printable(text: str, *, lines: bool = False) -> str:
    r"""Escape control characters as Python writes them: ESC becomes the four characters \x1b.

    With `lines`, line feeds stay.
    """
    unprintable = _UNPRINTABLE_IN_LINES if lines else _UNPRINTABLE
    return unprintable.sub(lambda found: repr(found[0])[1:-1], text)


def in_line(text: str, most: int) -> str:
    """A text in one printable line of at most so many characters."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def short(value: Any) -> str:
    """A value from a peer or user, made short enough for a sentence."""
    text = " ".join(repr(list(value) if isinstance(value, tuple) else value).split())
    return text if len(text) <= MAX_SHORT else f"{text[:MAX_SHORT]}..."


def as_text(value: Any) -> str:
    """A value as it is written in a flag."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value in (None, "") else str(value).replace("True", "true").replace("False", "false")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean a.b?", or an empty string.

    Compares whole names, ignoring case and treating '.' as '_', and the last parts alone: `batch_size` may mean
    `learner.batch_size`, `threads` any of three.
    """
    names = list(known)
    leaves: dict[str, list[str]] = {}
    for path in names:
        leaves.setdefault(path.rpartition(".")[2], []).append(path)
    flat = {_flat(path): path for path in names}
    if name in leaves:
        found = leaves[name]
    elif whole := _closest(_flat(name), flat):
        found = [flat[whole]]
    else:
        part = _closest(name.rpartition(".")[2], leaves)
        found = leaves[part] if part else []
    return f"; did you mean {' or '.join(found)}?" if found else ""


def suggestion(name: str, known: Iterable[str], most: int = 10) -> str:
    """As `did_you_mean`, or else a list of the known names, of `most` of them if there are more."""
    names = list(known)
    return did_you_mean(name, names) or f"; known: {', '.join(names[:most])}{', ...' * (len(names) > most)}"


def split_ids(text: str) -> list[str]:
    """Environment ids in a list with commas; those in parentheses are part of an id, and so are those in the path of a
    file that is there (`/home/Doe, John/walk.py:Walk`). Spaces around an id are dropped.

    >>> split_ids("CartPole-v1, zipf(a, b; 1)")
    ['CartPole-v1', 'zipf(a,b; 1)']
    """
    ids: list[list[str]] = []
    depth = 0
    for part in map(str.strip, _parts(text)):
        if depth > 0:
            ids[-1].append(part)
        else:
            ids.append([part])
        depth += part.count("(") - part.count(")")
    return [",".join(parts) for parts in ids]


def _parts(text: str) -> Iterator[str]:
    parts = text.split(",")
    while parts:
        longer = range(2, len(parts) + 1) if ".py:" in text else ()
        taken = next((n for n in longer if _is_in_file(",".join(parts[:n]).strip())), 1)
        yield ",".join(parts[:taken])
        del parts[:taken]


def _is_in_file(reference: str) -> bool:
    home, _, name = reference.rpartition(":")
    return home.endswith(".py") and "," not in name and os.path.isfile(home)


def without_folders(ids: str) -> str:
    """Environment ids, or a reference, in which files and modules have no folder in front.

    >>> without_folders("MinAtar/Freeway-v1,zipf(/home/me/walk.py:Walk,/home/me/games.run:Run;1)")
    'MinAtar/Freeway-v1,zipf(walk.py:Walk,games.run:Run;1)'
    >>> without_folders("/home/me, myself/walk.py:Walk")
    'me,walk.py:Walk'
    """
    bare = re.compile(r"[^,(]*/(?=[^/,]*:)|(?<![^,(])/[^,(]*/")
    parts = (part.rpartition("/")[2] if _is_in_file(part.strip()) else part for part in _parts(ids))
    return bare.sub("", ",".join(parts))


def _closest(name: str, known: Iterable[str]) -> str:
    """The most similar of the names, if any.

    Short names need more: env is too unlike evn, with swapped letters, enf, and environment, which it begins.
    """
    names = list(known)
    swapped = (each for each in names if sorted(each) == sorted(name) or _is_one_off(each, name))
    begun = (each for each in names if len(each) >= MIN_BEGUN and name.startswith(each))
    return next(iter(get_close_matches(name, names, n=1, cutoff=SIMILAR)), "") or next(swapped, "") or next(begun, "")


def _is_one_off(one: str, other: str) -> bool:
    return len(one) == len(other) >= MIN_BEGUN and sum(map(str.__ne__, one, other)) == 1


def _flat(name: str) -> str:
    return name.lower().replace(".", "_")
