"""What an environment looks like, and what is odd about it, as told by a process that makes it once: nothing here may
import simulators.
"""

import json
import os
import re
import secrets
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from zerobeast.common.config.describe import as_yaml
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.load import check_layer as config_check
from zerobeast.common.config.preset import family_of
from zerobeast.common.config.settings_table import LEVELS, nest, shapes_env, table_for, table_of, value_at
from zerobeast.common.config.trust import confirmation
from zerobeast.common.errors import BeastError, ConfigError, raise_as
from zerobeast.common.files import state
from zerobeast.common.process.endings import how_it_ended, oom_kills
from zerobeast.common.process.marks import MARK, end_marked
from zerobeast.common.settings import NO_RUN, PADDING, EnvConfig, EnvServerConfig, RunConfig
from zerobeast.common.text import split_ids
from zerobeast.common.wire import EnvSpec
from zerobeast.common.wire.records import explain_oversize
from zerobeast.plan.processes import child_environ, service_command
from zerobeast.rl.fit import refuse_unfit

LIMIT_S, LONGEST_S = EnvServerConfig().step_timeout_s, 1e6
TIMING_LIMIT_S = 30.0  #: that a run may start later because the cost of its environments is measured
OWN_PREFIX = "envserver: "  #: a sentence of the process that makes environments, unlike what these print, begins so
LIMIT_SETTING = "envserver.step_timeout_s"
CHECK_SETTING = "local.check"
UNCHECKED_SETTINGS = {f"env.{name}" for name in (*PADDING, "agents")}  #: settings that no finding depends on


def fetch_spec(given: Mapping[str, GivenValue]) -> EnvSpec:
    """The observations and actions of the environment that settings name; all of several are made, and padded.

    Args:
      given: path -> value and layer, at least for `env.id`; unchecked.

    Raises:
      ConfigError: it cannot or must not be made.
    """
    return EnvSpec.from_wire(_fetch_description(given))


def pad_config(config: RunConfig) -> RunConfig:
    """The same settings, with the sizes that its environments are padded to, if some are smaller than others, and the
    number of their agents; groups are enlarged until they consist of whole environments.

    Raises:
      ConfigError: as `fetch_spec`, or a group of a deterministic run is no multiple of the agents of an environment.
    """
    tasks = config.env.tasks
    if config.local.placement == "serve" or (len(tasks) == 1 and family_of(tasks[0])):
        config.env.opponent_rows(config.actor.envs_per_group)
        return config
    settings = _fetch_description(_shaping_settings(config))["settings"]
    found = {name: size for name, size in settings.items() if size and (name, size) != ("agents", 1)}
    agents, envs = settings["agents"], config.actor.envs_per_group
    if config.deterministic and envs % agents:
        raise ConfigError(
            path="actor.envs_per_group",
            value=envs,
            expected=f"a multiple of {agents}, the agents of each environment",
            cause="with deterministic, other settings depend on it",
        )
    env = EnvConfig.model_validate({**config.env.model_dump(), **found})
    envs = -(-envs // agents) * agents
    env.opponent_rows(envs)
    if envs > config.broker.max_batch_rows:
        raise ConfigError(
            path="broker.max_batch_rows",
            value=config.broker.max_batch_rows,
            expected=f"at least {envs}",
            cause=f"actor.envs_per_group is rounded up to a multiple of {agents}, the agents of each environment",
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
        raise ConfigError(lines[-1], path="env.opponent", value=name)


def fetch_run_spec(config: RunConfig) -> EnvSpec | None:
    """As `fetch_spec`, for settings of a whole run, which has to fit; None if nothing here makes its environments."""
    if config.local.placement == "serve":
        return None
    spec = fetch_spec(_shaping_settings(config))
    with raise_as(ConfigError, f"algo {config.section}: takes or flaw"):
        refuse_unfit(config, spec)
    if sentence := explain_oversize(spec, None, config.learner.unroll_length, config.actor.envs_per_group):
        raise ConfigError(sentence, path="learner.unroll_length", value=config.learner.unroll_length)
    return spec


def fetch_findings(config: RunConfig) -> list[tuple[str, str]]:
    """What is found about the environments of a run that play for some seconds: levels, each "ok", "warning" or
    "error", and sentences.

    Raises:
      ConfigError: there is no such environment, or it hangs.
    """
    return [(level, sentence) for level, sentence in ask_env_process("check", _values(_shaping_settings(config)))]


def fetch_step_s(config: RunConfig) -> float | None:
    """Seconds of CPU time for a step of one of a run's environments, measured once for each user and environment; None:
    not known.

    Raises:
      ConfigError: it cannot be played, or not soon enough.
    """
    values = _values(_shaping_settings(config))
    name = f"step-{_fingerprint(values)}"
    with suppress(ValueError, TypeError):  # there is no note, or a damaged one
        return _as_seconds(json.loads(state.recall(name) or ""))
    found = ask_env_process("time", values, TIMING_LIMIT_S)
    state.remember({name: json.dumps(found)})
    return _as_seconds(found)


def _as_seconds(found: Any) -> float | None:
    """As it was measured. Raises ValueError or TypeError if that is no number."""
    return None if found is None else max(0.0, float(found))


def check_once(config: RunConfig) -> list[str]:
    """Lines of warnings about the environments of a run, unless one of this user has begun with the same before.

    Raises:
      ConfigError: as `fetch_spec`, or no run can learn from one.
    """
    found = {} if config.local.placement == "serve" else _fetch_description(_shaping_settings(config))
    if not found.get("findings") or state.knows(found["digest"]):
        return []
    if errors := [sentence for level, sentence in found["findings"] if level == "error"]:
        raise ConfigError("; ".join(errors), path="env.id", value=config.env.id)
    state.remember({found["digest"]: ""})
    return [f"warning: {sentence}" for level, sentence in found["findings"] if level == "warning"]


def _shaping_settings(config: RunConfig) -> dict[str, GivenValue]:
    return {path: GivenValue(path, value_at(config, path), "") for path in table_of(config) if shapes_env(path)}


def _fetch_description(given: Mapping[str, GivenValue]) -> dict[str, Any]:
    """The spec as it is sent; settings of `env` with which all environments have it; findings, and their digest."""
    values = _values(given)
    return describe_once(json.dumps(values), _digest(values))


def _values(given: Mapping[str, GivenValue]) -> dict[str, Any]:
    """By path, the settings that the environments depend on, unless they have their default."""
    if "local.placement" in given and given["local.placement"].value == "serve":
        raise ConfigError(
            path="preset", expected="a name", cause="with local.placement serve no environment is made here"
        )
    mistakes: list[BeastError] = []
    own = table_for({path: one.value for path, one in given.items()}, "")  # none of another backend, as in a preset
    good, _ = config_check([one for path, one in given.items() if path in own and shapes_env(path)], mistakes)
    if mistakes:
        raise ConfigError.of(mistakes)
    values = {path: one.value for path, one in good.items()}
    return {"env.id": values["env.id"], **{path: one for path, one in values.items() if one != own[path].default}}


def _digest(values: Mapping[str, Any]) -> str:
    """The fingerprint of environments that are to be checked; empty if these are not."""
    if not values.get(CHECK_SETTING, True) or all(map(family_of, split_ids(values["env.id"]))):
        return ""
    return _fingerprint(values)


def _fingerprint(values: Mapping[str, Any]) -> str:
    """A digest of all that these environments depend on, the text of scripts included."""
    homes = [each.rpartition(":")[0] for each in re.split("[(),;]", values["env.id"])]
    stems = [home.removesuffix(".py") if home.endswith(".py") else home.replace(".", "/") for home in homes]
    files = [Path(f"{stem}{end}") for stem in stems for end in (".py", "/__init__.py")]
    texts = [file.read_bytes() for file in files if os.path.isfile(file)]
    about = {
        path: value for path, value in values.items() if path.startswith("env.") and path not in UNCHECKED_SETTINGS
    }
    return blake2b(repr((about, Path.cwd(), texts)).encode(), digest_size=16).hexdigest()


@cache
def describe_once(settings: str, digest: str) -> dict[str, Any]:
    checks = bool(digest) and not state.knows(digest)
    return {**ask_env_process("describe", {**json.loads(settings), CHECK_SETTING: checks}), "digest": digest}


def ask_env_process(about: str, values: Mapping[str, Any], most_s: float = LONGEST_S) -> Any:
    """What a process that makes environments prints about them; nothing that they have started outlives it."""
    tasks, levels = (sum(map(bool, split_ids(values.get(path, "")))) for path in ("env.id", LEVELS))
    turns = tasks * (1 + levels + values.get(CHECK_SETTING, True))  # each may have each level; made one by one
    limit_s = min(most_s, max(LIMIT_S, values.get(LIMIT_SETTING, 0.0)) * turns)
    command, env_id = service_command("envserver", about), values["env.id"]
    before, mark, what = (
        oom_kills(),
        secrets.token_hex(8),
        "made and played" if values.get(CHECK_SETTING, True) else "made",
    )
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as complaint:
        try:
            code = subprocess.run(
                [*command, "--config", "/dev/stdin", *confirmation(values)],  # no other user can read them there
                check=False,
                env={**child_environ(os.environ), MARK: mark},
                input=as_yaml(nest(values)).encode(),
                stdout=answer,  # files: a pipe would stay open as long as any process that the environment started
                stderr=complaint,
                timeout=limit_s,
            ).returncode
        except subprocess.TimeoutExpired as error:
            why = f"was not {what} within {limit_s:g} s (envserver.step_timeout_s for each environment)"
            raise ConfigError(f"env.id {env_id!r} {why}", path="env.id", value=env_id) from error
        finally:
            end_marked({mark})
        answer.seek(0)
        complaint.seek(0)
        with suppress(ValueError):  # it ended before it answered, or something else wrote there
            return json.loads(answer.read())
        lines = complaint.read().decode(errors="replace").strip().splitlines()
    ended = f"env.id {env_id!r}: its process ended before it was {what}, {how_it_ended(code, before)}"
    *_, sentence = ended, *(line.removeprefix(OWN_PREFIX) for line in lines if code > 0 and line.startswith(OWN_PREFIX))
    more = f"; to see where: {shlex.join([*command, *flags_for(values)])}" if len(lines) > 1 else ""
    raise ConfigError(f"{sentence}{more}", path="env.id", value=env_id)
