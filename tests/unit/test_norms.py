"""Norms against their equations, running statistics, and networks that have norms and residual blocks."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.build.batches import MINATAR, NESTED
from tests.build.nets import TORSOS
from zerobeast.common.settings import NetConfig
from zerobeast.common.wire import ArraySpace, CompositeSpace, EnvSpec
from zerobeast.common.wire.spaces import Part
from zerobeast.rl.algos.control.networks import Critics, Perceptron
from zerobeast.rl.nets.norms import BatchNorm, Norm, adopt_statistics, batch_statistics, norm_maker
from zerobeast.rl.nets.weights import flatten, layout_id, load_flat
from zerobeast.rl.ops import ranks
from zerobeast.testing import network as rules
from zerobeast.testing.network import network, steps
from zerobeast.testing.small_run import are_same

WIDTH = 5
#: networks side by side, and the shape of the input
CASES: dict[str, tuple[int, tuple[int, ...]]] = {
    "dense": (0, (7, WIDTH)),
    "stacked": (3, (3, 7, WIDTH)),
    "the first two of three": (3, (2, 7, WIDTH)),
    "images": (0, (4, WIDTH, 3, 6)),
}
CAMERA = Part("camera", ArraySpace.box((10, 10, 2), "|u1", (0.0,), (255.0,)))
SEEING = replace(NESTED, obs=CompositeSpace("dict", (CAMERA, Part("speed", ArraySpace.box((3,))))))
SOME = [*((torso, env, 2) for torso, env in TORSOS), ("mlp", TORSOS[-1][1], 0), ("auto", SEEING, 2)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def drawn(kind: str, case: str) -> tuple[Any, Tensor]:
    """A norm with random weights, and an input."""
    k, shape = CASES[case]
    norm = norm_maker(kind, k)(WIDTH)
    assert isinstance(norm, Norm)
    for weights in norm.parameters():
        torch.nn.init.normal_(weights, 1.0)
    if isinstance(norm, BatchNorm):
        norm.mean.normal_()
        norm.variance.uniform_(0.5, 2.0)
    return norm, (3 + 2 * torch.randn(shape)).requires_grad_()


def axes(kind: str, case: str) -> tuple[int, ...]:
    """Those that share a mean."""
    if case == "images":
        return (1, 2, 3) if kind == "layer" else (0, 2, 3)
    return (-1,) if kind == "layer" else (-2,)


def beside(entries: Tensor, x: Tensor) -> Tensor:
    """Numbers of each channel or output, [(k) WIDTH] in any shape, for a product with `x`; of the first networks."""
    return entries.reshape(-1, 1, 1) if x.dim() == 4 else entries.reshape(-1, 1, WIDTH)[: len(x)]


def scaled(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In float64, in which statistics come."""
    return ((x - mean) / (variance + 1e-5).sqrt() * beside(weight, x) + beside(bias, x)).view(x.shape)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["layer", "batch"])
def test_a_norm_and_its_gradients_are_its_equation(kind: str, case: str) -> None:
    norm, x = drawn(kind, case)
    with batch_statistics(norm):
        found = norm(x)
    own, over = [each.detach().double().requires_grad_() for each in (x, norm.weight, norm.bias)], axes(kind, case)
    mean = own[0].mean(over, keepdim=True)
    expected = scaled(own[0], mean, (own[0] - mean).square().mean(over, keepdim=True), *own[1:])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    slope = torch.randn(x.shape)
    for each in (found, expected):
        (each * slope).sum().backward()
    for one, written in zip((x, norm.weight, norm.bias), own, strict=True):
        torch.testing.assert_close(one.grad.double(), written.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_norm_uses_running_statistics_unless_told(case: str) -> None:
    norm, x = drawn("batch", case)
    before = deepcopy(norm.state_dict())
    with pytest.raises(KeyError), batch_statistics(norm):
        raise KeyError
    statistics = [beside(each.double(), x) for each in (norm.mean, norm.variance)]
    for module in (norm.eval(), norm.train()):
        expected = scaled(x.double(), *statistics, norm.weight, norm.bias)
        torch.testing.assert_close(module(x).double(), expected, rtol=1e-4, atol=1e-5)
    assert are_same(norm.state_dict(), before)


@pytest.mark.parametrize("case", CASES)
def test_running_statistics_move_by_a_hundredth_towards_those_of_each_batch(case: str) -> None:
    norm, x = drawn("batch", case)
    mean, variance = norm.mean.double().numpy(), norm.variance.double().numpy()
    over = axes("batch", case)
    for size in (1.0, 5.0, 0.1):
        batch = (size * x).detach()
        with batch_statistics(norm):
            norm(batch)
        assert not norm.mean.eq(norm.next[0])[:WIDTH].any(), "until a step is applied"
        adopt_statistics(norm)
        numbers = batch.double().numpy()
        of_batch = [numbers.mean(over).ravel(), numbers.var(over, ddof=1).ravel()]
        for running, new in zip((mean, variance), of_batch, strict=True):
            running[: len(new)] = 0.99 * running[: len(new)] + 0.01 * new  # others than the first networks keep theirs
    np.testing.assert_allclose(norm.mean, mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norm.variance, variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("torso", "env", "blocks"), SOME)
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_networks_with_norms_keep_the_rules(norm: str, torso: str, env: EnvSpec, blocks: int) -> None:
    """Rows do not depend on each other; acting step by step, also with an LSTM, is an unroll; and so on."""
    for rule in (
        rules.rows_do_not_depend_on_each_other,
        rules.answering_changes_nothing,
        rules.bfloat16_is_near_float32,
        rules.every_parameter_is_trained,
        rules.one_call_over_time_equals_one_call_per_step,
    ):
        rule(torso, env, norm=norm, residual_blocks=blocks, activation="silu")


@pytest.mark.parametrize(("torso", "env", "blocks"), SOME)
def test_lower_weights_leave_norms_and_statistics_travel(torso: str, env: EnvSpec, blocks: int) -> None:
    here, there = (network(torso, env, seed, norm="batch", residual_blocks=blocks) for seed in (1, 2))
    inputs = steps(env, 4, 3)
    with batch_statistics(here):
        here(inputs, here.initial_state(3))
    adopt_statistics(here)
    statistics = [entry for name, entry in here.named_buffers() if name.endswith(("norm.mean", "norm.variance"))]
    assert statistics
    assert not any(entry.eq(entry.flatten()[0]).all() for entry in statistics), "they have changed"
    load_flat(there, flatten(here))
    assert are_same(list(there.state_dict().values()), list(here.state_dict().values()))
    torch.testing.assert_close(there(inputs, there.initial_state(3)), here(inputs, here.initial_state(3)))
    here.lower(torch.bfloat16)
    norms = [part for part in here.modules() if isinstance(part, Norm)]
    assert {entry.dtype for part in norms for entry in part.state_dict().values()} == {torch.float32}
    assert torch.bfloat16 in {weights.dtype for weights in here.parameters()}
    others = {layout_id(network(torso, env, norm=norm, residual_blocks=blocks)) for norm in ("none", "layer")}
    assert len({*others, layout_id(there)}) == 3


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
@pytest.mark.parametrize("blocks", [0, 2])
def test_stacked_networks_are_single_ones_side_by_side(norm: str, blocks: int) -> None:
    net = NetConfig.model_validate({"hidden_size": 6, "norm": norm, "residual_blocks": blocks, "activation": "gelu"})
    critics, features, actions = Critics(3, 4 + 2, net, atoms=7), 2 + torch.randn(8, 4), torch.randn(8, 2)
    for name, entry in critics.named_parameters():
        entry.data.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.3)
    with batch_statistics(critics):
        critics(features, actions)
    adopt_statistics(critics)
    for j in (None, 1, 2):
        found = critics(features, actions, j)
        for number, of_one in enumerate(found):
            alone = Perceptron(4 + 2, 7, net)
            alone.load_state_dict({name: pick(name, entry, number) for name, entry in critics.state_dict().items()})
            torch.testing.assert_close(alone(torch.cat([features, actions], -1)), of_one, rtol=1e-4, atol=1e-5)


def pick(name: str, entry: Tensor, number: int) -> Tensor:
    """What this one of three stacked networks has."""
    if name.startswith("in_norm"):
        return entry
    if entry.dim() == 1:
        return entry.chunk(3)[number]
    return entry[number].squeeze(0) if entry.shape[1] == 1 else entry[number].T


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_residual_blocks_are_their_equation(norm: str) -> None:
    net = NetConfig.model_validate({"hidden_size": 6, "norm": norm, "residual_blocks": 2})
    made, x = Perceptron(4, 3, net), torch.randn(5, 4)
    weights = {name: entry.detach().double() for name, entry in made.named_parameters()}

    def layer(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normal(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return x if norm == "none" else centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    hidden = layer(x.double(), "embed")
    for block in ("blocks.0", "blocks.1"):
        assert weights[f"{block}.first.weight"].shape == (24, 6)
        inner = normal(layer(hidden, f"{block}.first")).clamp(min=0)
        hidden = hidden + normal(layer(inner, f"{block}.second")).clamp(min=0)
    torch.testing.assert_close(made(x).double(), layer(normal(hidden), "out"), rtol=1e-4, atol=1e-5)


def test_ranks_have_the_same_statistics_after_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    nets = [network("minatar", MINATAR, norm="batch") for _ in range(2)]
    for net in nets:
        with batch_statistics(net):
            net(steps(MINATAR, 4, 3), net.initial_state(3))
    own = [[part for part in net.modules() if isinstance(part, BatchNorm)] for net in nets]
    pairs = [(one.next, other.next) for one, other in zip(*own, strict=True)]
    sent: list[Tensor] = []
    monkeypatch.setattr(ranks.GROUP, "size", 2)
    monkeypatch.setattr(ranks, "gather", lambda values, _name: sent.append(values) or torch.stack([values, values]))
    for net in map(deepcopy, nets):
        adopt_statistics(net)
    monkeypatch.setattr(ranks, "gather", lambda _values, _name: torch.stack(sent))
    for net in nets:
        adopt_statistics(net)
    for (one, other), ((a, u), (b, v)) in zip(zip(*own, strict=True), pairs, strict=True):
        assert not torch.equal(a, b)
        for found in (one, other):
            torch.testing.assert_close(found.mean, (a + b) / 2)
            torch.testing.assert_close(found.variance, (u + v) / 2 + ((a - b) / 2).square())
