"""The runs of a sweep, checked before any of them starts."""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from zerobeast.api.parent import parent_of
from zerobeast.common.config import trust
from zerobeast.common.config.confirmations import digest_values, remember
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.layers import GivenValue, flatten_tree, merge_layers, select_file_values
from zerobeast.common.config.request import Request
from zerobeast.common.config.settings_table import NAMES, table_of, value_at
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.common.text import as_text
from zerobeast.plan.parent import Parent
from zerobeast.plan.resolution import RunFlags, find_section, resolve_locally
from zerobeast.sweeping.search import Values
from zerobeast.sweeping.spec import Sweep, without_kind

MAX_NAME, DIGEST = 100, 4  #: characters, bytes
MAX_MISTAKES = 20
OWN_SETTINGS = {"name": "every run gets its own", "root": "it is the sweep's folder"}


class Trial(NamedTuple):
    """One run of a sweep."""

    name: str
    values: Values  #: of its settings, but for name and root
    parent: Parent | None = None  #: whose weights it begins with

    @property
    def flags(self) -> tuple[str, ...]:
        """Its values as flags of `beast train`."""
        return tuple(flags_for(self.values))


def trials_of(sweep: Sweep, confirmed: Sequence[GivenValue]) -> list[Trial]:
    """Every run, in the order in which they start.

    Args:
      sweep: to check.
      confirmed: flags that give what the file may not decide alone (`trust`).

    Raises:
      ConfigError: a line for every mistake, which names the entry of the file.
    """
    named = Request.of_values({"from_run": sweep.parent or None, "root": sweep.own.root}, own=RunFlags)
    parent, mistakes = parent_of(named), list[BeastError]()
    settings = [one.path for one in flatten_tree(sweep.settings, "", [])]
    # with these values, a sweep that goes on is refused once the parent has other weights
    begun = {f"parent.{path}": value for path, value in parent.entry.model_dump().items()} if parent else {}
    below = {one.path: one.value for one in flatten_tree(parent.tree, "", [])} if parent else {}
    found, known = list[Trial](), dict[str, Values]()
    for label, values in sweep.combinations():
        try:
            _refuse_alone(sweep, values, confirmed)
            config = _config(sweep, values, parent)
            name = _name(label, {path: values[path] for path in values if not label or path == "seed"}, config)
            for key, what in ((config.model_dump_json(), "give the same run"), (name, f"are both called {name}")):
                if (other := known.setdefault(key, values)) is not values:
                    sentence = (
                        f"vary: {_format_values(other)} and {_format_values(values)} {what}; expected runs that differ"
                    )
                    raise ConfigError(sentence, path="vary")
        except ConfigError as error:
            mistakes += (_prefix_file(sweep.file, each) for each in error.mistakes)
            if len({str(each) for each in mistakes}) > MAX_MISTAKES:
                break
        else:
            paths = [path for path in (*settings, *values) if _has(config, path)]
            own = {path: _mask_lower(below.get(path), value_at(config, path)) for path in paths}
            found.append(Trial(name, {**own, **begun}, parent))
    if mistakes:
        raise ConfigError.of(mistakes)
    remember(sweep.file, {one.path: one.value for one in confirmed})
    return found


def _prefix_file(file: Path, mistake: BeastError) -> BeastError:
    """The same mistake, in a sentence that begins with the file."""
    place, sentence = f"{file}: ", str(mistake)
    return mistake if sentence.startswith(place) else ConfigError(f"{place}{sentence}").about(mistake)


def _mask_lower(lower: Any, value: Any) -> Any:
    """What gives a setting this value above that of the parent, of whose mapping entries may be left out."""
    return {**dict.fromkeys(lower), **value} if isinstance(lower, dict) and isinstance(value, dict) else value


def _has(config: RunConfig, path: str) -> bool:
    """Whether a setting is one of the run, of its parts or of its own algorithm."""
    return path in table_of(config)


def _config(sweep: Sweep, values: Values, parent: Parent | None) -> RunConfig:
    """The settings of a run. Raises ConfigError for every mistake."""
    trees: dict[str, Mapping[str, Any]] = {f"{sweep.file}: settings": sweep.settings, f"{sweep.file}: vary": values}
    algo = str(values.get("algo", sweep.settings.get("algo", "")))
    request = Request.of_values({"algo": algo} if ":" in algo else {})  # only then are its settings known
    if parent:
        trees = {f"file {parent.file}": parent.settings(find_section(algo)), **trees}
    config = resolve_locally(request.with_trees(trees)).config
    if config.local.placement == "serve":
        raise ConfigError(path="local.placement", value="serve", expected="a placement with environments")
    return config


def _refuse_alone(sweep: Sweep, values: Values, confirmed: Sequence[GivenValue]) -> None:
    """Refuse what a file may not decide alone, and what is not the file's to set."""
    parts = ("settings", sweep.settings), ("vary", values)  # unknown ones are refused later
    every = [one for part, tree in parts for one in flatten_tree(tree, f"file {sweep.file}: {part}", [])]
    given = merge_layers(every)
    mistakes = [
        ConfigError(f"{given[path].where}: {why}", path=path, value=given[path].value, layer=given[path].where)
        for path, why in OWN_SETTINGS.items()
        if path in given
    ]
    known = {digest for one in confirmed for digest in digest_values(one.path, one.value)}
    mistakes += trust.refusals(select_file_values(every), given, known).values()
    if mistakes:
        raise ConfigError.of(map(without_kind, mistakes))


def _name(label: str, varied: Values, config: RunConfig) -> str:
    """A name that shows what varies: ppo-learning_rate-0.0003-seed-1."""
    leaves = [path.rpartition(".")[2] for path in varied]
    parts = [label]
    for (path, entry), leaf in zip(varied.items(), leaves, strict=True):
        if _has(config, path):
            parts += ["" if path in NAMES else leaf if leaves.count(leaf) == 1 else path]
            parts += [_text(entry if isinstance(entry, dict) else value_at(config, path))]
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", "-".join(filter(None, parts))) or "run"
    digest = blake2b(name.encode(), digest_size=DIGEST).hexdigest()
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - len(digest) - 1]}-{digest}"


def _text(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, dict) else as_text(value) or "none"
    text = re.sub(r"^-(?=[\d.])", "minus", text)
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")


def _format_values(values: Mapping[str, Any]) -> str:
    return "(" + ", ".join(f"{path} {value}" for path, value in values.items()) + ")"
