"""The episodic memory: what is kept, how it is found, how it enters the core, and what it learns to tell apart."""

import pytest
import torch
from torch.nn.functional import normalize
from torch.utils._pytree import tree_leaves

from tests.build.batches import MINATAR, VECTORS, B, algorithm_of, generator, make_batch
from tests.build.errors import refuses
from zerobeast.common.settings import NetConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.rl.memory import rarity
from zerobeast.rl.memory.contrastive import augment, nt_xent
from zerobeast.rl.memory.memory import Entry, Memory, Step
from zerobeast.rl.memory.rarity import priorities, signal_of
from zerobeast.rl.nets.episodic import EpisodicMemory
from zerobeast.testing.memory import make_entries

SIZE, K, H, E = 6, 4, 3, 5


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def memory(neighbours: int = 2) -> EpisodicMemory:
    config = NetConfig(memory_size=SIZE, memory_key_size=K, memory_neighbours=neighbours, core_width=H)
    made = EpisodicMemory(config, E)
    torch.nn.init.ones_(made.gate)
    return made


def entry(priority: float, version: int = 0) -> Entry:
    numbers = torch.zeros(()), torch.zeros(()), torch.tensor(version)
    step = Step(torch.randn(2), torch.randn(H), *numbers)
    return Entry(step, None, torch.zeros(()), normalize(torch.randn(K), dim=0), priority)


def filled(made: EpisodicMemory, n: int) -> list[Entry]:
    store, entries = Memory(made.contents, 1.0), [entry(0.5, version) for version in range(n)]
    for each in entries:
        store.write(each)
    return entries


@pytest.mark.parametrize("n", [1, 2, 6])
def test_weights_sum_to_one_and_fall_with_the_distance(n: int) -> None:
    made = memory(neighbours=3)
    entries = filled(made, n)
    keys = normalize(torch.randn(7, K), dim=-1)
    found = made.retrieve(keys)
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(7))
    distances = (keys.unsqueeze(1) - made.contents.keys[found.places]).square().sum(-1)
    expected = (-distances / 0.2).masked_fill(found.places >= n, -torch.inf).softmax(-1)  # |a - b|^2 = 2 - 2 a . b
    torch.testing.assert_close(found.weights, expected)
    own = made.retrieve(torch.stack([each.key for each in entries if each.key is not None]))
    nearest = own.places.gather(-1, own.weights.argmax(-1, keepdim=True))
    assert nearest.flatten().tolist() == [*range(n)], "of a stored key its own entry"


def test_what_is_reinstated_is_gated_and_trains_the_gate_alone() -> None:
    made = memory()
    assert torch.equal(made.reinstate(torch.randn(2, 3, E)), torch.zeros(2, 3, H)), "it is empty"
    filled(made, 3)
    features = torch.randn(2, 3, E, requires_grad=True)
    given = made.reinstate(features)
    found = made.retrieve(made.key(features).flatten(0, 1))
    by_hand = torch.zeros(6, H)
    for row in range(6):
        for place, weight in zip(found.places[row], found.weights[row], strict=True):
            by_hand[row] += weight * made.contents.states[place]
    torch.testing.assert_close(given, torch.tanh(torch.ones(H)) * by_hand.view(2, 3, H))
    given.sum().backward()  # type: ignore[no-untyped-call]
    assert features.grad is None
    assert made.gate.grad is not None


@pytest.mark.parametrize("algo", ["impala", "r2d2"])
def test_at_a_zero_gate_outputs_are_those_without_a_memory_bit_for_bit(algo: str) -> None:
    net = {"core": "lstm", "hidden_size": 16}
    algorithms = [algorithm_of(algo, MINATAR, net=net | more) for more in ({}, {"memory": "knn"})]
    plain, remembering = (algorithm.network() for algorithm in algorithms)
    contents = remembering.body.memory.contents
    contents.absent[:9] = 0.0
    torch.nn.init.normal_(contents.states)
    torch.nn.init.normal_(contents.keys)
    inputs, core = make_batch(algorithms[0]).inputs, torch.randn(B, plain.core_size, generator=generator())
    ours, theirs = (tree_leaves(net(inputs, core)) for net in (plain, remembering))
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other)
    torch.nn.init.ones_(remembering.body.memory.gate)
    assert not torch.equal(tree_leaves(remembering(inputs, core))[0], ours[0])


def test_the_rarest_survives_as_many_more_familiar_ones_as_come() -> None:
    contents = memory().contents
    store = Memory(contents, decay=1.0)
    rare = entry(0.9)
    place = store.write(rare)
    for priority in torch.linspace(0.1, 0.8, 50).tolist():
        store.write(entry(priority))
        assert len(store.entries) == int((contents.absent == 0).sum()) <= SIZE
        assert place is not None
        assert store.entries[place] is rare
    kept = sorted(contents.priorities.tolist())
    torch.testing.assert_close(torch.tensor(kept), torch.tensor([*torch.linspace(0.1, 0.8, 50).tolist()[-5:], 0.9]))
    assert store.write(entry(0.2)) is None


def test_old_entries_decay_until_new_ones_replace_them_and_are_drawn_by_priority() -> None:
    store = Memory(memory().contents, decay=0.5)
    for _ in range(SIZE):
        store.write(entry(1.0))
    late = entry(0.3)
    assert store.write(late) == 0  # the oldest: 1.0 / 2^6
    assert store.entries[0] is late
    assert store.draw(0) == []
    total = 0.3 + sum(0.5**age for age in range(1, SIZE))
    assert sum(each is late for each in store.draw(4000)) / 4000 == pytest.approx(0.3 / total, abs=0.03)


def test_priorities_are_between_zero_and_one_and_a_half_at_the_mean() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, 10.0])
    deviations = (scores - 4.0) / scores.std()
    torch.testing.assert_close(priorities(scores), 0.5 * deviations / deviations.abs().max() + 0.5)
    assert priorities(torch.full((3,), 7.0)).tolist() == [0.5] * 3


def test_what_has_no_near_neighbours_is_rare() -> None:
    crowd = torch.tensor([1.0, 0, 0]) + 0.01 * torch.randn(30, 3)
    keys = normalize(torch.cat([crowd, torch.tensor([[0.0, 1, 0]])]), dim=-1)
    scores = rarity.knn(make_entries(31)._replace(keys=keys))
    assert int(scores.argmax()) == 30
    nearest = sorted(float((keys[3] - keys[i]).norm()) for i in range(31) if i != 3)[:10]
    assert float(scores[3]) == pytest.approx(sum(nearest) / 10, abs=1e-3)


def test_losses_and_td_errors_are_rarity_as_they_are() -> None:
    known = make_entries(9)
    assert signal_of("momentum")(known) is known.losses
    assert signal_of("td_error")(known) is known.td_errors
    with refuses("net.memory"):
        signal_of(f"{__name__}:K")


@pytest.mark.parametrize("dedup", [False, True])
def test_nt_xent_is_the_double_loop_of_its_definition(dedup: bool) -> None:
    n, tau = 5, 0.2
    ours, theirs = torch.randn(n, 4), torch.randn(n, 4)
    alike = (torch.rand(n, n) < 0.4) if dedup else None
    if alike is not None:
        alike = alike | alike.T
    found = nt_xent(ours, theirs, tau, alike)
    both = [each / each.norm() for each in [*ours, *theirs]]
    expected = torch.zeros(n)
    for i in range(2 * n):
        others = [j for j in range(2 * n) if j != i and (i % n == j % n or alike is None or not alike[i % n, j % n])]
        positive = torch.exp(both[i] @ both[(i + n) % (2 * n)] / tau)
        total = torch.stack([torch.exp(both[i] @ both[j] / tau) for j in others]).sum()
        expected[i % n] -= torch.log(positive / total) / 2
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(8, 10, 3), (3, 8, 10)])
def test_a_view_has_noise_and_one_rectangle_cut_out(shape: tuple[int, ...]) -> None:
    pictures = torch.randint(1, 255, (1, 6, *shape), dtype=torch.uint8)
    seen = augment(pictures, ArraySpace.box(shape, "|u1"))
    channel = -1 if shape[-1] == 3 else -3
    cut = (seen == 0).all(channel)
    assert cut.sum((0, 2, 3)).tolist() == [4 * 5] * 6
    for picture in cut[0]:
        rows, columns = picture.nonzero().T
        assert (int(rows.max() - rows.min()), int(columns.max() - columns.min())) == (3, 4), "one rectangle"
    assert ((seen != pictures) | cut.unsqueeze(channel)).float().mean() > 0.9, "noise everywhere else"


def test_of_vectors_some_numbers_are_left_out_and_choices_stay() -> None:
    seen = augment(torch.randn(1, 2000, 5), VECTORS.obs)  # type: ignore[arg-type]
    assert float((seen == 0).float().mean()) == pytest.approx(0.2, abs=0.02)
    choices = torch.arange(4).view(1, 4)
    assert augment(choices, ArraySpace.discrete(5)) is choices
