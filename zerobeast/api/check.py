"""What is wrong with an environment of one's own, before anything is trained in it."""

import os
from typing import Any

from zerobeast.api.words import in_python
from zerobeast.common.config.load import Request, resolve
from zerobeast.common.config.values import with_env
from zerobeast.common.plugins import refuse_imported, reread
from zerobeast.plan.spaces import findings


@in_python
def check(env: Any, /, **settings: Any) -> list[tuple[str, str]]:
    """Play an environment at random for up to 8 seconds, in a process of its own, as `beast check` does.

    Args:
      env, settings: as for `zerobeast.train`, of which those of the environment matter, such as `env_kwargs`.

    Returns:
      what was found, each "ok", "warning" or "error" and a sentence.

    Raises:
      ConfigError: there is no such environment, or it hangs.
    """
    refuse_imported("checks an environment")
    reread()
    return findings(resolve(Request.of_values(with_env(env, settings), os.environ)).config)
