"""What a sweep tries: every combination of the values that its file lists, or draws from distributions.

    dimension = read_dimension("learner.batch_size", [8, 16], "sweep.yaml: vary: learner.batch_size")
    grid([dimension])                      # {"learner.batch_size": 8}, {"learner.batch_size": 16}
    samples([dimension], count=2, seed=1)  # the same draws for the same seed, whatever else is varied

No clock, no file and no global generator: the same file always gives the same runs.
"""

import functools
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zerobeast.common.config.layers import NumberText
from zerobeast.common.config.settings_table import SHORT_NAMES
from zerobeast.common.errors import ConfigError
from zerobeast.common.text import suggestion
from zerobeast.common.wire import short

MAX_TRIES = 1000  #: draws of one sample that were all drawn before
DIGITS = 4  #: of a drawn number, so that names and tables show all of it
EXPECTED_ENTRY = "expected a list of values, or one of uniform, log_uniform and integers, such as {uniform: [0, 1]}"

Values = dict[str, Any]  #: path of a setting -> value


@dataclass(frozen=True)
class Dimension:
    """Settings that vary together: one, or several whose values belong together.

    Exactly one of `rows` and `draw` gives their values.
    """

    paths: tuple[str, ...]
    where: str  #: the entry of the file, for messages
    rows: tuple[Values, ...] = ()
    draw: Callable[[float], Any] | None = None  #: a number in [0, 1) -> the value of the only path

    def at(self, chance: float) -> Values:
        """The values that a number in [0, 1) stands for."""
        return {self.paths[0]: self.draw(chance)} if self.draw else self.rows[int(chance * len(self.rows))]


def read_dimension(key: str, entry: Any, where: str) -> Dimension:
    """What an entry of the file varies.

    Args:
      key: path of a setting, or several with commas, which take the values of one list after the other together.
      entry: a list of values, or {name of a distribution: what it takes}.
      where: the entry, for messages.

    Raises:
      ConfigError: it is neither.
    """
    paths = tuple(SHORT_NAMES.get(path, path) for path in map(str.strip, key.split(",")))
    name, given = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else ("", entry)
    if isinstance(entry, list):
        return Dimension(paths, where, rows=tuple(_rows(paths, entry, where)))
    if not name:
        raise ConfigError(f"{where}: got {short(entry)}, {EXPECTED_ENTRY}", path=key, value=entry, layer=where)
    if name not in DISTRIBUTIONS:
        raise ConfigError(
            f"{where}: unknown distribution {name!r}{suggestion(str(name), DISTRIBUTIONS)}",
            path=key,
            value=name,
            layer=where,
        )
    if len(paths) > 1:
        expected = "a list for settings that vary together"
        sentence = f"{where}: {name} of {len(paths)} settings, expected {expected}"
        raise ConfigError(sentence, path=key, value=entry, expected=expected, layer=where)
    return Dimension(paths, where, draw=_draw(name, given, where))


def grid(dimensions: Sequence[Dimension]) -> Iterator[Values]:
    """Every combination; the last dimension changes fastest.

    Raises:
      ConfigError: a dimension is a distribution, which has no list of values.
    """
    for each in dimensions:
        if each.draw is not None:
            raise ConfigError(path=each.where, expected="a list of values; `samples: 20` draws from distributions")
    for rows in itertools.product(*(each.rows for each in dimensions)):
        yield functools.reduce(operator.or_, rows, {})


def draw_samples(dimensions: Sequence[Dimension], count: int, seed: int, where: str = "samples") -> Iterator[Values]:
    """Draws that all differ. More of them begin with the same ones, and a further dimension changes no other's values.

    Raises:
      ConfigError: there are not so many different ones.
    """
    seen: list[Values] = []
    for index in range(count):
        for attempt in range(MAX_TRIES):
            values: Values = {}
            for each in dimensions:  # text seeds a generator in the same way on every machine
                values |= each.at(random.Random(f"{seed} {index} {attempt} {each.paths}").random())  # noqa: S311
            if values not in seen:
                break
        else:
            raise ConfigError(
                path="samples",
                value=count,
                expected=f"at most {index}",
                cause="these values have no more combinations",
                layer=where,
            )
        seen.append(values)
        yield values


def _rows(paths: tuple[str, ...], entry: list[Any], where: str) -> Iterator[Values]:
    if not entry:
        raise ConfigError(path=",".join(paths), value=entry, expected="a list of at least one value", layer=where)
    for row in entry:
        values = row if len(paths) > 1 else [row]
        if not isinstance(values, list) or len(values) != len(paths):
            expected = f"a list with a value for each of {', '.join(paths)}"
            raise ConfigError(path=",".join(paths), value=row, expected=expected, layer=where)
        yield dict(zip(paths, values, strict=True))


def _draw(name: str, given: Any, where: str) -> Callable[[float], Any]:
    """From a number in [0, 1) to a value of a distribution."""
    pair = given if isinstance(given, list) and len(given) == 2 else [math.nan, math.nan]
    numbers = all(isinstance(each, int | float | NumberText) and not isinstance(each, bool) for each in pair)
    low, high = map(float, pair if numbers else [math.nan, math.nan])
    if not (low < high and math.isfinite(high - low)):
        expected = "[low, high], two numbers of which the first is smaller"
    elif name == "log_uniform" and low <= 0:
        expected = "bounds above 0"
    elif name == "integers" and not (low.is_integer() and high.is_integer()):
        expected = "whole numbers"
    else:
        return functools.partial(DISTRIBUTIONS[name], low, high)
    raise ConfigError(path=name, value=given, expected=expected, layer=f"{where}: {name}")


def _round_value(value: float, low: float, high: float) -> float:
    return min(max(float(f"{value:.{DIGITS}g}"), low), high)


DISTRIBUTIONS: dict[str, Callable[[float, float, float], Any]] = {
    "uniform": lambda low, high, chance: _round_value(low + chance * (high - low), low, high),
    "log_uniform": lambda low, high, chance: _round_value(low * (high / low) ** chance, low, high),
    "integers": lambda low, high, chance: int(low) + int(chance * (high - low + 1)),  # both bounds are among them
}
