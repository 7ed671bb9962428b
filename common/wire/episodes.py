"""Whole episodes as they are reported: [return, length], or [return, length, {name: number}].

The map has the numbers of the episode's last info, such as whether it was a success. Beside step rows there is an entry
for each row that ends an episode, which is empty if that was no whole one. Pure.
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

NONE: Mapping[str, float] = MappingProxyType({})
Entry = list[Any]  #: an episode on the wire
Refuse = Callable[[RemoteProtocolError], None]


class Episode(NamedTuple):
    value: float  #: undiscounted, unclipped return
    length: int  #: agent steps
    infos: Mapping[str, float] = NONE  #: numbers of its last info by name


def entry(episode: Episode) -> Entry:
    """Inverse of `episodes_of`."""
    return [episode.value, episode.length, *([dict(episode.infos)] if episode.infos else [])]


def lightened(entries: list[Entry]) -> list[Entry]:
    """The same episodes; if their infos have more than MAX_NUMBERS in all, evenly spaced ones alone keep theirs."""
    sizes = {place: len(one[2]) for place, one in enumerate(entries) if len(one) > 2}
    if sum(sizes.values()) <= MAX_NUMBERS:
        return entries
    room, places = MAX_NUMBERS // max(sizes.values()), list(sizes)
    kept = {places[number * len(places) // room] for number in range(room)}
    return [one if place in kept else one[:2] for place, one in enumerate(entries)]


def ends_of(entries: list[Any], refuse: Refuse) -> tuple[Episode | None, ...]:
    """What a peer reports of each end; None for those of no whole episode, and for entries that `refuse` gets."""
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


def joined(own: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Numbers of our own, and as many others as an episode may then have."""
    left = [(name, number) for name, number in others.items() if name not in own]
    return {**dict(left[: MAX_NAMES - len(own)]), **own}


def means(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
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
