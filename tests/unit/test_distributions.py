"""Every family of distributions against torch's own, in float64, and against its samples."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributions as reference

from tests.build.batches import BOX, ENDLESS, GRID, HYBRID, MULTI, SPACES, generator
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.rl.ops.distributions import Family, family_of
from zerobeast.rl.ops.gaussian import EDGE

PLACES = (5, 3)
ONE = ArraySpace.box((1,), low=(-2.0,), high=(2.0,))
CASES = [pytest.param(space, False, id=name) for name, space in SPACES.items()]
CASES.append(pytest.param(BOX, True, id="squashed box"))
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def params_of(family: Family, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    params = 0.5 * torch.randn(*PLACES, family.n_params, generator=generator(seed), dtype=dtype)
    params[..., family.n_params // 2 :].abs_().neg_()  # if continuous, log deviations that are used unchanged
    return params


def categoricals(params: Tensor, space: ArraySpace) -> list[reference.Categorical]:
    """Torch's distributions, one for each component."""
    return [reference.Categorical(logits=part) for part in params.split(space.sizes, -1)]


@pytest.mark.parametrize(
    ("space", "squash", "units"), [(BOX, False, (2.0, 5.0)), (BOX, True, (2.0, 5.0)), (ENDLESS, False, (1.0,))]
)
def test_normals_are_torchs_in_units_of_their_box(space: ArraySpace, units: tuple[float, ...], *, squash: bool) -> None:
    family = family_of(space, squash=squash)
    one, two = params_of(family, 1), params_of(family, 2)
    p, q = (reference.Normal(params.chunk(2, -1)[0], params.chunk(2, -1)[1].exp()) for params in (one, two))
    torch.testing.assert_close(family.of(one).kl(family.of(two)), reference.kl_divergence(p, q).sum(-1), **EXACT)
    scale = torch.tensor(units).double()
    loc = torch.tensor(space.low) + scale if space is BOX else torch.zeros(1)
    steps = [reference.TanhTransform()] * squash + [reference.AffineTransform(loc, scale, 1)]
    inside = 0.9 * torch.rand(*PLACES, len(units), generator=generator()).double()
    taken = (loc + scale * inside).view(*PLACES, *space.shape)
    theirs = reference.TransformedDistribution(reference.Independent(p, 1), steps)
    torch.testing.assert_close(family.of(one).log_prob(taken), theirs.log_prob(loc + scale * inside), **EXACT)
    if not squash:
        torch.testing.assert_close(family.of(one).entropy(), p.entropy().sum(-1) + scale.log().sum(), **EXACT)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.0, 1.0), (1.5, 0.5), (-2.0, 1.0)])
def test_the_entropy_of_a_squashed_normal_is_the_integral_over_its_box(mean: float, std: float) -> None:
    family = family_of(ONE, squash=True)
    policy = family.of(torch.tensor([[mean, math.log(std)]], dtype=torch.float64))
    before = torch.linspace(mean - 9 * std, mean + 9 * std, 200_001, dtype=torch.float64)
    density = reference.Normal(torch.tensor(mean), torch.tensor(std)).log_prob(before).double()
    slope = 2 * (math.log(2) - before - torch.nn.functional.softplus(-2 * before)) + math.log(2.0)
    expected = torch.trapezoid(density.exp() * (slope - density), before)
    assert policy.entropy().item() == pytest.approx(expected.item(), abs=2e-6)


@pytest.mark.parametrize("space", [SPACES["discrete"], MULTI, GRID])
@pytest.mark.parametrize("legal_share", [1.0, 0.6])
def test_forbidden_choices_have_no_probability_and_the_rest_equals_torch(space: ArraySpace, legal_share: float) -> None:
    family = family_of(space)
    one, two = params_of(family, 1).requires_grad_(), params_of(family, 2)
    mask = torch.rand(*PLACES, family.n_params, generator=generator(3)) < legal_share
    for part in mask.split(space.sizes, -1):
        part[..., -1] = True
    given = mask if legal_share < 1 else None
    policy, other = family.of(one, given), family.of(two, given)
    mine, theirs = (categoricals(params.masked_fill(~mask, -math.inf), space) for params in (one, two))
    draws = torch.stack([policy.sample(generator(seed)).reshape(*PLACES, -1) for seed in range(50)])
    for i, legal_choices in enumerate(mask.split(space.sizes, -1)):
        assert legal_choices.expand(50, *legal_choices.shape).gather(-1, draws[..., i : i + 1]).all()
    taken = policy.sample(generator())
    flat = taken.reshape(*PLACES, -1)
    expected = sum(part.log_prob(flat[..., i]) for i, part in enumerate(mine))
    torch.testing.assert_close(policy.log_prob(taken), expected, **EXACT)
    divergence = sum((p.probs * (p.logits - q.logits).nan_to_num()).sum(-1) for p, q in zip(mine, theirs, strict=True))
    torch.testing.assert_close(policy.kl(other), divergence, **EXACT)
    [part] = policy.kl_parts(other)
    assert torch.equal(part, policy.kl(other))
    torch.testing.assert_close(policy.entropy(), sum(part.entropy() for part in mine), **EXACT)
    (policy.entropy() + policy.kl(other) + policy.log_prob(taken)).sum().backward()
    assert one.grad is not None
    assert one.grad.isfinite().all()
    assert (one.grad[~mask] == 0).all()


def test_a_hybrid_action_is_the_product_of_its_parts() -> None:
    family, parts = family_of(HYBRID), [family_of(array) for array in HYBRID.arrays]
    params, others = params_of(family), params_of(family, 2)
    mask = torch.ones(*PLACES, 7, dtype=torch.bool)
    policy, other = family.of(params, mask), family.of(others)
    alone, against = (
        [part.of(own) for part, own in zip(parts, each.split([part.n_params for part in parts], -1), strict=True)]
        for each in (params, others)
    )
    taken = policy.sample(generator())
    expected = alone[0].log_prob(taken["aim"]) + alone[1].log_prob(taken["go"]["0"])
    torch.testing.assert_close(policy.log_prob(taken), expected, **EXACT)
    torch.testing.assert_close(policy.entropy(), alone[0].entropy() + alone[1].entropy(), **EXACT)
    divergence = sum(p.kl(q) for p, q in zip(alone, against, strict=True))
    torch.testing.assert_close(policy.kl(other), divergence, **EXACT)
    torch.testing.assert_close(policy.kl_parts(other)[0], divergence, **EXACT)
    assert torch.equal(policy.mode()["go"]["0"], alone[1].mode())


def test_the_parts_of_a_divergence_are_those_of_the_mean_and_the_deviation_alone() -> None:
    """Song et al. 2019: they equal exact divergences, and do not add up to the whole one."""
    family = family_of(BOX)
    one, two = params_of(family, 1), params_of(family, 2)
    old, new = family.of(one), family.of(two)
    of_mean, of_spread = old.kl_parts(new)
    moved = family.of(torch.cat([two.chunk(2, -1)[0], one.chunk(2, -1)[1]], -1))
    widened = family.of(torch.cat([one.chunk(2, -1)[0], two.chunk(2, -1)[1]], -1))
    torch.testing.assert_close(of_mean, old.kl(moved), **EXACT)
    torch.testing.assert_close(of_spread, old.kl(widened), **EXACT)
    assert ((of_mean + of_spread - old.kl(new)).abs() > 1e-3).all()


FAR = [torch.tensor(raw) for raw in ((0.0, 0.0), (3.0, -1.0), (6.5, 0.0), (30.0, 3.0), (-1e4, -9.0))]


@pytest.mark.parametrize(
    ("space", "squash", "params"), [*((*case.values, None) for case in CASES), *((ONE, True, far) for far in FAR)]
)
def test_the_entropy_is_the_mean_surprise_of_samples_however_far_the_mean_is(
    space: ArraySpace, params: Tensor | None, *, squash: bool
) -> None:
    family, n = family_of(space, squash=squash), 100_000
    params = params_of(family)[0, 0] if params is None else params.double()
    policy = family.of(params.expand(n, -1))
    surprise = -policy.log_prob(policy.sample(generator()))
    assert (surprise.mean() - policy.entropy()[0]).abs() < 5 * surprise.std() / n**0.5 + 0.01


@pytest.mark.parametrize(("space", "squash"), CASES)
def test_samples_and_modes_are_actions_of_the_space(space: ArraySpace, *, squash: bool) -> None:
    family = family_of(space, squash=squash)
    policy = family.of(3 * params_of(family, dtype=torch.float32))
    best = policy.log_prob(policy.mode()) if not squash else torch.inf
    for found in (*(policy.sample(generator(seed)) for seed in range(20)), policy.mode()):
        assert found.shape == (*PLACES, *space.shape)
        assert found.dtype == (torch.float32 if space.kind == "box" else torch.int64)
        if squash:
            assert ((found > torch.tensor(space.low)) & (found < torch.tensor(space.high))).all()
        assert (policy.log_prob(found) <= best + 1e-6).all(), "the mode is the likeliest"


def test_components_are_drawn_independently_and_as_often_as_by_their_logits() -> None:
    family, n = family_of(MULTI), 100_000
    one, two = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    drawn = family.of(torch.cat([one.log() + 7.0, two.log()]).expand(n, 7)).sample(generator())
    shares = torch.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=12) / n
    torch.testing.assert_close(shares, torch.outer(one, two).flatten(), rtol=0, atol=5 * (0.25 / n) ** 0.5)


@pytest.mark.parametrize("bounds", [(3.0, 3.0), (-1e9, 2e9)])
def test_a_component_that_is_fixed_and_one_that_is_wide_have_finite_densities(bounds: Any) -> None:
    policy = family_of(ArraySpace.box((1,), low=bounds[:1], high=bounds[1:]), squash=True).of(torch.zeros(100, 2))
    drawn = policy.sample(generator())
    assert (drawn.clamp(*bounds) - sum(bounds) / 2).abs().max() >= 0.4 * (bounds[1] - bounds[0])
    assert policy.log_prob(drawn).isfinite().all()
    assert policy.entropy().isfinite().all()
    widest = float(torch.finfo(torch.float32).max)
    drawn = family_of(ArraySpace.box((1,), low=(-widest,), high=(widest,))).of(torch.zeros(100, 2)).sample(generator())
    assert 1 < drawn.abs().max() < 9, "what has no width in numbers is explored in its own unit"


def test_gradients_reach_the_parameters_through_a_sampled_action() -> None:
    for squash in (False, True):
        family = family_of(BOX, squash=squash)
        params = params_of(family).requires_grad_()
        with torch.inference_mode():
            family.of(params).sample(generator())  # constants made here must serve there
        family.of(params).sample(generator()).sum().backward()
        assert params.grad is not None
        assert (params.grad != 0).all()


def test_a_squashed_action_at_the_bound_has_a_finite_density_and_gradient() -> None:
    family = family_of(BOX, squash=True)
    params = torch.tensor([[30.0, -30.0, 0.0, 0.0]], requires_grad=True)
    policy = family.of(params)
    edge = torch.tensor([[2.0 - 2 * EDGE, 5 * EDGE]])
    for action in (edge, torch.tensor([[2.0, 0.0]])):
        policy.log_prob(action).sum().backward(retain_graph=True)
        assert params.grad.isfinite().all()
    torch.testing.assert_close(policy.log_prob(torch.tensor([[2.0, 0.0]])), policy.log_prob(edge), rtol=0, atol=1.0)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("log_std", [-1.0, 0.0])
@pytest.mark.parametrize("mean", [0.0, 6.5, 1e4])
def test_the_score_is_0_on_average_however_far_the_mean_is(mean: float, log_std: float, *, squash: bool) -> None:
    n = 200_000
    params = torch.tensor([mean, log_std], dtype=torch.float64).repeat(n, 1).requires_grad_()
    policy = family_of(ONE, squash=squash).of(params)
    (score,) = torch.autograd.grad(policy.log_prob(policy.sample(generator()).detach()).sum(), params)
    assert (score != 0).any(0).all(), "there is a way back"
    assert (score.mean(0).abs() < 5 * score.std(0) / n**0.5).all()


@pytest.mark.parametrize(("squash", "low", "high"), [(False, -5.0, 2.0), (True, -4.5, 0.5)])
def test_deviations_stay_in_their_range_are_exact_within_and_have_a_gradient_everywhere(
    low: float, high: float, *, squash: bool
) -> None:
    raw = torch.cat([torch.linspace(-9, 7, 1601), torch.tensor([-1e4, 1e4])]).requires_grad_()
    policy = family_of(ONE, squash=squash).of(torch.stack([torch.zeros(1603), raw], -1))
    found = policy.log_std[:, 0]
    assert ((found > low) & (found < high)).all()
    exact = (raw >= -4) & (raw <= (0 if squash else 1))
    assert torch.equal(found[exact], raw[exact])
    assert (found[:1601].diff() > 0).all()
    (slope,) = torch.autograd.grad(found.sum(), raw)
    assert ((slope > 0) & (slope <= 1)).all()
    assert slope[:1601].diff().abs().max() < 0.05, "no kink"
