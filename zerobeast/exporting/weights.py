"""An exported policy as files: what is written into a folder, and read from it as the outline of a checkpoint.

    model.safetensors    the parameters, by name
    config.json          settings, description of the environment, agent steps, unit of values; JSON without infinite
                         numbers

Such a folder may come from an untrusted source. It is data: its settings are treated as those of any file
(`common.config.trust`), and nothing is made that is larger than the file of the weights.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerobeast.common.config.settings_table import RUN, TREE, nest, table_of, topic_of, value_at
from zerobeast.common.errors import CheckpointError, raise_as
from zerobeast.common.files import run_files
from zerobeast.common.files.regular_files import read_small_text
from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.facts import About, facts_of, guard_of
from zerobeast.common.settings.guards import CODE, ENVIRONMENT
from zerobeast.common.settings.section import LIMIT
from zerobeast.common.text import without_folders

if TYPE_CHECKING:
    from zerobeast.playing.policy import Policy

WEIGHTS, CONFIG, GRAPH, CARD = "model.safetensors", "config.json", "model.onnx", "README.md"
FORMAT = 2
MAX_CONFIG_BYTES = 4 << 20
_BOUNDS = ("low", "high")  #: of a space: lists of numbers, perhaps infinite ones


def is_export(place: Path) -> bool:
    """Whether this is a folder with exported weights, or a part of one, and not that of a run."""
    return (place / WEIGHTS).is_file() or ((place / CONFIG).is_file() and not run_files.is_run(place))


def public_value(config: RunConfig, path: str) -> Any:
    """The value of a setting without folders of this machine: of files and modules of its user, names alone."""
    value = value_at(config, path)
    if path == "env.opponent":
        return Path(value).name
    names_code = guard_of(TREE[path]) in (CODE, ENVIRONMENT)
    return without_folders(value) if names_code else _map_tree(_name, value)


def is_of_its_machine(path: str) -> bool:
    """Whether a setting does not describe a policy, but the machine that trained it."""
    is_own = path in RUN and topic_of(path) in (About.PEERS, About.CAPACITY, About.MACHINE)
    return is_own or facts_of(TREE[path]).of_host


def _name(value: Any) -> Any:
    """An absolute path's last part; text is one if its first folder is there, and not the name of something else."""
    path = value.removeprefix("file://") if isinstance(value, str) else ""
    _, *parts = Path(path).parts if os.path.isabs(path) else ("", "")
    return parts[-1] if parts[1:] and os.path.isdir(f"/{parts[0]}") else value


def describe_policy(policy: Policy, **more: Any) -> str:
    """The text of config.json; `more` is for whoever reads it."""
    config, table = policy.config, table_of(policy.config).items()
    # those of the machine that trained it at their defaults
    own = {path: field.default if is_of_its_machine(path) else public_value(config, path) for path, field in table}
    tree = {
        "format": FORMAT,
        "agent_steps": policy.agent_steps,
        "unit": policy.unit,
        "env": _map_tree(_encode_infinity, policy.env.to_wire() | {"env_id": without_folders(policy.env.env_id)}),
        "settings": nest(own),
        **more,
    }
    return json.dumps(tree, indent=2, allow_nan=False, default=str) + "\n"


def write_weights(path: Path, policy: Policy) -> None:
    """Write the parameters of a policy.

    Raises:
      OSError: the file cannot be written.
    """
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in policy.state_dict().items()}
    path.write_bytes(save(tensors, {"format": "pt"}))  # `save_file` hides the file from other users


def read_export(folder: Path) -> dict[str, Any]:
    """What a checkpoint of the exported policy would hold, as far as acting needs it.

    Raises:
      CheckpointError: a file is missing, damaged or foreign.
    """
    about = _config(folder / CONFIG)
    model = _tensors(folder / WEIGHTS)
    net = about["settings"].setdefault("net", {})
    if not isinstance(net, dict):
        raise CheckpointError(f"{folder / CONFIG}: settings.net is {net!r:.40}, expected a section of settings")
    net["max_parameters"] = max(1, sum(value.numel() for value in model.values()))  # what they do not fill is not built
    return {
        "config": about["settings"],
        "env": about["env"],
        "counters": {"agent_steps": about["agent_steps"]},
        "unit": about.get("unit"),
        "model": model,
    }


def _config(path: Path) -> dict[str, Any]:
    with raise_as(CheckpointError, f"{path}: cannot be read", OSError, ValueError, RecursionError):
        tree = json.loads(read_small_text(path, MAX_CONFIG_BYTES))
        if isinstance(tree, dict) and "env" in tree:
            tree["env"] = _decode_infinity(tree["env"])
    return _check_config(path, tree)


def _check_config(path: Path, tree: Any) -> dict[str, Any]:
    """The content of config.json, if it is one; the users of its entries judge them."""
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not an export of this program: expected an object with format {FORMAT}")
    for name in ("env", "settings"):
        if not isinstance(tree.get(name), dict):
            raise CheckpointError(f"{path}: {name} is {tree.get(name)!r:.40}, expected an object")
    if type(steps := tree.get("agent_steps")) is not int or not 0 <= steps <= LIMIT:
        raise CheckpointError(f"{path}: agent_steps is {steps!r:.40}, expected a whole number, 0 to {LIMIT:,}")
    return tree


def _tensors(path: Path) -> dict[str, Any]:
    """The tensors in a file; its header has their sizes, and is compared with the file before any is made."""
    from safetensors import SafetensorError, safe_open

    damage = (OSError, SafetensorError, ValueError, TypeError, AttributeError, RuntimeError)
    with raise_as(CheckpointError, f"{path}: cannot be read", *damage), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it has no other iterator


def _map_tree(change: Callable[[Any], Any], entries: Any) -> Any:
    """A tree of dicts and lists with other leaves and names."""
    if isinstance(entries, dict):
        return {change(name): _map_tree(change, entry) for name, entry in entries.items()}
    return [_map_tree(change, entry) for entry in entries] if isinstance(entries, list) else change(entries)


def _encode_infinity(number: Any) -> Any:
    """An infinite number as text, since JSON has none."""
    return str(number) if isinstance(number, float) and not math.isfinite(number) else number


def _decode_infinity(entries: Any, name: str = "") -> Any:
    """The inverse, for bounds alone: any other text is what it is."""
    if isinstance(entries, dict):
        return {key: _decode_infinity(entry, key) for key, entry in entries.items()}
    if isinstance(entries, list):
        return [_decode_infinity(entry, name) for entry in entries]
    return float(entries) if name in _BOUNDS and entries in ("inf", "-inf") else entries
