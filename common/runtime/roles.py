"""The four services, by the names that they have everywhere: in commands, settings, keys, pages and manifests."""

from __future__ import annotations

ROLES = ("learner", "broker", "envserver", "actor")  #: in the order in which a run is started
STOPPING = ROLES[::-1]  #: in the order in which it ends: who sends before who receives
SERVERS = ROLES[:-1]  #: those with an endpoint
