"""The four services, by the names that they have everywhere: in commands, settings, keys, pages and manifests.

A process is one of them, or hosts several: a worker those that act, a serial run all.
"""

from __future__ import annotations

ROLES = ("learner", "broker", "envserver", "actor")  #: in the order in which a run is started
#: what processes host, in the order in which they start it
HOSTED = {**{role: (role,) for role in ROLES}, "worker": ROLES[1:], "serial": ROLES}
PROCESSES = (*ROLES, "worker")  #: what the processes of a run are, in the order in which they start
STOPPING = PROCESSES[::-1]  #: in the order in which they end: senders before receivers
SERVERS = ROLES[:-1]  #: those with an endpoint
