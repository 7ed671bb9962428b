from typing import Any

import pytest

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.services.envserver.sessions import MAX_ENVS_PER_SESSION, SessionRequest

GOOD: dict[str, Any] = {"env": {"id": "CartPole-v1"}, "num_envs": 2, "seed": 3}


def test_good_terms_are_read() -> None:
    terms = SessionRequest.read(GOOD)
    assert (terms.env.id, terms.num_envs, terms.seed) == ("CartPole-v1", 2, 3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_envs": 0}, "num_envs: Input should be greater than or equal to 1, not 0"),
        ({"num_envs": MAX_ENVS_PER_SESSION + 1}, "num_envs: Input should be"),
        ({"num_envs": True}, "num_envs: Input should be"),
        ({"num_envs": None}, "num_envs: Input should be"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0, not -1"),
        ({"seed": 2**31}, "seed: Input should be"),
        ({"seed": 1.5}, "seed: Input should be"),
        ({"infos": 1}, "infos: Input should be a valid boolean, not 1"),
        ({"env": None}, "env: "),
        ({"env": {"id": ""}}, "env.id: "),
        ({"env": {"id": "A", "frame_skip": 0}}, "env.frame_skip: .*not 0"),
        ({"env": {"id": "A", "frame_skp": 4}}, "env.frame_skp: "),
        ({"env": {"id": "A", "kwargs": {1: 2}}}, "env.kwargs"),
        ({"env": {f"k{i}": 1 for i in range(7000)}}, "env: 7000 entries, but only"),
        ({"env": {"id": "A" * 60_000}}, "env.id: String should have at most 10000 characters"),
        ({"env": {"id": "A" + "," * 60_000}}, "env.id: String should have at most 10000 characters"),
        ({"env": {"id": "A" * 10_000, "frame_skip": "B" * 10_000}}, "env.frame_skip"),
    ],
)
def test_bad_terms_are_refused_with_the_entry_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence) as caught:
        SessionRequest.read({**GOOD, **change})
    assert len(str(caught.value)) < 1000
