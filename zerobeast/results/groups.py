"""Runs that repeat each other, and names for what differs between those that do not.

A group is the runs whose settings differ in nothing but seed, name and place. Its label names the algorithm if there
are several, and of the other settings as few as tell the groups apart.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from zerobeast.common.errors import ConfigError
from zerobeast.common.text import printable
from zerobeast.results.run import SavedRun
from zerobeast.results.style import place_of, title

SEED = "seed"
#: settings that say which repetition a run is, where it stands and who may reach it
PLACE = re.compile(r"seed|name|root|security\..*|health\..*|.*\.endpoint")
MAX_NAMED, MAX_LISTED = 5, 12  #: settings, and groups or seeds, in a sentence

Settings = Mapping[str, str]  #: by path, as text


class Group(NamedTuple):
    """Runs that repeat each other."""

    label: str
    algo: str
    number: int  #: among the groups of the same algorithm
    siblings: int  #: how many of these there are
    runs: list[SavedRun]


class Grouping(NamedTuple):
    """Groups, in the order of their algorithms and then of what differs."""

    groups: list[Group]
    sentence: str  #: what was grouped


def grouped(runs: Sequence[SavedRun], *, each: bool = False) -> Grouping:
    """Group runs of one environment; with `each`, every run is a group of its own, with its name as label."""
    texts: list[Settings] = [*_filled(map(_texts, runs))]
    found: dict[Any, tuple[Settings, list[SavedRun]]] = {}
    for place, (run, settings) in enumerate(zip(runs, texts, strict=True)):
        key = place if each else tuple(sorted(settings.items()))
        found.setdefault(key, (settings, []))[1].append(run)
    algos = sorted({run.algo for run in runs}, key=lambda algo: (place_of(algo), algo))
    groups, differing = list[Group](), dict[str, None]()
    for algo in algos:
        siblings = [one for one in found.values() if one[1][0].algo == algo]
        paths = _telling([settings for settings, _ in siblings])
        differing |= {} if each else dict.fromkeys(_differing([settings for settings, _ in siblings]))
        in_order = sorted(siblings, key=partial(_values, paths))
        for number, (settings, members) in enumerate(in_order):
            parts = [title(algo)] * (len(algos) > 1 or not paths)
            parts += [f"{path.removeprefix(f'{algo}.')} {settings.get(path, 'unset')}" for path in paths]
            label = members[0].name if each else ", ".join(parts)
            groups.append(Group(label, algo, number, len(siblings), members))
    return Grouping(groups, "" if each else _sentence(groups, ["algo"] * (len(algos) > 1) + list(differing)))


def by_env(runs: Sequence[SavedRun], *, asked: bool) -> dict[str, list[SavedRun]]:
    """The runs of each environment.

    Raises:
      ConfigError: there are several, and nobody has asked for that.
    """
    found: dict[str, list[SavedRun]] = {}
    for run in runs:
        found.setdefault(run.env, []).append(run)
    if len(found) > 1 and not asked:
        (one, first), (other, second), *_ = found.items()
        raise ConfigError(
            f"run {first[0].name!r} is of {one} and run {second[0].name!r} of {other}, which cannot be compared; "
            f"--by-env shows each environment by itself"
        )
    return found


def _texts(run: SavedRun) -> dict[str, str]:
    return {path: as_text(value) for path, value in run.settings.items() if not PLACE.fullmatch(path)}


def as_text(value: Any) -> str:
    """The value of a setting, as in a flag."""
    if isinstance(value, list | tuple):
        return ",".join(map(as_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return printable(f"{value:.12g}" if isinstance(value, float) else "none" if value is None else str(value))


def _filled(texts: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """The settings of each run with those that runs saved before they existed do not have."""
    found = list(texts)
    for algo in {settings["algo"] for settings in found}:
        same = [settings for settings in found if settings["algo"] == algo]
        missing = {path for settings in same for path in settings} - set[str].intersection(*map(set[str], same))
        known = {path: default for path in missing if (default := _earlier(path)) is not None}
        for settings in same:
            settings.update((path, text) for path, text in known.items() if path not in settings)
    return found


def _earlier(path: str) -> str | None:
    """What a run did that was saved before it had a setting; None if there is no such setting."""
    from zerobeast.common.config.layers import EARLIER
    from zerobeast.common.config.table import TREE

    try:
        return as_text(EARLIER[path] if path in EARLIER else TREE[path].default)
    except (KeyError, ConfigError):  # of an algorithm that is not installed, or a part of a setting
        return None


def _differing(settings: Sequence[Settings]) -> list[str]:
    """Paths of the settings that differ, in the order of their files."""
    paths = dict.fromkeys(path for each in settings for path in each)
    return [path for path in paths if len({each.get(path) for each in settings}) > 1]


def _telling(settings: Sequence[Settings]) -> list[str]:
    """As few of the differing settings as tell all apart, those that separate most first; of equals the preset."""
    paths, chosen = _differing(settings), list[str]()
    paths.sort(key=lambda path: path != "preset")

    def classes(more: str) -> int:
        return len({tuple(each.get(path) for path in (*chosen, more)) for each in settings})

    while paths and (not chosen or classes(chosen[-1]) < len(settings)):
        chosen.append(max(paths, key=classes))
        paths.remove(chosen[-1])
    return chosen


def _values(paths: Sequence[str], of: tuple[Settings, list[SavedRun]]) -> list[tuple[float, str]]:
    return [_order(of[0].get(path, "")) for path in paths]


def _order(text: str) -> tuple[float, str]:
    """Numbers by their size and before words."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def _sentence(groups: Sequence[Group], differing: Sequence[str]) -> str:
    runs = _count(sum(len(group.runs) for group in groups), "run")
    seeds = [_seeds(group.runs) for group in groups]
    if len(groups) == 1:
        return f"{runs} in one group, {groups[0].label}: {seeds[0]}"
    more = len(differing) - MAX_NAMED
    named = ", ".join(differing[:MAX_NAMED]) + (f" and {_count(more, 'other setting')}" if more > 0 else "")
    labels = [group.label for group in groups]
    if len(groups) > MAX_LISTED:
        listed = f"{'; '.join(labels[:MAX_LISTED])} and {len(groups) - MAX_LISTED} more"
    elif len(set(seeds)) == 1:
        listed = f"{'; '.join(labels)}; each with {seeds[0]}"
    else:
        listed = "; ".join(f"{label}: {own}" for label, own in zip(labels, seeds, strict=True))
    return f"{runs} in {len(groups)} groups, which differ in {named}: {listed}"


def _seeds(runs: Sequence[SavedRun]) -> str:
    """ "seeds 1, 2 and 3", with what is odd about them."""
    seeds = Counter(as_text(run.settings.get(SEED)) for run in runs)
    if len(seeds) > MAX_LISTED and set(seeds.values()) == {1}:
        return f"{len(seeds)} seeds"
    names = [f"{seed} ({seeds[seed]} times)" if seeds[seed] > 1 else seed for seed in sorted(seeds, key=_order)]
    return f"seed {names[0]}" if len(names) == 1 else f"seeds {', '.join(names[:-1])} and {names[-1]}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
