"""Whole episodes as they are reported: [return, length], or [return, length, {name: number}]; and lost ones.

The map has the numbers of the episode's last info, such as whether it was a success. Beside step rows there is an entry
for each row that ends an episode, which is empty if that was no whole one. An episode that an environment has failed in
is [reason, row]: an empty reason stands for that of the lost episode before, the row is the step row that the episode
was in. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from zerobeast.common.errors import RemoteProtocolError

MAX_STEPS = 1 << 40
MAX_RETURN = 1e38  #: near the end of float32's range, so that means of returns are numbers
MAX_NAMES, MAX_NAME_BYTES = 32, 64  #: of one episode's infos
MAX_NUMBERS = 400  #: of infos in one message, which leave room in its header for the episodes themselves
MAX_REASON, MAX_REASONS = 200, 8  #: characters of a reason; how many of them are in one message

NO_INFOS: Mapping[str, float] = MappingProxyType({})
Entry = list[Any]  #: an episode on the wire
Refuse = Callable[[RemoteProtocolError], None]


class Episode(NamedTuple):
    value: float  #: undiscounted, unclipped return
    length: int  #: agent steps
    infos: Mapping[str, float] = NO_INFOS  #: numbers of its last info by name


class LostEpisode(NamedTuple):
    """An episode that was begun, and that its environment or its process has failed in."""

    reason: str  #: what was raised, and where; or how the process ended
    row: int  #: of the step rows


def to_entry(episode: Episode | LostEpisode) -> Entry:
    """Inverse of `episodes_of`, or of `read_lost`."""
    if isinstance(episode, LostEpisode):
        return [*episode]
    return [episode.value, episode.length, *([dict(episode.infos)] if episode.infos else [])]


def limit_infos(entries: list[Entry]) -> list[Entry]:
    """The same episodes; if their infos have more than MAX_NUMBERS in all, evenly spaced ones alone keep theirs.

    Of lost ones, the first MAX_REASONS alone keep their reasons.
    """
    if late := set([place for place, one in enumerate(entries) if is_lost(one)][MAX_REASONS:]):
        entries = [["", one[1]] if place in late else one for place, one in enumerate(entries)]
    sizes = {place: len(one[2]) for place, one in enumerate(entries) if len(one) > 2}
    if sum(sizes.values()) <= MAX_NUMBERS:
        return entries
    room, places = MAX_NUMBERS // max(sizes.values()), list(sizes)
    kept = {places[number * len(places) // room] for number in range(room)}
    return [one if place in kept else one[:2] for place, one in enumerate(entries)]


def is_lost(one: Any) -> bool:
    """Whether an entry is a well-formed one of a lost episode."""
    if not isinstance(one, list) or len(one) != 2 or type(one[0]) is not str or type(one[1]) is not int:
        return False
    return len(one[0]) <= MAX_REASON and one[0].isprintable() and 0 <= one[1] <= MAX_STEPS


def read_lost(entries: list[Any]) -> tuple[LostEpisode, ...]:
    """The lost episodes among those that a peer reports, each with its reason."""
    found, reason = list[LostEpisode](), ""
    for one in filter(is_lost, entries):
        reason = one[0] or reason
        found.append(LostEpisode(reason, one[1]))
    return tuple(found)


def ends_of(entries: list[Any], refuse: Refuse) -> tuple[Episode | None, ...]:
    """What a peer reports of each end; None for those of no whole episode, and for entries that `refuse` gets."""
    entries = [one for one in entries if not is_lost(one)]
    found = tuple(Episode(float(one[0]), int(one[1]), *one[2:]) if _is_episode(one) else None for one in entries)
    if wrong := sum(each is None and one != [] for one, each in zip(entries, found, strict=True)):
        refuse(RemoteProtocolError(f"{wrong} episodes without a finite return and a length", "episodes"))
    return found


def episodes_of(entries: list[Any], refuse: Refuse) -> tuple[Episode, ...]:
    """The well-formed episodes among those that a peer reports; the others go to `refuse`, and spoil nothing else."""
    return tuple(filter(None, ends_of(entries, refuse)))


def _is_episode(one: Any) -> bool:
    if not isinstance(one, list) or len(one) not in (2, 3) or any(type(x) not in (int, float) for x in one[:2]):
        return False
    infos = one[2] if len(one) == 3 else {}
    return bool(abs(one[0]) <= MAX_RETURN and 0 < one[1] <= MAX_STEPS and isinstance(infos, dict) and are_infos(infos))


def merge_infos(own: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Numbers of our own, and as many others as an episode may then have."""
    left = [(name, number) for name, number in others.items() if name not in own]
    return {**dict(left[: MAX_NAMES - len(own)]), **own}


def mean_infos(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number in infos of several episodes, over those that have it."""
    found: dict[str, list[float]] = {}
    for each in infos:
        for name, number in each.items():
            found.setdefault(name, []).append(number)
    return {name: fmean(numbers) for name, numbers in found.items()}


def are_infos(infos: Mapping[Any, Any]) -> bool:
    """Whether a map has only numbers no larger than returns, and not too many, under names that can be columns."""
    return len(infos) <= MAX_NAMES and all(
        isinstance(name, str)
        and 0 < len(name.encode()) <= MAX_NAME_BYTES
        and name.isprintable()
        and type(number) is float
        and abs(number) <= MAX_RETURN
        for name, number in infos.items()
    )
