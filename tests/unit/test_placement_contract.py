"""Each placement of a run keeps the contract: what is learned does not depend on where its services are."""

from pathlib import Path

import pytest

from zerobeast.common.config.load import load
from zerobeast.testing import placement
from zerobeast.testing.rules import Rule

FLAGS = {
    "apart": ("--local.actors", "3", "--local.env_servers", "2", "--learner.ranks", "2"),
    "fused": ("--actor.env_groups", "6", "--local.workers", "2", "--health.port", "9000"),
    "serial": ("--actor.env_groups", "2"),
    "serve": (),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("rule", placement.RULES, ids=str)
def test_contract(tmp_path: Path, rule: Rule, name: str) -> None:
    rule(load(["--name", "x", "--root", str(tmp_path), "--local.placement", name, *FLAGS[name]], {}))
