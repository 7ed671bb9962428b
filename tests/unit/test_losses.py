"""The terms of losses: values, analytic gradients, masks."""

import pytest
import torch
from torch import Tensor

from zerobeast.rl.ops.distributions import Categorical
from zerobeast.rl.ops.losses import (
    baseline_loss,
    clipped_baseline_loss,
    clipped_surrogate_loss,
    entropy_loss,
    masked_reduce,
    normalized,
    policy_gradient_loss,
)

T, B, A = 5, 3, 4


@pytest.fixture
def logits() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(T, B, A, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.fixture
def entries() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(T, B, generator=generator, dtype=torch.float64)


ACTIONS = torch.arange(T * B).view(T, B) % A
ALL = torch.ones(T, B, dtype=torch.bool)
SOME = (torch.arange(T * B).view(T, B) % 3) > 0


def policy_gradient(logits: Tensor, advantages: Tensor, mask: Tensor = ALL) -> Tensor:
    log_probs = Categorical(logits).log_prob(ACTIONS)
    return policy_gradient_loss(log_probs=log_probs, advantages=advantages, mask=mask, reduction="sum")


def test_the_baseline_loss_is_half_the_sum_of_squares_and_its_gradient_the_error(entries: Tensor) -> None:
    values = torch.zeros(T, B, dtype=torch.float64, requires_grad=True)
    targets = -entries.requires_grad_()
    loss = baseline_loss(values=values, targets=targets, mask=ALL, reduction="sum")
    loss.backward()
    torch.testing.assert_close(loss, 0.5 * entries.square().sum())
    torch.testing.assert_close(values.grad, entries.detach())
    assert entries.grad is None, "targets are data"


def test_the_entropy_loss_is_the_sum_of_p_log_p(logits: Tensor) -> None:
    loss = entropy_loss(entropies=Categorical(logits).entropy(), mask=ALL, reduction="sum")
    loss.backward()
    p = logits.detach().softmax(-1)
    plogp = (p * p.log()).sum(-1, keepdim=True)
    torch.testing.assert_close(loss, plogp.sum())
    torch.testing.assert_close(logits.grad, p * (p.log() - plogp))


def test_the_policy_gradient_is_p_minus_one_hot_times_the_advantage(logits: Tensor, entries: Tensor) -> None:
    loss = policy_gradient(logits, entries.requires_grad_())
    loss.backward()
    assert entries.grad is None, "advantages are data"
    p, one_hot = logits.detach().softmax(-1), torch.nn.functional.one_hot(ACTIONS, A)
    torch.testing.assert_close(loss, (-one_hot * p.log() * entries.unsqueeze(-1)).sum())
    torch.testing.assert_close(logits.grad, (p - one_hot) * entries.detach().unsqueeze(-1))


def test_masked_transitions_give_neither_loss_nor_gradient(logits: Tensor, entries: Tensor) -> None:
    soiled = entries.masked_fill(~SOME, torch.nan)
    loss = policy_gradient(logits, soiled, SOME)
    loss.backward()
    torch.testing.assert_close(loss, policy_gradient(logits, entries * SOME))
    assert not logits.grad[~SOME].nan_to_num(0.0).any()
    assert (logits.grad[SOME] != 0).any(-1).all()


def test_a_mean_divides_by_the_number_of_valid_transitions(entries: Tensor) -> None:
    total = masked_reduce(entries, SOME, "sum")
    torch.testing.assert_close(masked_reduce(entries, SOME, "mean"), total / 10)
    torch.testing.assert_close(total, entries[SOME].sum())


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_batch_without_a_valid_transition_has_loss_zero(entries: Tensor, reduction: str) -> None:
    assert masked_reduce(entries, torch.zeros_like(SOME), reduction) == 0.0  # type: ignore[arg-type]


def test_the_clipped_surrogate_takes_the_worse_of_both_and_has_no_gradient_where_that_is_the_clipped_one() -> None:
    ratios = torch.tensor([[0.5, 0.9, 1.1, 1.5]] * 2, dtype=torch.float64)
    advantages = torch.tensor([[2.0] * 4, [-2.0] * 4], dtype=torch.float64)
    log_ratios = ratios.log().requires_grad_()
    mask = torch.ones(2, 4, dtype=torch.bool)
    loss = clipped_surrogate_loss(log_ratios=log_ratios, advantages=advantages, clip=0.2, mask=mask, reduction="sum")
    # a good action gains nothing above 1.2, a bad one is not let off below 0.8
    gains = torch.tensor([[1.0, 1.8, 2.2, 2.4], [-1.6, -1.8, -2.2, -3.0]], dtype=torch.float64)
    torch.testing.assert_close(loss, -gains.sum())
    loss.backward()
    slopes = torch.tensor([[1.0, 1.8, 2.2, 0.0], [0.0, -1.8, -2.2, -3.0]], dtype=torch.float64)
    torch.testing.assert_close(log_ratios.grad, -slopes)


def test_a_clipped_value_counts_where_it_is_worse() -> None:
    values = torch.tensor([[0.0, 0.5, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    before, targets = torch.full_like(values, 1.0), torch.full_like(values, 2.0)
    mask = torch.ones(1, 4, dtype=torch.bool)
    loss = clipped_baseline_loss(values=values, before=before, targets=targets, clip=0.25, mask=mask, reduction="sum")
    # kept within 0.75 to 1.25: errors 1.25, 1.25, 1, 0.75 instead of 2, 1.5, 1, 1
    torch.testing.assert_close(loss.item(), 0.5 * (4.0 + 2.25 + 1.0 + 1.0))
    loss.backward()
    assert values.grad.tolist() == [[-2.0, -1.5, -1.0, 1.0]]
    wide = clipped_baseline_loss(values=values, before=before, targets=targets, clip=9.0, mask=mask, reduction="sum")
    torch.testing.assert_close(wide, baseline_loss(values=values, targets=targets, mask=mask, reduction="sum"))


def test_normalised_entries_have_mean_0_and_deviation_1_where_they_count(entries: Tensor) -> None:
    soiled = entries.masked_fill(~SOME, 1e9)
    valid = normalized(soiled, SOME)[SOME]
    assert valid.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert valid.std(correction=0).item() == pytest.approx(1.0, abs=1e-6)
    assert not normalized(torch.full_like(entries, 3.0), SOME)[SOME].any(), "nothing to tell apart"
