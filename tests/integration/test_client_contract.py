"""Every client of a plane keeps the rules of a client."""

from pathlib import Path

import pytest

from tests.build.clients import CLIENTS
from zerobeast.testing import client
from zerobeast.testing.rules import Rule


@pytest.mark.parametrize("rule", client.RULES, ids=str)
@pytest.mark.parametrize("name", CLIENTS)
def test_contract(name: str, rule: Rule, tmp_path: Path) -> None:
    rule(CLIENTS[name], f"ipc://{tmp_path}/s")
