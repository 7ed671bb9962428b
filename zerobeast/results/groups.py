"""Runs that repeat each other, and names for what differs between those that do not.

A group is the runs whose settings differ in nothing that decides what is learned, but for the seed. Its label names the
algorithm if there are several, and of the other settings as few as distinguish the groups.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from zerobeast.common.config.settings_table import LEVELS, TREE, topic_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import PAST_OPPONENT
from zerobeast.common.settings.facts import About
from zerobeast.common.text import as_text, printable
from zerobeast.results.curves import ALL_ROWS, TRAINING, Where, select_evaluations
from zerobeast.results.run_results import SavedRun
from zerobeast.results.style import place_of, title

PARENT_SETTING = "parent.run"
#: what settings are about in which repetitions may differ
SHARED_TOPICS = (About.IDENTITY, About.PEERS, About.CAPACITY, About.VERSIONS, About.FILES)

Settings = Mapping[str, str]  #: by path, as text


class Group(NamedTuple):
    """Runs that repeat each other."""

    label: str
    algo: str
    number: int  #: among the groups of the same algorithm
    siblings: int  #: how many of these there are
    runs: list[SavedRun]
    where: Where = ALL_ROWS  #: which evaluations


def group_runs(runs: Sequence[SavedRun], *, each: bool = False) -> list[Group]:
    """Groups of runs of one environment, in the order of their algorithms and then of what differs.

    With `each`, every run is a group of its own, with its name as label.
    """
    found: dict[object, tuple[Settings, list[SavedRun]]] = {}
    for run, texts in zip(runs, _texts(runs), strict=True):
        key = run.folder if each else tuple(sorted(texts.items()))
        found.setdefault(key, (texts, []))[1].append(run)
    algos = sorted({run.algo for run in runs}, key=lambda algo: (place_of(algo), algo))
    groups = list[Group]()
    for algo in algos:
        siblings = [one for one in found.values() if one[1][0].algo == algo]
        paths = _find_distinguishing([settings for settings, _ in siblings])
        siblings.sort(key=lambda one: [_order(one[0][path]) for path in paths])
        for number, (settings, members) in enumerate(siblings):
            parts = [title(algo)] * (len(algos) > 1 or not paths)
            parts += [f"{path.removeprefix(f'{algo}.')} {settings[path] or 'none'}" for path in paths]
            label = members[0].name if each else ", ".join(parts)
            groups.append(Group(label, algo, number, len(siblings), members))
    return groups


def split_by_level(
    groups: Sequence[Group], of: str, has: Callable[[SavedRun, Where], bool], where: Where
) -> Iterator[Group]:
    """The same groups, with one for each environment of runs that were evaluated in several or by `evaluate.levels`,
    and for each kind of actions that their evaluations were made with.

    Args:
      groups: as of `group_runs`.
      of: what is shown of them: as for `curves.curve`.
      has: whether there is something to show of a run in some evaluations; others are left out of its group.
      where: which evaluations are asked for: all, or those in one environment.
    """
    evaluated = [[] if of in (TRAINING, *group.runs[0].metrics) else _rows(group, where) for group in groups]
    named = len({row.get("actions") for rows in evaluated for row in rows}) > 1
    for group, rows in zip(groups, evaluated, strict=True):
        levels = {str(row.get("env", "")): str(row.get("level") or "") for row in rows if not where}
        apart = len(levels) > 1 or (bool(levels) and any(run.settings.get(LEVELS) for run in group.runs))
        shorter = len({*filter(None, levels.values())}) == len(levels)  # each level is one environment
        envs: list[Where] = [{"env": env} for env in levels] if apart else [where]
        kinds: list[Where] = [{"actions": kind} for kind in sorted({str(row.get("actions") or "") for row in rows})]
        parts = [{**env, **kind} for env, kind in product(envs, kinds or [ALL_ROWS])]
        for place, own in enumerate(parts):
            label, number = group.label, group.number * len(parts) + place
            label += f", {levels[own['env']] if shorter else own['env']}" if apart else ""
            label += f", {own.get('actions') or 'unknown actions'}" if named else ""
            if runs := [run for run in group.runs if has(run, own)]:
                yield Group(label, group.algo, number, group.siblings * len(parts), runs, own)


def _rows(group: Group, where: Where) -> list[Mapping[str, Any]]:
    return [row for run in group.runs for row in select_evaluations(run, where)]


def split_by_env(runs: Sequence[SavedRun], *, asked: bool) -> dict[str, list[SavedRun]]:
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


def _texts(runs: Sequence[SavedRun]) -> list[dict[str, str]]:
    """The settings of each run that decide what is learned, with the defaults of those that its file lacks."""
    given = [{path: value for path, value in run.settings.items() if not _is_shared(path, run)} for run in runs]
    paths = dict.fromkeys(path for settings in given for path in settings)
    missing = {path: _default(path) for path in paths if any(path not in settings for settings in given)}
    texts = [{path: _text(settings.get(path, missing.get(path))) for path in paths} for settings in given]
    for own, run in zip(texts, runs, strict=True):
        own[PARENT_SETTING] = (
            "yes" if run.settings.get(PARENT_SETTING) else ""
        )  # each seed may have begun from one of its own
    return texts


def _is_shared(path: str, run: SavedRun) -> bool:
    """Whether runs that repeat this one may differ in a setting."""
    return topic_of(path) in SHARED_TOPICS and (
        topic_of(path) != About.VERSIONS or run.settings.get("env.opponent") != PAST_OPPONENT
    )


def _text(value: object) -> str:
    """1 and 1.0 are one text, since other programs write either."""
    return f"{value:.12g}" if isinstance(value, float) else printable(as_text(value))


def _default(path: str) -> object:
    """The default of a setting; None if there is no such setting."""
    try:
        return TREE[path].default
    except (KeyError, ConfigError):  # of an algorithm that is not installed, or a part of a setting
        return None


def _find_distinguishing(settings: Sequence[Settings]) -> list[str]:
    """As few of the differing settings as distinguish all, those that separate most first; of equals the preset."""
    paths, chosen = [path for path in settings[0] if len({each[path] for each in settings}) > 1], list[str]()
    paths.sort(key=lambda path: path != "preset")

    def classes(more: str) -> int:
        return len({tuple(each[path] for path in (*chosen, more)) for each in settings})

    while paths and (not chosen or classes(chosen[-1]) < len(settings)):
        chosen.append(max(paths, key=classes))
        paths.remove(chosen[-1])
    return chosen


def _order(text: str) -> tuple[float, str]:
    """Numbers by their size and before words."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text
