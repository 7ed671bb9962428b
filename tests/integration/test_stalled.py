"""When a service has work to do, which tells a stall from idleness."""

from contextlib import closing

import pytest

from tests.build.brokers import OpenStage
from tests.build.envservers import running
from tests.build.odd import ODD
from tests.helpers import poll, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import PeerLost
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context
from zerobeast.common.wire.stream import Reply
from zerobeast.services.actor.service import Actor


def test_a_broker_has_work_while_requests_wait_for_weights(open_stage: OpenStage) -> None:
    the = open_stage(versions=())
    client = the.client()
    client.until(Reply.WELCOME)
    assert the.broker.idle()
    client.request()
    wait_until(lambda: (client.turn(), not the.broker.idle())[1])
    the.learner.publish(1)
    client.until(Reply.ANSWER)
    assert the.broker.idle()


def test_an_env_server_has_work_while_an_environment_owes_a_step(context: Context, ipc: str) -> None:
    with running(ipc) as server:
        assert server.idle()
        with EnvClient(context, ipc, {"id": ODD, "kwargs": {"at": 1, "deed": "hang"}}, 1, seed=0) as client:
            client.reset()
            assert server.idle()
            client.timeout_s = 0.5
            with pytest.raises(PeerLost):
                client.step([0])
            assert not server.idle()
        wait_until(server.idle)


def test_an_actor_has_no_work_while_its_environments_are_made_but_has_while_nobody_answers(ipc: str) -> None:
    config = {"envserver": {"endpoint": ipc}, "actor": {"env_groups": 1}, "env": {"id": ODD, "kwargs": {"make_s": 0.2}}}
    actor = Actor(RunConfig.model_validate(config), Instance(index=0))
    actor.open()
    with closing(actor):
        for _ in range(3):
            poll(actor, 0.01)
            actor.tick(actor.clock())
            assert not actor.idle()
        with running(ipc, workers=1) as server:
            wait_until(lambda: (poll(actor, 0.01), actor.idle() and bool(server.table))[1])
            assert server.idle()
            wait_until(lambda: (poll(actor, 0.01), actor.groups[0].steps.stream.open)[1])
            assert not actor.idle(), "now it waits for a broker"
