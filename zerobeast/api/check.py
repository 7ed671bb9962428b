"""What is wrong with an environment of one's own, before anything is trained in it."""

import os
from typing import Any

from zerobeast.api.python_terms import translate_errors
from zerobeast.common.config.load import Request, resolve
from zerobeast.common.config.plain_values import add_env
from zerobeast.common.plugins import refuse_imported, reread
from zerobeast.plan.spaces import fetch_findings


@translate_errors
def check(env: Any, /, **settings: Any) -> list[tuple[str, str]]:
    """Play an environment at random for up to 8 seconds, in a process of its own, as `beast check` does.

    Args:
      env, settings: as for `zerobeast.train`, of which those of the environment matter, such as `env_kwargs`.

    Returns:
      what was found, each "ok", "warning" or "error" and a sentence.

    Raises:
      ConfigError: there is no such environment, or it hangs.

    Examples:
      >>> import zerobeast as zb
      >>> [sentence for kind, sentence in zb.check("CartPole-v1") if kind == "error"]
      []
    """
    refuse_imported("checks an environment")
    reread()
    return fetch_findings(resolve(Request.of_values(add_env(env, settings), os.environ)).config)
