"""What an environment looks like, as described by a process that makes it once: nothing here may import simulators."""

import functools
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from zerobeast.common.config.describe import as_yaml
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.layers import Given
from zerobeast.common.config.load import check
from zerobeast.common.config.preset import family_of
from zerobeast.common.config.table import LEVELS, RUN, nested, value_at
from zerobeast.common.config.trust import confirmation
from zerobeast.common.errors import ConfigError
from zerobeast.common.plugins import calling
from zerobeast.common.settings import NO_RUN, EnvConfig, EnvServerConfig, RunConfig
from zerobeast.common.text import split_ids
from zerobeast.common.wire import EnvSpec
from zerobeast.common.wire.records import oversize
from zerobeast.launcher.fleet import child_environ, service_command
from zerobeast.rl.fit import refuse_unfit

LIMIT_S, LONGEST_S = EnvServerConfig().step_timeout_s, 1e6
#: settings that a spec depends on or must be the same in, and how long making it may take
SHAPING = (
    *(path for path in RUN if path.startswith("env.") and path not in ("env.opponent", "env.opponents", "env.sizes")),
    LEVELS,
    LIMIT := "envserver.step_timeout_s",
)


def spec_of(given: Mapping[str, Given]) -> EnvSpec:
    """The observations and actions of the environment that settings name; all of several are made, and padded.

    Args:
      given: path -> value and layer, at least for `env.id`; unchecked.

    Raises:
      ConfigError: it cannot or must not be made.
    """
    return _described(given)[0]


def padded(config: RunConfig) -> RunConfig:
    """The same settings, with the sizes that its environments are padded to, if some are smaller than others, and the
    number of their agents; groups are enlarged until they consist of whole environments.

    Raises:
      ConfigError: as `spec_of`, or a group of a deterministic run is no multiple of the agents of an environment.
    """
    tasks = config.env.tasks
    if config.local.placement == "serve" or (len(tasks) == 1 and family_of(tasks[0])):
        config.env.opposed(config.actor.envs_per_group)
        return config
    _, settings = _described(_shaping(config))
    found = {name: size for name, size in settings.items() if size and (name, size) != ("agents", 1)}
    agents, envs = settings["agents"], config.actor.envs_per_group
    if config.deterministic and envs % agents:
        raise ConfigError(
            f"actor.envs_per_group {envs}: expected a multiple of {agents}, the agents of each environment, because "
            f"with deterministic other settings depend on it"
        )
    env = EnvConfig(**{**config.env.model_dump(), **found})
    envs = -(-envs // agents) * agents
    env.opposed(envs)
    if envs > config.broker.max_batch_rows:
        raise ConfigError(
            f"broker.max_batch_rows {config.broker.max_batch_rows}: expected at least {envs}, because "
            f"actor.envs_per_group is enlarged to a multiple of {agents}, the agents of each environment"
        )
    return config.model_copy(update={"env": env, "actor": config.actor.model_copy(update={"envs_per_group": envs})})


def check_opponent(config: RunConfig, spec: EnvSpec | None) -> None:
    """Check that the opponent of a run, if it has one, is there, and was trained in an environment like its own.

    Raises:
      ConfigError: it is not.
    """
    if spec is None or (name := config.env.opponent) in NO_RUN:
        return
    command, env = service_command("broker", "opponent", name, config.root), child_environ(os.environ)
    theirs = json.dumps(spec.for_policies().among(config.env.id).to_wire())
    done = subprocess.run(command, check=False, env=env, input=theirs, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"env.opponent {name}: exit code {done.returncode}"]
        raise ConfigError(lines[-1])


def _shaping(config: RunConfig) -> dict[str, Given]:
    return {path: Given(path, value_at(config, path), "") for path in SHAPING}


def _described(given: Mapping[str, Given]) -> tuple[EnvSpec, Mapping[str, Any]]:
    """The spec, and settings of `env` with which all environments have it."""
    return _ask(*_question(given))


def answer_about(config: RunConfig, command: tuple[str, ...]) -> Any:
    """What a command of the env-server prints about the environments of a run. Raises ConfigError as `spec_of`."""
    return _output(command, *_question(_shaping(config)))


def _question(given: Mapping[str, Given]) -> tuple[str, str, float]:
    """The ids, the settings that matter, and how long making the environments may take."""
    if "local.placement" in given and given["local.placement"].value == "serve":
        raise ConfigError("preset: expected a name, because with local.placement serve nothing here makes environments")
    mistakes: list[str] = []
    good, _ = check([given[path] for path in SHAPING if path in given], mistakes)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    values = {path: one.value for path, one in good.items()}
    tasks, levels = (sum(map(bool, split_ids(values.get(path, "")))) for path in ("env.id", LEVELS))
    limit_s = max(LIMIT_S, values.get(LIMIT, 0.0)) * tasks * (1 + levels)  # each may have each level; made one by one
    changed = {path: value for path, value in values.items() if value != RUN[path].default}
    return values["env.id"], json.dumps(changed), min(LONGEST_S, limit_s)


def spec_for(config: RunConfig) -> EnvSpec | None:
    """As `spec_of`, with the settings of a whole run, which has to fit; None if nothing here makes its environments."""
    if config.local.placement == "serve":
        return None
    spec = spec_of(_shaping(config))
    with calling(f"algo {config.section}: takes or flaw"):
        refuse_unfit(config, spec)
    if sentence := oversize(spec, None, config.learner.unroll_length, config.actor.envs_per_group):
        raise ConfigError(sentence)
    return spec


@functools.cache
def _ask(env_id: str, settings: str, limit_s: float) -> tuple[EnvSpec, Mapping[str, Any]]:
    found = _output(("describe",), env_id, settings, limit_s)
    return EnvSpec.from_wire(found), found["settings"]


def _output(about: tuple[str, ...], env_id: str, settings: str, limit_s: float) -> Any:
    values, command = json.loads(settings), service_command("envserver", *about)
    with (  # which no other user can read
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as complaint,
        tempfile.NamedTemporaryFile("w", suffix=".yaml") as given,
    ):
        given.write(as_yaml(nested(values)))
        given.flush()
        try:
            code = subprocess.run(
                [*command, "--config", given.name, *confirmation(values)],
                check=False,
                env=child_environ(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=answer,  # files: a pipe would stay open as long as any process that the environment started
                stderr=complaint,
                timeout=limit_s,
            ).returncode
        except subprocess.TimeoutExpired as error:
            what = "checked" if "check" in about else "made"
            why = f"was not {what} within {limit_s:g} s (envserver.step_timeout_s for each environment)"
            raise ConfigError(f"env.id {env_id!r} {why}") from error
        answer.seek(0)
        complaint.seek(0)
        if code == 0:
            return json.load(answer)
        lines = complaint.read().decode(errors="replace").strip().splitlines()
    sentence = lines[-1].removeprefix("envserver: ") if lines and code > 0 else f"env.id {env_id!r}: exit code {code}"
    more = f"; to see where: {shlex.join([*command, *flags_for(values)])}" if len(lines) > 1 else ""
    raise ConfigError(f"{sentence}{more}")
