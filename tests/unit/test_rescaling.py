"""R2D2's value rescaling and its inverse."""

import pytest
import torch

from zerobeast.rl.ops.returns import rescale, unrescale

NUMBERS = torch.tensor([0.0, 1e-4, 0.01, 0.5, 1.0, 3.0, 20.0, 1e3, 1e6], dtype=torch.float64)
NUMBERS = torch.cat([-NUMBERS, NUMBERS])


@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_rescaling_and_its_inverse_are_the_papers_formulas(eps: float) -> None:
    x, size, sign = NUMBERS, NUMBERS.abs(), NUMBERS.sign()
    torch.testing.assert_close(rescale(x, eps), sign * ((size + 1).sqrt() - 1) + eps * x)
    root = (1 + 4 * eps * (size + 1 + eps)).sqrt()
    torch.testing.assert_close(unrescale(x, eps), sign * (((root - 1) / (2 * eps)).square() - 1), rtol=1e-8, atol=1e-12)


def test_a_value_by_hand() -> None:
    assert rescale(torch.tensor([3.0, -3.0])).tolist() == pytest.approx([1.003, -1.003])
    assert unrescale(torch.tensor([1.003, -1.003])).tolist() == pytest.approx([3.0, -3.0])


def test_the_inverse_is_accurate_in_single_precision_too() -> None:
    x = NUMBERS.float()
    torch.testing.assert_close(unrescale(rescale(x)), x, rtol=2e-6, atol=0.0)
    torch.testing.assert_close(rescale(unrescale(x)), x, rtol=2e-6, atol=0.0)
