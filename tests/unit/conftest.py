"""A fixture that applies to every unit test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed torch, so that random numbers do not depend on which tests ran before."""
    torch.manual_seed(0)
