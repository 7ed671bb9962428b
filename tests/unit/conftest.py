"""What holds for every unit test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random numbers in every run, whichever tests ran before."""
    torch.manual_seed(0)
