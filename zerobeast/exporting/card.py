"""The model card of an exported policy: README.md as the Hugging Face hub reads it."""

import json
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.load import gather
from zerobeast.common.config.table import SHORT, table_of, value_at
from zerobeast.common.config.trust import flags_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.files.evaluations import Row
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, Space
from zerobeast.exporting.weights import CONFIG, GRAPH, OF_ITS_MACHINE, WEIGHTS

LEADING = ("env.id", "algo", "preset", "total_steps", "seed")  #: settings that a command begins with
VERSIONS = ("zerobeast", "python", "torch", "gymnasium")  #: that a card shows; config.json has more
FILES = {
    WEIGHTS: "the parameters, by name",
    GRAPH: "the acting step for ONNX runtimes",
    CONFIG: "settings, description of the environment, versions, evaluations",
    "replay.mp4": "episodes",
    "replay.gif": "episodes",
}


@dataclass(frozen=True)
class Card:
    """What a card tells.

    Attributes:
      config: settings of the run.
      env: as policies see it.
      agent_steps: after how many the policy was saved.
      rows: its evaluations, one for each environment; perhaps none.
      versions: of packages, by name.
      files: names of those in the folder.
      ends: inputs and outputs of the graph, by name with type and shape; empty if there is none.
    """

    config: RunConfig
    env: EnvSpec
    agent_steps: int
    rows: Sequence[Row]
    versions: Mapping[str, str]
    files: Sequence[str]
    ends: Sequence[Mapping[str, str]] = ()

    def text(self) -> str:
        """The whole file."""
        front = yaml.safe_dump(self.front_matter(), sort_keys=False, allow_unicode=True)
        return "\n\n".join([f"---\n{front}---", *self._about(), *self._use(), *self._graph(), *self._training()]) + "\n"

    def front_matter(self) -> dict[str, Any]:
        """What the hub's search and leaderboards read."""
        algo = self.config.section
        tags = [*self.config.env.tasks, algo, "deep-reinforcement-learning", "reinforcement-learning", "zerobeast"]
        front: dict[str, Any] = {"library_name": "zerobeast", "pipeline_tag": "reinforcement-learning", "tags": tags}
        if self.rows:
            front["model-index"] = [{"name": algo, "results": list(map(_result, self.rows))}]
        return front

    def _about(self) -> Iterator[str]:
        config = self.config
        yield f"# {config.section} on {config.env.id}"
        yield (
            f"A policy that the algorithm `{config.section}` of ZeroBeast has learned in `{config.env.id}`, after "
            f"{self.agent_steps:,} agent steps ({self.agent_steps * self.env.frame_skip:,} env frames)."
        )
        if self.rows:
            heads = ("environment", "mean_reward", "episodes", "actions", "mean length", "policy after agent steps")
            yield _table(heads, map(_evaluation, self.rows))
        yield _table(("file", "contents"), ((f"`{name}`", FILES[name]) for name in FILES if name in self.files))

    def _use(self) -> Iterator[str]:
        if WEIGHTS in self.files:
            yield "## Use"
            yield (
                "```python\nimport zerobeast as zb\n\npolicy = zb.load('path/of/this/folder')\n"
                "action, state = policy.predict(obs, state, episode_start)\n```"
            )
            own = " ".join(map(shlex.quote, flags_of(self.config)))
            code = f", with code that only its user may name: `{own}`" if own else ""
            yield f"`beast evaluate path/of/this/folder --episodes 10` plays whole episodes{code}."

    def _graph(self) -> Iterator[str]:
        if not self.ends:
            return
        inputs, outputs = self.ends
        yield f"## {GRAPH}"
        yield " ".join(
            [
                "One step of B environments. `action` is the likeliest or best one, within its bounds; choices count "
                "from 0.",
                *self._conventions(inputs, outputs),
            ]
        )
        named = (("input", inputs), ("output", outputs))
        yield _table(
            ("", "name", "type and shape"), ((e, f"`{n}`", kind) for e, each in named for n, kind in each.items())
        )

    def _conventions(self, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Iterator[str]:
        """A sentence about each end that needs one."""
        if (k := self.env.frame_stack) > 1:
            yield f"`obs` is a stack of the newest {k} frames, the oldest first; an episode begins with {k} equal ones."
        if "last_reward" in inputs:
            clipped = any(name.startswith("next_last_action") for name in outputs)
            chosen = " (its `next_last_action`, where there is one)" if clipped else ""
            yield f"`last_action`{chosen} and `last_reward`, unclipped, are those of the step before."
        if "state" in inputs:
            yield "`state` is zeros, then the `next_state` of the step before."
        if "first" in inputs:
            yield "`first` is true where an episode begins: what came before is ignored there."
        kinds = {name.partition(".")[0] for name in outputs}
        for mean, unit in (("mean", "u"), ("pre_tanh_mean", "tanh(u)")):
            if mean in kinds:
                yield (
                    f"In training, an action is the middle of its bounds plus {unit} times half their distance, u "
                    f"drawn from the normal distribution of `{mean}` and exp(`{mean.replace('mean', 'log_std')}`)."
                )

    def _training(self) -> Iterator[str]:
        env = self.env
        frames = f"the newest {env.frame_stack}, " if env.frame_stack > 1 else ""
        facts = {"observation": frames + _in_words(env.obs), "action": _in_words(env.action)}
        facts |= {name: self.versions[name] for name in VERSIONS if name in self.versions}
        yield "## Environment and versions"
        yield _table(("", ""), facts.items())
        yield "## Train it again"
        yield f"```\n{command(self.config)}\n```"


def command(config: RunConfig) -> str:
    """The command line of a run: what differs from its preset and the defaults, but for its name and its machine."""
    table = table_of(config)
    leading = [_flag(path, value) for path in LEADING if (value := value_at(config, path)) != ""]
    before = {path: field.default for path, field in table.items()}
    with suppress(ConfigError):  # a preset or an algorithm that is not installed here
        base = gather([word for flag in leading for word in flag], {}, read_only=True).config
        before = {path: value_at(base, path) for path in table}
    paths = [path for path in table if path not in (*LEADING, *OF_ITS_MACHINE, "name")]
    more = [_flag(path, value) for path in paths if (value := value_at(config, path)) != before[path]]
    return shlex.join(["beast", "train", *(word for flag in (*leading, *more) for word in flag)])


def mean_reward(row: Row) -> str:
    """The metric, such as 498.20 +/- 5.40: mean and standard deviation of the returns."""
    return f"{statistics.fmean(row['returns']):.2f} +/- {statistics.pstdev(row['returns']):.2f}"


def _result(row: Row) -> dict[str, Any]:
    metric = {"type": "mean_reward", "value": mean_reward(row), "name": "mean_reward", "verified": False}
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": row["env"], "type": row["env"]},
        "metrics": [metric],
    }


def _evaluation(row: Row) -> tuple[Any, ...]:
    length, steps = f"{statistics.fmean(row['lengths']):.0f}", f"{row['agent_steps']:,}"
    return row["env"], mean_reward(row), len(row["returns"]), row["actions"], length, steps


def _flag(path: str, value: Any) -> tuple[str, str]:
    name = next((short for short, long in SHORT.items() if long == path), path)
    return f"--{name}", json.dumps(value) if isinstance(value, dict) else as_text(value)


def _table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def _in_words(space: Space) -> str:
    if not isinstance(space, ArraySpace):
        return f"{space.kind} of {', '.join(f'{part.name}: {_in_words(part.space)}' for part in space.spaces)}"
    shape = "x".join(map(str, space.shape))
    sizes = f" of {', '.join(map(str, space.sizes))} choices" if space.sizes else ""
    return " ".join(filter(None, (space.kind, shape, np.dtype(space.dtype).name))) + sizes
