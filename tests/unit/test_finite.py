"""Non-finite numbers are found wherever they are."""

import math

import pytest
import torch

from zerobeast.rl.learning.gradient_descent import squares_finite


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 5000, 9999])
def test_one_bad_entry_of_ten_thousand_is_found(bad: float, at: int) -> None:
    entries = torch.linspace(-1, 1, 10_000)
    entries[at] = bad
    assert not squares_finite([torch.ones(2), entries.view(100, 100), torch.zeros(())])


def test_entries_that_overflow_when_squared_are_found_and_an_empty_list_is_finite() -> None:
    largest = torch.finfo(torch.float32).max ** 0.5
    assert squares_finite([torch.full((3,), largest * 0.999), torch.full((3,), -largest * 0.999), torch.empty(0)])
    assert not squares_finite([torch.ones(3), torch.tensor([0.0, -largest * 1.001])])
    assert squares_finite([])
