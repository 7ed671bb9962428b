"""find the fastest settings for this machine by short trials

Groups of settings are varied in turn, starting from the best combination so far. A change is kept if it is clearly
faster. Learning per step can depend on the number of environments and env groups and on the batch size;
`--only threads,precision` leaves those unchanged. Every setting of `beast train` is a flag here too, and settings that
are given are not varied.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zerobeast import commands
from zerobeast.common.config.load import resolve_flags
from zerobeast.common.config.settings_table import nest, value_at
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import RunConfig
from zerobeast.plan.placement import THREADS, placement_of
from zerobeast.plan.spaces import fetch_spec
from zerobeast_tools.bench.train import measure as measure_training

PRECISIONS = ("broker.precision", "learner.precision")  #: varied together
CLEAR_FACTOR = 1.05  #: times faster, above which a change is more than noise

Values = dict[str, Any]  #: path of a setting -> value


def _both_precisions(best: Values) -> Iterator[Values]:
    for value in ("float32", "bfloat16"):
        yield {**best, **dict.fromkeys(PRECISIONS, value)}


def _placements(best: Values) -> Iterator[Values]:
    """Every other placement, without the numbers of threads, since it shares out the cores differently."""
    others = {path: value for path, value in best.items() if path not in THREADS}
    return ({**others, "local.placement": name} for name in ("fused", "apart") if name != best["local.placement"])


class Dimension(NamedTuple):
    """Settings that are varied together."""

    paths: tuple[str, ...]
    candidates: Callable[[Values], Iterator[Values]]  #: what to try around a combination


def _one_by_one(paths: tuple[str, ...], around: Callable[[int], Iterable[int]]) -> Dimension:
    """Settings that are varied one at a time, to each positive value that `around` gives for theirs."""

    def candidates(best: Values) -> Iterator[Values]:
        return ({**best, path: value} for path in paths for value in around(best[path]) if value > 0)

    return Dimension(paths, candidates)


DIMENSIONS = {
    "placement": Dimension(("local.placement",), _placements),
    "threads": _one_by_one(THREADS, lambda n: (n + 1,)),
    "precision": Dimension(PRECISIONS, _both_precisions),
    "groups": _one_by_one(("actor.env_groups",), lambda n: (n + 1, n - 1)),
    "envs": _one_by_one(("actor.envs_per_group",), lambda n: (2 * n, n // 2)),
    "batch": _one_by_one(("learner.batch_size",), lambda n: (2 * n, n // 2)),
}


class Trial(NamedTuple):
    """One combination and the rate that it reached."""

    values: Values
    rate: float  #: agent steps a second; 0 if it did not train


Measure = Callable[[Values], Trial]


def main(argv: list[str]) -> int:
    """Run `beast tune`. Raises ConfigError if a flag is wrong, or nothing trained at all."""
    parser = commands.make_parser("beast tune", __doc__)
    parser.add_argument("--only", default=",".join(DIMENSIONS), help="groups of settings to vary; default %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="seconds to measure each combination; default %(default)g"
    )
    parser.add_argument(
        "--warmup", type=float, default=6.0, help="seconds of training before measuring; default %(default)g"
    )
    parser.add_argument("--out", type=Path, default=Path("tuned.yaml"), help="file to write; default %(default)s")
    options, flags = parser.parse_known_args(argv)
    names = _names(options.only)
    loaded = resolve_flags(flags, os.environ, describe=fetch_spec)
    given = {path for path, origin in loaded.origins.items() if origin.startswith("flag")}

    def measure(values: Values) -> Trial:
        chosen = [text for path, value in values.items() if path not in given for text in (f"--{path}", str(value))]
        try:
            rate = measure_training([*flags, *chosen], options.warmup, options.seconds).rate
        except BeastError:
            rate = 0.0
        if "threads" in names:
            values = {**placement_of(resolve_flags([*flags, *chosen], os.environ).config).threads, **values}
        described = "  ".join(f"{path} {value}" for path, value in values.items())
        write(f"{rate:9.0f}  {described}")
        return Trial(values, rate)

    best = climb(_start(loaded.config, names), names, given, measure)
    if not best.rate:
        raise ConfigError("no combination could be trained; `beast train` with the same flags shows why")
    write_atomically(options.out, yaml.safe_dump(nest(best.values), sort_keys=False), durable=True)
    write(f"fastest: {best.rate:.0f} agent steps a second; beast train --config {options.out}")
    return 0


def climb(start: Values, names: list[str], given: set[str], measure: Measure) -> Trial:
    """The best of what was tried: a change counts only if it is clearly faster.

    Args:
      start: a value for every setting of the dimensions.
      names: names of the dimensions, in the order in which they are varied.
      given: settings that stay as they are.
      measure: tries one combination.
    """
    best, tried = measure(start), [start]
    for name in names:
        improved = True
        while improved:
            improved = False
            for values in DIMENSIONS[name].candidates(best.values):
                if values in tried or any(values[path] != start[path] for path in given & start.keys()):
                    continue
                tried.append(values)
                trial = measure(values)
                if trial.rate > CLEAR_FACTOR * best.rate:
                    best, improved = trial, True
                    break
    return best


def _start(config: RunConfig, names: list[str]) -> Values:
    """The values that `beast train` would use with these settings."""
    placement = placement_of(config)
    shared_out = {**placement.threads, "local.placement": placement.name}
    paths = [path for name in names for path in DIMENSIONS[name].paths]
    return {path: shared_out.get(path, value_at(config, path)) for path in paths}


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DIMENSIONS:
            raise ConfigError(
                f"--only {name!r}: expected some of {', '.join(DIMENSIONS)}, with commas between them",
                path="only",
                value=name,
            )
    return names
