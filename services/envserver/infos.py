"""Infos of environments as they are sent: only the numbers, in the form of gymnasium's vector environments.

    {"lives": [N], "_lives": [N] bool, "episode": {"r": [N], "_r": [N] bool, ...}, "_episode": [N] bool}

`_name` marks environments that reported `name`, so names of infos must not begin with _. A map may take the place of an
array, one level deep. An entry is left out and counted if it is neither a number nor an array of numbers, has another
shape than earlier in the same step, or exceeds the limits: no step is lost because of its infos.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from zerobeast.common.text import in_line
from zerobeast.common.wire.codec import DTYPES, pack
from zerobeast.common.wire.episodes import MAX_NAMES as MAX_NUMBERS
from zerobeast.common.wire.episodes import are_infos
from zerobeast.common.wire.messages import MAX_HEADER_BYTES

MAX_NAMES = 64  #: per step
MAX_NAME_LENGTH = 100
MAX_BYTES = 48 << 10  #: per step: infos are part of its header
NAME_BYTES = 250  #: overhead of a name and its mask, without the name itself
RECORDED_NAMES = ("episode.r", "episode.l")  #: return and length of an episode by gymnasium's RecordEpisodeStatistics
MAX_WRAPPERS = 50  #: of an environment that are looked at
LEAD_BYTES = 100  #: of a header before its body
_NUMBERS = (bool, int, float, np.number, np.bool_, np.ndarray)

Infos = dict[str, Any]
_told: list[str] = []  #: names that are left out, once the log of this process has them
MAX_TOLD = 1000

log = logging.getLogger(__name__)


class InfoTable:
    """The infos of one step of N environments.

    Attributes:
      infos: in the form that the module describes.
      left_out: how many names of environments or parts were left out so far.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.left_out = 0
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        self.infos: Infos = {}
        self._names = self._bytes = 0

    def put_one(self, info: Any, env: int) -> None:
        """Add the info that one environment's reset or step returned."""
        if isinstance(info, dict):
            self._put(self.infos, info, slice(env, env + 1), _lift)

    def put(self, infos: Any, part: slice) -> None:
        """Add infos of some environments: a table of them, or what one holds."""
        if isinstance(infos, InfoTable):
            self.left_out += infos.left_out
            infos = infos.infos
        if isinstance(infos, dict):
            self._put(self.infos, infos, part, lambda values: values)

    def beside(self, episodes: list[Any]) -> Infos:
        """The infos, or none if they do not fit a header together with these episodes."""
        if self._bytes + len(pack(episodes)) + LEAD_BYTES > MAX_HEADER_BYTES:
            self.left_out += self._names
            self.clear()
        return self.infos

    def _put(self, into: Infos, infos: Infos, part: slice, read: Callable[[Any], Any], *, nested: bool = False) -> None:
        count = part.stop - part.start
        for name, values in infos.items():
            if isinstance(name, str) and name[:1] == "_" and name[1:] in infos:
                continue  # a mask
            if isinstance(values, dict) and not nested:
                if name not in into and self._has_room(name, 0):
                    into[name] = {}
                if is_put := isinstance(into.get(name), dict):
                    self._put(into[name], values, part, read, nested=True)
            else:
                is_put = self._fill(into, name, read(values), part)
            if not is_put:
                self.left_out += 1
                continue
            mask = infos.get(f"_{name}")
            is_mask = isinstance(mask, np.ndarray) and (mask.dtype, mask.shape) == (np.bool_, (count,))
            into.setdefault(f"_{name}", np.zeros(self.num_envs, np.bool_))[part] = mask if is_mask else True

    def _fill(self, into: Infos, name: Any, values: Any, part: slice) -> bool:
        """Add values under a name; returns whether that worked."""
        count = part.stop - part.start
        if not isinstance(values, np.ndarray) or values.dtype.str not in DTYPES or values.shape[:1] != (count,):
            return False
        if name not in into and self._has_room(name, values.nbytes // count):
            into[name] = np.zeros((self.num_envs, *values.shape[1:]), values.dtype)
        place = into.get(name)
        if not isinstance(place, np.ndarray) or place.shape[1:] != values.shape[1:]:
            return False
        if not np.can_cast(values.dtype, place.dtype, "same_kind"):
            return False
        place[part] = values
        return True

    def _has_room(self, name: Any, size: int) -> bool:
        """Reserve room for a name with `size` bytes per environment; returns whether there was any."""
        if not _is_name(name) or self._names == MAX_NAMES:
            return False
        total = self.num_envs * (size + 1) + NAME_BYTES + 2 * len(name.encode())
        if self._bytes + total > MAX_BYTES:
            return False
        self._names, self._bytes = self._names + 1, self._bytes + total
        return True


def extract_numbers(info: Any, env: int | None = None) -> dict[str, float]:
    """The finite numbers of an episode's last info, those of a map in it as "map.name"; an array of one counts as one.

    Those beyond the first MAX_NUMBERS are left out, which the log of this process says once.

    Args:
      info: of a step.
      env: whose entries, if the info is a table of several environments in the form that the module describes.
    """
    found: dict[str, float] = {}
    for name, value in sorted(_entries(info, "", env), key=lambda entry: entry[0] not in RECORDED_NAMES):
        one = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        if isinstance(one, bool | int | float | np.number | np.bool_):
            with contextlib.suppress(OverflowError, TypeError):  # integers of any size, complex numbers
                if _is_name(name) and are_infos({name: float(one)}):
                    found[name] = float(one)
    if (over := [*found][MAX_NUMBERS:]) and not _told:
        _told.append(in_line(", ".join(over), MAX_TOLD))
        log.warning("the info of an episode's end has more than %d numbers: without %s", MAX_NUMBERS, *_told)
    return dict(islice(found.items(), MAX_NUMBERS))


def count_recorded(env: Any) -> int | None:
    """How many episodes a wrapper in an environment has recorded in infos; None: there is no such wrapper.

    These are gymnasium's RecordEpisodeStatistics, which counts them, and Stable-Baselines3's Monitor, which lists them.
    """
    for _ in range(MAX_WRAPPERS):
        if hasattr(env, "episode_lengths") and getattr(env, "_stats_key", "episode") == "episode":
            listed: Any = getattr(env, "episode_returns", None)
            return len(listed) if isinstance(listed, list) else getattr(env, "episode_count", None)
        env = getattr(env, "env", None)
    return None


def _entries(info: Any, prefix: str, env: int | None) -> Iterator[tuple[str, Any]]:
    for name, value in info.items() if isinstance(info, Mapping) else ():
        mask = None if env is None else _env_entry(info.get(f"_{name}"), env)
        if not isinstance(name, str) or name[:1] == "_" or mask is False:
            continue
        if isinstance(value, Mapping) and not prefix:
            yield from _entries(value, f"{name}.", env)
        else:
            yield prefix + name, value if env is None else _env_entry(value, env)


def _env_entry(values: Any, env: int) -> Any:
    """The entry of one environment; None if these are not values of several."""
    entry = values[env] if isinstance(values, np.ndarray) and values.shape[:1] > (env,) else None
    return bool(entry) if isinstance(entry, np.bool_) else entry


def _lift(value: Any) -> Any:
    """A number or an array of one environment, with a leading axis of length 1."""
    return np.asarray(value)[None] if isinstance(value, _NUMBERS) else None


def _is_name(name: Any) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        return False
    return name.isprintable() and name[0] != "_" and name != "nd"  # a map with the key "nd" is decoded as an array
