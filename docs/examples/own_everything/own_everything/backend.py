"""The backend of the ids `point/...`."""

from __future__ import annotations

from typing import Any

from zerobeast.services.envserver.backend import Backend, unknown_id_error

SIZES = {"point/Reach-v0": 6, "point/Crowd-v0": 16}  #: how many others there are at most


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    from own_everything.environment import Reach

    if env_id not in SIZES:
        raise unknown_id_error(env_id, f"expected {' or '.join(SIZES)}")
    return Reach(**{"most": SIZES[env_id], **kwargs})


BACKEND = Backend(make, ids=lambda: SIZES)
