"""Which run a command or call is to begin from."""

from zerobeast.common.config.request import Request
from zerobeast.plan.parent import Parent, load_parent


def parent_of(request: Request) -> Parent | None:
    """The run that `--from` names in a request; None if it has no such flag.

    Raises:
      ConfigError: there is no such run, or it has no checkpoint.
      CheckpointError: its checkpoint cannot be read.
    """
    name = request.value("from_run")
    if not name:
        return None
    from zerobeast.api.policies import find_policy

    return load_parent(name, find_policy(name, request.value("root")))
