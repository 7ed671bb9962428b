"""An actor whose servers are not there: it looks for them now and then, and gives up in time."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from common.config.tree import RunConfig
from common.endpoints import Endpoint
from common.entry import Instance
from common.errors import PeerLost
from common.messages import Plane
from common.transport import Poller
from services.actor.service import LOOKUP_PERIOD_S, REOPEN_AFTER_S, Actor
from tests.helpers import free_port

pytestmark = pytest.mark.integration

TIMEOUT_S = 60.0
PLANES = len([Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS])


class Time:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def actor(time: Time) -> Iterator[Actor]:
    """With nobody at its three endpoints."""
    port = free_port(9)
    places = {role: {"endpoint": f"tcp://127.0.0.1:{port + 3 * i}"} for i, role in enumerate(["broker", "learner"])}
    places["envserver"] = {"endpoint": f"tcp://127.0.0.1:{port + 6}"}
    actor = Actor(RunConfig.model_validate({**places, "actor": {"connect_timeout_s": TIMEOUT_S}}), Instance(0))
    time.now = actor.clock()
    actor.clock = time
    actor.open()
    with closing(actor):
        yield actor


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Let no name resolve; which ones were looked up since the last call."""
    seen: list[str] = []

    def unknown(place: Endpoint) -> Endpoint:
        seen.append(place.socket(0))
        raise PeerLost("cannot resolve the name")

    def news() -> list[str]:
        found = seen.copy()
        seen.clear()
        return found

    monkeypatch.setattr(Endpoint, "resolved", unknown)
    return news


def test_names_that_do_not_resolve_are_looked_up_now_and_then_without_spinning(
    actor: Actor, time: Time, lookups: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Poller, "wait", lambda _self, timeout_s: waits.append(timeout_s))
    actor.poll(0)
    assert len(lookups()) == PLANES
    actor.poll(0)
    assert lookups() == []
    time.now += LOOKUP_PERIOD_S
    actor.poll(0)
    assert len(lookups()) == PLANES
    assert min(waits) > 0
    time.now += TIMEOUT_S
    with pytest.raises(PeerLost, match="cannot resolve the name"):
        actor.poll(0)


def test_silent_servers_are_connected_to_anew_until_it_gives_up(actor: Actor, time: Time) -> None:
    actor.poll(0)
    time.now += REOPEN_AFTER_S + 1
    actor.tick(time())
    assert actor.report()["reconnects"] == 1
    time.now += TIMEOUT_S
    with pytest.raises(PeerLost, match=r"no answer from the env-server at tcp://.* for 60 s"):
        actor.tick(time())


def test_a_silent_server_whose_name_is_gone_may_still_come_back(
    actor: Actor, time: Time, request: pytest.FixtureRequest
) -> None:
    actor.poll(0)
    lookups = request.getfixturevalue("lookups")
    for _ in range(3):
        time.now += REOPEN_AFTER_S + 1
        actor.tick(time())
        actor.poll(0)
        assert len(lookups()) == 1
