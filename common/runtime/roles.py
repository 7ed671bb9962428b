"""The four services, by the names that they have everywhere: in commands, settings, keys, pages and manifests.

A process is one of them, or a worker, which hosts several.
"""

from __future__ import annotations

ROLES = ("learner", "broker", "envserver", "actor")  #: in the order in which a run is started
HOSTED = ("broker", "envserver", "actor")  #: by a worker, in the order in which it starts them
PROCESSES = (*ROLES, "worker")  #: what the processes of a run are, in the order in which they start
STOPPING = PROCESSES[::-1]  #: in the order in which they end: who sends before who receives
SERVERS = ROLES[:-1]  #: those with an endpoint


def hosted(process: str) -> tuple[str, ...]:
    """The services of a process, in the order of the ports of their health pages."""
    return HOSTED if process == "worker" else (process,)
