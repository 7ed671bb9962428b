"""Fixtures that apply to every unit test, whose results do not depend on which tests ran before."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed torch."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test refers to is not among the algorithms of others."""
    monkeypatch.setattr("zerobeast.common.settings.algorithm.known_specs", {})
