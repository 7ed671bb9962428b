"""What a misspelt name may have meant: a setting, a preset, a command, an environment."""

from collections.abc import Iterable
from difflib import get_close_matches

SIMILAR = 0.75  #: lowest similarity of a suggestion, out of 1


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
    elif whole := get_close_matches(_flat(name), flat, n=1, cutoff=SIMILAR):
        found = [flat[whole[0]]]
    else:
        part = get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=SIMILAR)
        found = leaves[part[0]] if part else []
    return f"; did you mean {' or '.join(found)}?" if found else ""


def suggestion(name: str, known: Iterable[str]) -> str:
    """As `did_you_mean`, or else a list of all known names."""
    names = list(known)
    return did_you_mean(name, names) or f"; known: {', '.join(names)}"


def _flat(name: str) -> str:
    return name.lower().replace(".", "_")
