"""Faults for longer than a test may take: services die for minutes, and 100,000 hostile messages come."""

from pathlib import Path

import pytest

from zerobeast.cli import main as cli

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

R2D2 = ("--algo", "r2d2", "--env", "CartPole-v1")


@pytest.mark.parametrize(
    "flags",
    [
        ("soak", "--minutes", "8"),
        ("soak", "--minutes", "4", "--store"),
        ("soak", "--minutes", "4", "--local.placement", "fused"),
        ("soak", "--minutes", "4", *R2D2),
        ("search", "--minutes", "5", "--seed", "1"),
        ("fuzz", "--messages", "100000", "--seed", "2"),
    ],
    ids=lambda flags: "-".join(flags),
)
def test_every_guarantee_holds(flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["chaos", *flags]) == 0
