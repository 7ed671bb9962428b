"""The episodic memory: what is kept, how it is found, how it enters the core, and that it outlives the process."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.build.batches import MINATAR, VECTORS, B, algorithm_of, generator, make_batch
from zerobeast.common.config.load import load
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import NetConfig
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.data.rollouts import Rollouts
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.memory import rarity
from zerobeast.rl.memory.contrastive import augmented, nt_xent
from zerobeast.rl.memory.learning import MemoryLearning
from zerobeast.rl.memory.memory import Entry, Memory, Step
from zerobeast.rl.memory.rarity import Familiar, priorities, signal_of
from zerobeast.rl.nets.body import Body
from zerobeast.rl.nets.episodic import EpisodicMemory
from zerobeast.rl.nets.weights import flatten
from zerobeast.services.learner.checkpoint import restore_random_state
from zerobeast.services.learner.parent import Parent
from zerobeast.services.learner.update import Trainer
from zerobeast.tools.bench.in_process import InProcess

CPU = torch.device("cpu")
SIZE, K, H, E = 6, 4, 3, 5


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def memory(neighbours: int = 2) -> EpisodicMemory:
    config = NetConfig(memory_size=SIZE, memory_key_size=K, memory_neighbours=neighbours, lstm_size=H)
    made = EpisodicMemory(config, E)
    torch.nn.init.ones_(made.gate)
    return made


def entry(priority: float, version: int = 0) -> Entry:
    key = torch.nn.functional.normalize(torch.randn(K), dim=0)
    numbers = torch.zeros(()), torch.zeros(()), torch.tensor(version)
    return Entry(Step(torch.randn(2), torch.randn(H), *numbers), None, torch.zeros(()), key, priority)


def filled(made: EpisodicMemory, n: int) -> list[Entry]:
    store, entries = Memory(made.contents, 1.0), [entry(0.5, version) for version in range(n)]
    for each in entries:
        store.write(each)
    return entries


def run_config(root: Path, algo: str = "impala", memory: str = "knn", **settings: Any) -> RunConfig:
    own = {"familiar": 40, "steps_per_batch": 4, "refresh_every": 2, **settings}
    small = {
        "ppo": {"epochs": 1, "minibatches": 2},
        "r2d2": {"burn_in": 0, "sequence_length": 8, "replay_min_size": 64, "batch_size": 4, "replay_size": 4000},
    }
    return RunConfig.model_validate(
        {
            "name": "run",
            "root": str(root),
            "algo": algo,
            "env": {"id": "CartPole-v1"},
            "net": {"use_lstm": True, "lstm_size": 8, "hidden_size": 8, "memory": memory, "memory_size": 12},
            "memory": own,
            "broker": {"precision": "float32"},
            "learner": {"precision": "float32", "unroll_length": 8, "batch_size": 4},
            **({algo: small[algo]} if algo in small else {}),
        }
    )


# -- retrieval


def test_the_only_neighbour_of_a_stored_key_is_its_own_state() -> None:
    made = memory(neighbours=1)
    entries = filled(made, 4)
    found = made.retrieve(torch.stack([each.key for each in entries if each.key is not None]))
    assert found.places.squeeze(-1).tolist() == [0, 1, 2, 3]
    assert torch.equal(found.weights, torch.ones(4, 1))
    state = (found.weights.unsqueeze(-1) * made.contents.states[found.places]).sum(1)
    assert torch.equal(state, torch.stack([each.step.state for each in entries]))


@pytest.mark.parametrize("n", [1, 2, 6])
def test_weights_sum_to_one_and_fall_with_the_distance(n: int) -> None:
    made = memory(neighbours=3)
    filled(made, n)
    keys = torch.nn.functional.normalize(torch.randn(7, K), dim=-1)
    found = made.retrieve(keys)
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(7))
    distances = (keys.unsqueeze(1) - made.contents.keys[found.places]).square().sum(-1)
    expected = (-distances / 0.2).masked_fill(found.places >= n, -torch.inf).softmax(-1)  # |a - b|^2 = 2 - 2 a . b
    torch.testing.assert_close(found.weights, expected)


def test_an_empty_memory_reinstates_nothing() -> None:
    made = memory()
    assert torch.equal(made.reinstate(torch.randn(2, 3, E)), torch.zeros(2, 3, H))


def test_what_is_reinstated_is_gated_and_trains_the_gate_alone() -> None:
    made = memory()
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


@pytest.mark.parametrize("algo", ["impala", "vmpo", "r2d2"])
def test_at_a_zero_gate_outputs_are_those_without_a_memory_bit_for_bit(algo: str) -> None:
    net = {"use_lstm": True, "hidden_size": 16}
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


# -- what is kept


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


def test_old_entries_decay_until_new_ones_replace_them() -> None:
    store = Memory(memory().contents, decay=0.5)
    for each in [entry(1.0) for _ in range(SIZE)]:
        store.write(each)
    late = entry(0.3)
    assert store.write(late) == 0  # the oldest: 1.0 / 2^6
    assert store.entries[0] is late


def test_entries_are_drawn_by_priority() -> None:
    store = Memory(memory().contents, decay=1.0)
    entries = [entry(priority) for priority in (0.2, 0.8)]
    for each in entries:
        store.write(each)
    drawn = store.draw(4000)
    assert sum(each is entries[1] for each in drawn) / 4000 == pytest.approx(0.8, abs=0.03)
    assert store.draw(0) == []


# -- rarity


def test_priorities_are_between_zero_and_one_and_a_half_at_the_mean() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, 10.0])
    found = priorities(scores)
    deviations = (scores - 4.0) / scores.std()
    torch.testing.assert_close(found, 0.5 * deviations / deviations.abs().max() + 0.5)
    assert 0 <= found.min() < found.max() <= 1
    assert priorities(torch.full((3,), 7.0)).tolist() == [0.5] * 3


def familiar(keys: Tensor) -> Familiar:
    n = len(keys)
    return Familiar(torch.arange(n).float(), keys, torch.arange(n).float() * 2, torch.zeros(n), torch.arange(n))


def test_what_has_no_near_neighbours_is_rare() -> None:
    crowd = torch.tensor([1.0, 0, 0]) + 0.01 * torch.randn(30, 3)
    keys = torch.nn.functional.normalize(torch.cat([crowd, torch.tensor([[0.0, 1, 0]])]), dim=-1)
    scores = rarity.knn(familiar(keys))
    assert int(scores.argmax()) == 30
    nearest = sorted(float((keys[3] - keys[i]).norm()) for i in range(31) if i != 3)[:10]
    assert float(scores[3]) == pytest.approx(sum(nearest) / 10, abs=1e-3)


def test_other_signals() -> None:
    known = familiar(torch.randn(9, 3))
    assert torch.equal(rarity.momentum(known), known.losses)
    assert torch.equal(rarity.td_error(known), known.td_errors)
    assert rarity.uniform(known).shape == (9,)
    assert signal_of(f"{__name__}:newest") is newest
    with pytest.raises(ConfigError, match=r"net\.memory tests.*:K: expected a function, got int"):
        signal_of(f"{__name__}:K")


def newest(familiar: Familiar) -> Tensor:
    """The signal of another package."""
    return familiar.versions.float()


def too_few(familiar: Familiar) -> Tensor:
    return familiar.returns[1:]


# -- the contrastive loss


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
        positive = torch.exp(both[i] @ both[(i + n) % (2 * n)] / tau)
        total = torch.zeros(())
        for j in range(2 * n):
            same = i % n == j % n
            if j != i and (same or alike is None or not alike[i % n, j % n]):
                total = total + torch.exp(both[i] @ both[j] / tau)
        expected[i % n] -= torch.log(positive / total) / 2
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("space", "shape"),
    [(ArraySpace.box((8, 10, 3), "|u1"), (8, 10, 3)), (ArraySpace.box((3, 8, 10), "|u1"), (3, 8, 10))],
)
def test_a_view_has_noise_and_one_rectangle_cut_out(space: ArraySpace, shape: tuple[int, ...]) -> None:
    pictures = torch.randint(1, 255, (1, 6, *shape), dtype=torch.uint8)
    seen = augmented(pictures, space)
    channel = -1 if shape[-1] == 3 else -3
    cut = (seen == 0).all(channel)
    assert cut.sum((0, 2, 3)).tolist() == [4 * 5] * 6
    for picture in cut[0]:
        rows, columns = picture.nonzero().T
        assert (int(rows.max() - rows.min()), int(columns.max() - columns.min())) == (3, 4), "one rectangle"
    assert ((seen != pictures) | cut.unsqueeze(channel)).float().mean() > 0.9, "noise everywhere else"


def test_of_vectors_some_numbers_are_left_out_and_choices_stay() -> None:
    seen = augmented(torch.randn(1, 2000, 5), VECTORS.obs)  # type: ignore[arg-type]
    assert float((seen == 0).float().mean()) == pytest.approx(0.2, abs=0.02)
    choices = torch.arange(4).view(1, 4)
    assert augmented(choices, ArraySpace.discrete(5)) is choices


# -- learning


@pytest.fixture(params=["impala", "a2c", "ppo", "impact", "vmpo", "r2d2"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InProcess]:
    share = {"replay_share": 0.25} if request.param in ("impala", "impact", "vmpo") else {}
    with InProcess(run_config(tmp_path, request.param, **share), lag=0) as made:
        yield made


def test_any_recurrent_algorithm_fills_it_and_learns_with_it(run: InProcess) -> None:
    trainer = run.trainer
    contents = trainer.net.body.memory.contents
    for _ in range(30):
        run.learn(run.collect())
    assert isinstance(trainer.learning, MemoryLearning)
    assert int((contents.absent == 0).sum()) == 12
    assert int(contents.written) > 12
    assert 0 < float(contents.priorities.min()) <= float(contents.priorities.max()) <= 1
    torch.testing.assert_close(contents.keys.norm(dim=-1), torch.ones(12))
    assert contents.versions.max() > contents.versions.min() >= 0
    assert trainer.net.body.memory.gate.abs().sum() > 0, "the loss uses what is reinstated"


def test_brokers_have_the_learners_contents_after_each_version(run: InProcess) -> None:
    trainer = run.trainer
    for _ in range(20):
        run.learn(run.collect())
    broker = Inference(trainer.algorithm, max_rows=4, device=CPU, dtype=torch.bfloat16, seed=1)
    snapshot = flatten(trainer.net)
    broker.load(snapshot)
    ours, theirs = (net.body.memory.contents.state_dict() for net in (trainer.net, broker.net))
    assert ours["written"] > 0
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    memory = sum(value.numel() * (8 if value.dtype == torch.int64 else 4) for value in ours.values())
    plain = trainer.config.model_copy(update={"net": trainer.config.net.model_copy(update={"memory": "none"})})
    gate = 4 * trainer.net.body.memory.gate.numel()
    assert snapshot.nbytes == flatten(Trainer(plain, CPU, trainer.env).net).nbytes + memory + gate


@pytest.mark.parametrize("algo", ["impala", "vmpo", "ppo"])
def test_a_run_that_is_continued_is_one_that_was_never_interrupted(tmp_path: Path, algo: str) -> None:
    share = 0.0 if algo == "ppo" else 0.3
    config = run_config(tmp_path, algo, "momentum", replay_share=share)
    with InProcess(config, lag=0) as run:
        for _ in range(20):
            run.learn(run.collect())
        torch.save(run.trainer.state(), tmp_path / "saved.pt")
        rows = [run.collect().copy() for _ in range(12)]
        other = Trainer(config, CPU, run.trainer.env)
        saved = torch.load(tmp_path / "saved.pt", weights_only=True)
        other.load(tmp_path, saved)
        for trainer in (run.trainer, other):
            restore_random_state(saved["rng"])
            for each in rows:
                trainer.add(each)
                while trainer.learning.due:
                    trainer.step()
        for name, value in run.trainer.net.state_dict().items():
            assert torch.equal(value, other.net.state_dict()[name]), name
        learned, again = (tree_leaves(trainer.learning.state()) for trainer in (run.trainer, other))
        for value, its in zip(learned, again, strict=True):
            assert torch.equal(value, its) if isinstance(value, Tensor) else value == its


@pytest.mark.parametrize("algo", ["impala", "impact", "vmpo", "r2d2"])
def test_a_run_that_begins_from_another_has_an_empty_memory(tmp_path: Path, algo: str) -> None:
    config = run_config(tmp_path, algo)

    def contents(state: Any) -> dict[str, Tensor]:
        """Of the state of every network, by path."""
        found: dict[str, Tensor] = {}
        for name, part in state.items() if isinstance(state, dict) else ():
            found |= {f"{name}.{path}": value for path, value in contents(part).items()}
            found |= {name: part} if ".contents." in str(name) else {}
        return found

    with InProcess(config, lag=0) as run:
        for _ in range(25):
            run.learn(run.collect())
        torch.save(run.trainer.state(), tmp_path / "saved.pt")
        assert any(value.any() for name, value in contents(run.trainer.state()).items() if name.endswith("written"))
    parent = Parent("run", tmp_path / "saved.pt", torch.load(tmp_path / "saved.pt", weights_only=True))
    with InProcess(config, lag=0) as run:
        fork = Trainer(run.trainer.config, CPU, run.trainer.env, parent)
        for name, value in contents(fork.state()).items():
            assert (value < 0).all() if name.endswith("absent") else not value.any(), name
        assert fork.learning._memory.gate.any(), "the weights are the parent's"  # type: ignore[attr-defined]


@pytest.mark.parametrize("beta", [0.0, 0.75])
def test_momentum_losses_are_a_moving_average(tmp_path: Path, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcess(run_config(tmp_path, memory="momentum", momentum=beta), lag=0) as run:
        learning: Any = run.trainer.learning
        for _ in range(3):
            run.learn(run.collect())
        losses = iter([torch.full((len(learning._familiar),), value) for value in (4.0, 8.0)])
        monkeypatch.setattr(learning._contrastive, "epoch", lambda _obs, _n, _keys: next(losses))
        for each in learning._familiar:
            each.loss = None
        learning._refresh()
        assert all(float(each.loss) == 4.0 for each in learning._familiar)
        learning._refresh()
        assert all(float(each.loss) == pytest.approx(beta * 4 + (1 - beta) * 8) for each in learning._familiar)


def test_remembered_rollouts_join_the_batch_and_count_nowhere(tmp_path: Path) -> None:
    with InProcess(run_config(tmp_path, replay_share=0.5), lag=0) as run:
        learning: Any = run.trainer.learning
        inner, widths = learning._learning.add, []

        def add(rollouts: Any, steps: int) -> None:
            widths.append(rollouts.batch.mask.shape[1])
            inner(rollouts, steps)

        learning._learning.add = add
        for _ in range(30):
            run.learn(run.collect())
        assert set(widths[:3]) == {4}
        assert widths[-1] == 8
        assert run.trainer.counters.agent_steps == 30 * 4 * 8


def test_shares_that_are_no_whole_rollouts_are_right_in_the_long_run(tmp_path: Path) -> None:
    with InProcess(run_config(tmp_path, replay_share=0.1), lag=0) as run:
        learning: Any = run.trainer.learning
        joined, widths = learning._joined, []

        def counted(rollouts: Any) -> Any:
            widths.append(joined(rollouts).batch.mask.shape[1] - len(rollouts))
            return rollouts

        for _ in range(20):
            run.learn(run.collect())
        learning._joined, learning._owed = counted, 0.0
        for _ in range(27):
            run.learn(run.collect())
        assert set(widths) == {0, 1}
        assert sum(widths) == 12, "a tenth of all: 4 / 9 for each batch of 4"


class TwoHeads(Body):
    """A body of another package: a feature more, and an entry for each head."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.out_size += 1

    def forward(self, inputs: Any, core: Tensor) -> tuple[list[Tensor], Tensor]:
        [features], core = super().forward(inputs, core)
        return [torch.cat([features, features[..., :1]], -1)] * 2, core


class Plain(torch.nn.Module):
    """A torso of another package, without parameters."""

    def __init__(self, _net: Any, _env: Any) -> None:
        super().__init__()
        self.out_size = 4

    def forward(self, obs: Tensor) -> Tensor:
        return obs


@pytest.mark.parametrize("torso", ["TwoHeads", "Plain"])
def test_networks_of_other_packages_have_it_too(tmp_path: Path, torso: str) -> None:
    config = run_config(tmp_path)
    config = config.model_copy(update={"net": config.net.model_copy(update={"torso": f"{__name__}:{torso}"})})
    with InProcess(config, lag=0) as run:
        for _ in range(25):
            run.learn(run.collect())
        assert int(run.trainer.net.body.memory.contents.written) > 0


def test_on_policy_the_contents_are_those_that_acted(tmp_path: Path) -> None:
    with InProcess(run_config(tmp_path, "a2c"), lag=0) as run:
        run.trainer.net.body.memory.gate.data.fill_(0.5)
        run._keep()
        for _ in range(25):
            rows = run.collect()
            run.trainer.add(rows)
            metrics = run.trainer.step().metrics
            assert float(metrics["behaviour_kl"]) < 1e-6
            run._builder.recycle(rows)
            run._keep()
        assert int(run.trainer.net.body.memory.contents.written) > 0


# -- bad input

LSTM = ["--net.use_lstm=true"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--net.memory=knn"], "net.use_lstm false with net.memory knn: expected true"),
        (
            ["--net.memory=nkk", *LSTM],
            "got 'nkk', expected none, knn, momentum, td_error, uniform or module:NAME",
        ),
        (["--net.memory=knn", *LSTM, "--net.memory_size=4"], "net.memory_neighbours 8 with net.memory_size 4"),
        (["--net.memory=momentum", *LSTM, "--memory.contrastive_rate=0"], "memory.contrastive_rate 0.0 with net.mem"),
        (["--net.memory=knn", *LSTM, "--algo=ppo", "--memory.replay_share=0.5"], "replay_share 0.5 with algo ppo:"),
        (["--net.memory=knn", *LSTM, "--learner.unroll_length=1"], "learner.unroll_length 1 with net.memory knn"),
        (["--net.memory=knn", *LSTM, "--memory.familiar=100"], "memory.steps_per_batch 8: expected at least 128"),
        (
            ["--net.memory=knn", *LSTM, "--memory.replay_share=0.5", "--impala.replay_share=0.5"],
            "memory.replay_share 0.5 with impala.replay_share 0.5: expected 0 for one of them",
        ),
        (["--net.memory=td_error", *LSTM, "--algo=r2d2"], "net.memory td_error with r2d2.value_rescaling: expected"),
        (
            ["--net.memory=td_error", *LSTM, "--impala.popart=true", "--env=CartPole-v1,Acrobot-v1"],
            "net.memory td_error with impala.popart: expected another signal",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_sentence(flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(["--env=CartPole-v1", "--algo=impala", *flags], {})


def test_a_memory_that_is_too_large_to_travel_is_refused_with_the_sizes() -> None:
    config = RunConfig.model_validate({"net": {"use_lstm": True, "memory": "knn", "memory_size": 400_000}})
    sentence = "parameters, among them 115,200,000 of net.memory_size 400000.*expected at most 50,000,000"
    with pytest.raises(ConfigError, match=sentence):
        make_algorithm(config, VECTORS)


def test_a_signal_that_fails_is_named(tmp_path: Path) -> None:
    with InProcess(run_config(tmp_path, memory=f"{__name__}:too_few"), lag=0) as run:
        run.learn(run.collect())
        rows = run.collect()
        with pytest.raises(ConfigError, match=f"net.memory {__name__}:too_few returned .*expected 8 finite numbers"):
            run.learn(rows)


def test_td_errors_need_values(tmp_path: Path) -> None:
    config = run_config(tmp_path, "r2d2", "td_error")
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"priority_exponent": 0.0})})
    with pytest.raises(ConfigError, match=r"net\.memory td_error: expected another, because r2d2 sends no values$"):
        Trainer(config, CPU, VECTORS)
    load(["--env=CartPole-v1", "--algo=impala", "--net.memory=td_error", *LSTM, "--impala.popart=true"], {})


def test_td_errors_of_right_values_are_zero(tmp_path: Path) -> None:
    with InProcess(run_config(tmp_path, "impala", "td_error"), lag=0) as run:
        learning: Any = run.trainer.learning
        batch = Rollouts(run.collect(), run.trainer.record, run.trainer.env, CPU).batch
        ones = torch.ones_like(batch.reward)
        perfect = torch.full_like(batch.extras["value"], 1 / (1 - 0.99))
        batch = batch._replace(reward=ones, terminated=ones < 0, mask=batch.mask | True, extras={"value": perfect})
        returns, errors = learning._returns(batch)
        torch.testing.assert_close(errors, torch.zeros_like(errors), atol=1e-4, rtol=0)
        torch.testing.assert_close(returns[:, 0], (1 - 0.99 ** torch.arange(8, 0, -1)) / 0.01)
