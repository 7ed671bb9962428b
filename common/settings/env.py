"""The environments of a run, and what is asked of them, beside what their backends declare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, JsonValue, field_validator

from zerobeast.common import plugins
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.arguments import validate_arguments
from zerobeast.common.settings.facts import facts_of
from zerobeast.common.settings.guards import ARGUMENTS, BACKENDS, ENVIRONMENT, NO_GUARD, TEXT, is_plain
from zerobeast.common.settings.section import OpenSection, setting, whole_numbers
from zerobeast.common.text import split_ids
from zerobeast.common.wire.description import MAX_SIZES
from zerobeast.common.wire.spaces import MAX_CHOICES

PADDING = ("pad_obs", "pad_actions")  #: settings that make environments of unequal sizes equal
MAX_AGENTS = 1024  #: of an environment
LATEST_OPPONENT, PAST_OPPONENT = "latest", "past"  #: values of `env.opponent`
PROGRESS = "{progress}"  #: a value in `env.options`
MAX_KWARGS, MAX_OPTIONS = 48 << 10, 4 << 10  #: bytes, of the 64 KiB that a message to an env-server may have
MAX_ID_LENGTH = 10_000  #: a mix of 200 environments, or a long path; checked before anything reads the list
NO_RUN = ("", LATEST_OPPONENT, PAST_OPPONENT)  #: those that name no run


def _entries(value: Any) -> tuple[str, ...]:
    text = type(value) in (str, int)
    parts = [part.strip(" \"'") for part in str(value).strip("[] ").split(",")] if text else value
    if parts == [""]:
        return ()
    if isinstance(parts, list | tuple) and all(type(part) in (str, int) and part != "" for part in parts):
        return tuple(map(str, parts))
    raise ValueError(
        "expected names of Dict entries such as mission or mission,camera.text, or indices of Tuple entries"
    )


def fill_progress(options: Any, progress: float) -> Any:
    """Options with the share of the run that is trained, from 0 to 1, in place of `PROGRESS`, however deep."""
    if isinstance(options, dict):
        return {name: fill_progress(value, progress) for name, value in options.items()}
    if isinstance(options, list):
        return [fill_progress(value, progress) for value in options]
    return progress if options == PROGRESS else options


SIZES = f"at most {MAX_SIZES} sizes such as 10,10,7, each from 1 to {MAX_CHOICES}"
NUMBERS = f"agent indices such as 1 or 2,3, from 0 to {MAX_AGENTS - 1}"
Shape = Annotated[tuple[int, ...], whole_numbers(MAX_SIZES, MAX_CHOICES, SIZES)]
Agents = Annotated[tuple[int, ...], whole_numbers(MAX_AGENTS, MAX_AGENTS - 1, NUMBERS, least=0)]
Entries = Annotated[tuple[str, ...], BeforeValidator(_entries)]
Whole = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]
Sizes = Annotated[tuple[Whole, ...], Field(min_length=2, max_length=2 + MAX_SIZES)]


class EnvConfig(OpenSection):
    """The environment and how it is made."""

    section, chosen_by = "env", ("id",)
    is_bound = shapes = True

    id: str = setting(
        "PongNoFrameskip-v4",
        "gymnasium id, MinAtar/<Game>, ALE/<Game>-v5, football/<scenario>, gfootball/<scenario>, envpool/<id>, "
        "pettingzoo/<family>/<game>, module:Name or file.py:Name; several, separated by commas: one policy for all; "
        "zipf(ID,ID;1): one of these ids is drawn for each episode",
        decides=ENVIRONMENT,
        max_length=MAX_ID_LENGTH,
        short="env",
        names=True,
    )
    kwargs: Annotated[dict[str, JsonValue], validate_arguments(MAX_KWARGS)] = setting(
        {}, "arguments of the environment's constructor: text, numbers, lists and mappings", decides=ARGUMENTS
    )
    action_mask: str = setting(
        "", "key of the action mask (1: legal action) in a Dict observation or in the info dict", decides=NO_GUARD
    )
    options: Annotated[dict[str, JsonValue], validate_arguments(MAX_OPTIONS)] = setting(
        {},
        f"options passed to every reset; {PROGRESS} as a value stands for the share of total_steps trained, 0 to 1",
        decides=TEXT._replace(matters=lambda options, _: not is_plain(fill_progress(options, 0.0)), always=False),
        bound=False,
    )
    progress: float | None = setting(
        None,
        f"fixed value of {PROGRESS} in env.options during training; empty: the share of total_steps trained",
        ge=0,
        le=1,
        shapes=False,
    )
    leave_out: Entries = setting(
        (),
        "entries to drop from a Dict or Tuple observation, for example mission,camera.text",
        decides=NO_GUARD,
    )
    pad_obs: Shape = setting(
        (), "zero-pad observations to this shape; empty: beast train pads if a run's environments differ in size"
    )
    pad_actions: int = setting(
        0, "pad discrete actions to this count and mask the added ones; 0: as for empty pad_obs", ge=0, le=MAX_CHOICES
    )
    sizes: dict[str, Sizes] = setting(
        {},
        "filled in by beast train for several or padded environments: action count, first action and obs shape of each",
        decides=NO_GUARD,
        shapes=False,
    )
    agents: int = setting(
        0,
        "agents per environment, which share one policy; 0: detected by beast train, 1 without it",
        ge=0,
        le=MAX_AGENTS,
    )
    agent_id: bool = setting(False, "multi-agent: add the agent's index to each observation")
    opponent: str = setting(
        "",
        "multi-agent: the policy of the other side, whose steps are not trained on: latest, past (one of this run's "
        "numbered checkpoints in each episode), RUN, RUN:<agent steps>, RUN:best or a path; empty: no other side",
        decides=NO_GUARD,  # a checkpoint is data, and its settings are judged as those of any file
        max_length=1000,
        bound=False,
        shapes=False,
    )
    opponents: Agents = setting(
        (),
        "indices of the agents on the other side, such as 1 or 2,3; empty: half the agents, alternating by environment",
        bound=False,
        shapes=False,
    )

    @classmethod
    def parts(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """The claims of the backends of these environments, of mixes and what they mix."""
        (ids,) = cls.part_names(values)
        known = ids if isinstance(ids, str) and len(ids) <= MAX_ID_LENGTH else ""
        each = dict.fromkeys([*split_ids(known), *map(str.strip, re.split("[(),;]", known))])
        return [plugins.claim_of(BACKENDS, one) for one in each if ":" not in one]

    @field_validator("id")
    @classmethod
    def _each_once(cls, value: str) -> str:
        ids = split_ids(value)
        if not all(ids):
            raise ValueError("expected an environment id such as PongNoFrameskip-v4, or several with commas")
        if len(set(ids)) < len(ids):
            raise ValueError("expected no environment twice")
        return ",".join(ids)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The ids, one or several; a task's number is its index here."""
        return tuple(split_ids(self.id))

    def for_task(self, task: str) -> EnvConfig:
        """These settings for one task alone."""
        values = {**self.model_dump(), "id": task}
        kind = EnvConfig.of(values)
        return kind.model_validate({name: value for name, value in values.items() if name in kind.model_fields})

    @property
    def padding(self) -> dict[str, Any]:
        """The settings of padding that have an effect."""
        return {name: size for name in PADDING if (size := getattr(self, name))}

    @property
    def follows_progress(self) -> bool:
        """Whether resets depend on how much of the run is trained."""
        return bool(fill_progress(self.options, 0.0) != self.options)

    def terms(self) -> dict[str, Any]:
        """The entries of a HELLO."""
        fields = type(self).model_fields.items()
        return self.model_dump(exclude={name for name, field in fields if facts_of(field).shapes is False})

    def opponent_rows(self, num_envs: int, group: int = 0) -> NDArray[np.bool_] | None:
        """Which of N rows are of the other side, [N], or None if there is none; N counts agents.

        The halves change places from environment to environment, and from group to group.

        Raises:
          ConfigError: there are no two sides, or N is not that of whole environments.
        """
        if not self.opponent:
            return None
        agents, own = self.agents, self.opponents
        if agents < 2:
            raise ConfigError(path="env.opponent", value=self.opponent, expected="an environment with several agents")
        if own and (max(own) >= agents or len(set(own)) == agents):
            raise ConfigError(
                path="env.opponents",
                value=",".join(map(str, own)),
                expected=f"some, but not all, of the agents 0 to {agents - 1}",
            )
        if num_envs % agents:
            raise ConfigError(
                f"{num_envs} rows: expected a multiple of env.agents {agents}", path="env.agents", value=agents
            )
        rows = np.arange(num_envs)
        agent, env = rows % agents, rows // agents
        return np.isin(agent, own) if own else (agent * 2 // agents + env + group) % 2 == 1
