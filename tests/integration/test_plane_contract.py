"""Every served plane keeps the rules of a plane, and every client those of a client."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.build.clients import CLIENTS
from tests.build.planes import a_broker, a_learner, an_env_server, the_example
from zerobeast.testing import client, plane
from zerobeast.testing.driven_peers import Server
from zerobeast.testing.rules import Rule

Serving = Callable[[str], AbstractContextManager[Server]]


@pytest.mark.parametrize("rule", plane.RULES, ids=str)
@pytest.mark.parametrize("serving", [an_env_server, a_broker, a_learner, the_example], ids=lambda each: each.__name__)
def test_planes(serving: Serving, rule: Rule, tmp_path: Path) -> None:
    with serving(f"ipc://{tmp_path}/s") as server:
        rule(server)


@pytest.mark.parametrize("rule", client.RULES, ids=str)
@pytest.mark.parametrize("name", CLIENTS)
def test_clients(name: str, rule: Rule, tmp_path: Path) -> None:
    rule(CLIENTS[name], f"ipc://{tmp_path}/s")
