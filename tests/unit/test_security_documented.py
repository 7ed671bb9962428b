"""docs/security.md: the tests that it names exist, and its tables are those of the code."""

import re
from pathlib import Path

from zerobeast.common.transport.keys import CLIENTS, SERVERS
from zerobeast.common.wire.messages import Plane

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def rows(header: str) -> list[list[str]]:
    """The cells of the table that begins with `header`."""
    lines = PAGE[PAGE.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_claim_names_tests_that_exist() -> None:
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", written, re.MULTILINE))
    claims = rows("| claim | by | test |")
    assert len(claims) >= 30
    for claim, _, tests in claims:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, claim
        assert set(named) <= there, claim
    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= there


def test_the_roles_admitted_to_each_plane_are_those_of_the_code() -> None:
    assert {
        name: (server.replace("-", ""), client.removesuffix("s")) for name, server, client in rows("| plane |")
    } == {plane.name.lower(): (SERVERS[plane], CLIENTS[plane]) for plane in Plane}
