"""The model card of an exported policy: README.md as the Hugging Face hub reads it."""

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from zerobeast.common.config.load import resolve_flags
from zerobeast.common.config.settings_table import NAMES, table_of, topic_of, value_at
from zerobeast.common.config.trust import flag_of, settings_to_confirm
from zerobeast.common.files import evaluations
from zerobeast.common.files.evaluations import Row
from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.facts import About
from zerobeast.common.text import split_ids
from zerobeast.common.wire import ArraySpace, Space
from zerobeast.exporting.weights import GRAPH, is_of_its_machine, public_value

if TYPE_CHECKING:
    from zerobeast.playing.policy import Policy

LEADING_SETTINGS = (*NAMES, "total_steps")  #: settings that a command begins with, and on which others depend
USE_SECTION = """\
## Use

```python
import zerobeast as zb

policy = zb.load('path/of/this/folder')
state = None  # then what `predict` has returned for the step before
action, state = policy.predict(obs, state, episode_start)
```

`obs` is an observation of the environment, or a batch; `episode_start`, which a loop over one episode can leave out, is
whether it is the first of an episode. `predict` takes {actions} actions, as in the score above, if there is one.
`beast evaluate path/of/this/folder --episodes 10` plays whole episodes with them"""
SCORE = "`mean_reward` is the mean over so many episodes +/- their standard deviation."
CHOSEN_NOTE = (
    " It is of the evaluation that chose this policy as the best of {}: optimistic, as the highest of several."
)
STEP = f"""\
## {GRAPH}

One step of B environments. `action` is the greedy one: the likeliest or best, within its bounds. Other actions can be
drawn from `logits`, unnormalised log-probabilities of the choices of each component in turn, or from normal
distributions with `mean` and `stddev`, and then clipped to their bounds (with `net.squash_actions`, and of SAC: they go
through a tanh, whose -1 and 1 stand for the bounds). `action_values` are expected returns. Inputs that are not listed
are not needed. A stack of frames begins with the oldest; an episode begins with equal ones. `first` is true where an
episode begins: what came before is ignored there. `state` is zeros, then the `next_state` of the step before.
`last_action` is the `action` of the step before, or its `next_last_action` if there is such an output; `last_reward` is
the reward that followed, unclipped."""


def format_card(
    policy: "Policy",
    rows: Sequence[Row],
    versions: Mapping[str, str],
    ends: Mapping[str, Mapping[str, str]],
    *,
    with_weights: bool,
) -> str:
    """The whole text.

    Args:
      policy: the policy.
      rows: its evaluations, one for each environment; perhaps none. If these have chosen it as the best, `best_of` is
        among how many policies.
      versions: of packages, by name.
      ends: `inputs` and `outputs` of the graph, each by name with type and shape; empty if there is none.
      with_weights: whether they are in the folder.
    """
    config, env, env_id = policy.config, policy.env, public_value(policy.config, "env.id")
    parts = [
        f"---\n{yaml.safe_dump(_front_matter(config, rows), sort_keys=False, allow_unicode=True)}---",
        f"# {config.section} on {env_id}",
        f"A policy that the algorithm `{config.section}` of ZeroBeast has learned in `{env_id}`, after "
        f"{policy.agent_steps:,} agent steps ({policy.agent_steps * env.frame_skip:,} env frames).",
        *filter(None, [evaluations.best_in_training(policy.checkpoint, policy.agent_steps)]),
    ]
    if rows:
        played = [(row["env"], mean_reward(row), len(row["returns"]), row["actions"]) for row in rows]
        among = rows[0].get("best_of", 0)
        parts.append(_table(("environment", "mean_reward", "episodes", "actions"), played))
        parts.append(SCORE + CHOSEN_NOTE.format(among) * (among > 1))
    if with_weights:
        own = shlex.join(_flags(config, settings_to_confirm(config)))
        use = USE_SECTION.format(actions=config.evaluate.actions)
        parts.append(use + (f", with code that only its user may name: `{own}`." if own else "."))
    if ends:
        named = [(end[:-1], f"`{name}`", kind) for end, each in ends.items() for name, kind in each.items()]
        parts += [STEP, _table(("", "name", "type and shape"), named)]
    stack = f"the newest {env.frame_stack} frames, each " if env.frame_stack > 1 else ""
    facts = {"observation": stack + _in_words(env.obs), "action": _in_words(env.action), **versions}
    parts += ["## Environment and versions", _table(("", ""), facts.items()), "## Train it again"]
    if config.parent.run:
        before = f"{config.parent.agent_steps:,} agent steps"
        parts.append(f"It began with the weights of another run after {before}; this command begins with random ones.")
    return "\n\n".join([*parts, f"```\n{train_command(config)}\n```"]) + "\n"


def _front_matter(config: RunConfig, rows: Sequence[Row]) -> dict[str, Any]:
    """What the hub's search and leaderboards read."""
    kind, algo = "reinforcement-learning", config.section
    tags = [*split_ids(public_value(config, "env.id")), algo, "deep-reinforcement-learning", kind, "zerobeast"]
    front: dict[str, Any] = {"library_name": "zerobeast", "pipeline_tag": kind, "tags": tags}
    if rows:
        front["model-index"] = [{"name": algo, "results": [_result(row, kind) for row in rows]}]
    return front


def _result(row: Row, kind: str) -> dict[str, Any]:
    reward = {"type": "mean_reward", "value": mean_reward(row), "name": "mean_reward", "verified": False}
    task, dataset = {"type": kind, "name": kind}, {"name": row["env"], "type": row["env"]}
    return {"task": task, "dataset": dataset, "metrics": [reward]}


def train_command(config: RunConfig) -> str:
    """The command line of a run: what differs from its preset, but for its name, its machine and its parent."""
    leading = [path for path in LEADING_SETTINGS if value_at(config, path) != ""]
    flags = [word for path in leading for word in flag_of(path, value_at(config, path))]
    base = resolve_flags(flags, {}, read_only=True).config
    known = table_of(base)  # without the settings of parts that flags choose
    usual = {path: value_at(base, path) if path in known else one.default for path, one in table_of(config).items()}
    changed = [path for path in usual if value_at(config, path) != usual[path]]
    own = [path for path in changed if path not in LEADING_SETTINGS and not is_of_its_machine(path)]
    paths = [path for path in own if topic_of(path) is not About.IDENTITY or path == "seed"]
    return shlex.join(["beast", "train", *_flags(config, [*leading, *paths])])


def _flags(config: RunConfig, paths: Iterable[str]) -> list[str]:
    return [word for path in paths for word in flag_of(path, public_value(config, path))]


def mean_reward(row: Row) -> str:
    """The metric, such as 498.20 +/- 5.40: mean and standard deviation of the returns."""
    return f"{statistics.fmean(row['returns']):.2f} +/- {statistics.pstdev(row['returns']):.2f}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def _in_words(space: Space) -> str:
    if not isinstance(space, ArraySpace):
        return f"{space.kind} of {', '.join(f'{part.name}: {_in_words(part.space)}' for part in space.spaces)}"
    shape = "x".join(map(str, space.shape))
    sizes = f" of {', '.join(map(str, space.sizes))} choices" if space.sizes else ""
    return " ".join(filter(None, (space.kind, shape, np.dtype(space.dtype).name))) + sizes
