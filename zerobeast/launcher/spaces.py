"""What an environment looks like, as told by a process that makes it once: nothing here may import simulators."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping

from zerobeast.common.config.layers import Given
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.run import EnvServerConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.launcher.fleet import child_environ, service_command
from zerobeast.launcher.trust import refuse_named

LIMIT_S, LONGEST_S = EnvServerConfig().step_timeout_s, 1e6


def spec_of(given: Mapping[str, Given]) -> EnvSpec:
    """The observations and actions of the environment that settings name; of several, the first.

    Args:
      given: path -> value and layer, at least for `env.id`; unchecked.

    Raises:
      ConfigError: it cannot or must not be made, or a file names a module to import for it.
    """
    if "local.placement" in given and given["local.placement"].value == "serve":
        raise ConfigError("preset: expected a name, because with local.placement serve nothing here makes environments")
    env_id, kwargs = given["env.id"], given["env.kwargs"].value if "env.kwargs" in given else {}
    limit_s = LIMIT_S
    with contextlib.suppress(KeyError, ValueError, TypeError):  # not given, or wrong, which is refused later
        limit_s = max(limit_s, min(LONGEST_S, float(given["envserver.step_timeout_s"].value)))
    refuse_named(env_id.value, env_id.where)
    return _ask(env_id.value.partition(",")[0].strip(), json.dumps(kwargs, default=str), limit_s)


@functools.cache
def _ask(env_id: str, kwargs: str, limit_s: float) -> EnvSpec:
    command = service_command("envserver", "describe", f"--env.id={env_id}", f"--env.kwargs={kwargs}")
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as complaint:
        try:
            code = subprocess.run(
                command,
                check=False,
                env=child_environ(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=answer,  # files: a pipe would stay open as long as any process that the environment started
                stderr=complaint,
                timeout=limit_s,
            ).returncode
        except subprocess.TimeoutExpired as error:
            why = f"was not made within {limit_s:g} s (envserver.step_timeout_s); --preset NAME needs no look at it"
            raise ConfigError(f"env.id {env_id!r} {why}") from error
        answer.seek(0)
        complaint.seek(0)
        if code == 0:
            return EnvSpec.from_wire(json.load(answer))
        lines = complaint.read().decode(errors="replace").strip().splitlines()
    sentence = lines[-1].removeprefix("envserver: ") if lines and code > 0 else f"env.id {env_id!r}: exit code {code}"
    more = f"; to see where: {shlex.join(command)}" if len(lines) > 1 else ""
    raise ConfigError(f"{sentence}{more}")
