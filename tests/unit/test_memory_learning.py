"""Learning with an episodic memory, around any recurrent algorithm: what is learned, sent, saved and refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.build.batches import VECTORS
from zerobeast.common.config.load import load
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.data.rollouts import Rollouts
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.memory.contrastive import Contrastive
from zerobeast.rl.memory.learning import STATE, MemoryLearning
from zerobeast.rl.memory.rarity import Familiar
from zerobeast.rl.nets.body import Body
from zerobeast.rl.nets.weights import flatten
from zerobeast.services.learner.checkpoint import restore_random_state
from zerobeast.services.learner.parent import Parent
from zerobeast.services.learner.update import Trainer
from zerobeast.tools.bench.in_process import InProcess

CPU = torch.device("cpu")
LSTM = ["--env=CartPole-v1", "--net.use_lstm=true", "--net.memory=knn"]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def run_config(root: Path, algo: str = "impala", memory: str = "knn", torso: str = "auto", **own: Any) -> RunConfig:
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
            "net": {
                "torso": torso,
                "use_lstm": True,
                "lstm_size": 8,
                "hidden_size": 8,
                "memory": memory,
                "memory_size": 12,
            },
            "memory": {"familiar": 40, "steps_per_batch": 4, "refresh_every": 2, **own},
            "broker": {"precision": "float32"},
            "learner": {"precision": "float32", "unroll_length": 8, "batch_size": 4},
            **({algo: small[algo]} if algo in small else {}),
        }
    )


def practise(run: InProcess, batches: int) -> None:
    for _ in range(batches):
        run.learn(run.collect())


@pytest.fixture(scope="module", params=["impala", "a2c", "ppo", "impact", "vmpo", "r2d2"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A run of any recurrent algorithm, after 30 batches."""
    torch.manual_seed(1)
    share = {"replay_share": 0.25} if request.param in ("impala", "impact", "vmpo") else {}
    with InProcess(run_config(tmp_path_factory.mktemp("runs"), request.param, **share), lag=0) as made:
        practise(made, 30)
        yield made


def test_any_recurrent_algorithm_fills_it_and_learns_with_it(run: InProcess) -> None:
    memory = run.trainer.net.body.memory
    contents = memory.contents
    assert isinstance(run.trainer.learning, MemoryLearning)
    assert int((contents.absent == 0).sum()) == 12
    assert int(contents.written) > 12
    assert 0 < float(contents.priorities.min()) <= float(contents.priorities.max()) <= 1
    torch.testing.assert_close(contents.keys.norm(dim=-1), torch.ones(12))
    assert contents.versions.max() > contents.versions.min() >= 0
    assert memory.gate.abs().sum() > 0, "the loss uses what is reinstated"


def test_brokers_have_the_learners_contents_after_each_version(run: InProcess) -> None:
    trainer = run.trainer
    broker = Inference(trainer.algorithm, max_rows=4, device=CPU, dtype=torch.bfloat16, seed=1)
    broker.load(snapshot := flatten(trainer.net))
    ours, theirs = (net.body.memory.contents.state_dict() for net in (trainer.net, broker.net))
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name
    memory = sum(value.numel() * (8 if value.dtype == torch.int64 else 4) for value in ours.values())
    plain = trainer.config.model_copy(update={"net": trainer.config.net.model_copy(update={"memory": "none"})})
    gate = 4 * trainer.net.body.memory.gate.numel()
    assert snapshot.nbytes == flatten(Trainer(plain, CPU, trainer.env).net).nbytes + memory + gate


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """The tensors of all networks in a state, by path."""
    if isinstance(state, dict):
        return {name: value for key, part in state.items() for name, value in tensors(part, f"{path}.{key}").items()}
    return {path: state} if isinstance(state, Tensor) else {}


def test_a_run_that_begins_from_another_has_an_empty_memory(tmp_path: Path, run: InProcess) -> None:
    torch.save(run.trainer.state(), tmp_path / "saved.pt")
    parent = Parent("run", tmp_path / "saved.pt", torch.load(tmp_path / "saved.pt", weights_only=True))
    config = run.trainer.config.model_copy(update={"root": str(tmp_path)})
    found = tensors(Trainer(config, CPU, run.trainer.env, parent).state())
    contents = {name: value for name, value in found.items() if ".contents." in name}
    assert contents.keys() == {name for name in tensors(run.trainer.state()) if ".contents." in name}
    for name, value in contents.items():
        assert (value < 0).all() if name.endswith("absent") else not value.any(), name
    assert any(value.any() for name, value in found.items() if name.endswith("memory.gate")), "weights are the parent's"


@pytest.mark.parametrize("algo", ["impala", "vmpo", "ppo"])
def test_a_run_that_is_continued_is_one_that_was_never_interrupted(tmp_path: Path, algo: str) -> None:
    share = 0.0 if algo == "ppo" else 0.3
    config = run_config(tmp_path, algo, "momentum", replay_share=share)
    with InProcess(config, lag=0) as run:
        practise(run, 20)
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
        states = ([trainer.net.state_dict(), trainer.learning.state()] for trainer in (run.trainer, other))
        learned, again = map(tree_leaves, states)
        for value, its in zip(learned, again, strict=True):
            assert torch.equal(value, its) if isinstance(value, Tensor) else value == its


@pytest.mark.parametrize("beta", [0.0, 0.75])
def test_momentum_losses_are_a_moving_average(tmp_path: Path, beta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter((4.0, 8.0))
    monkeypatch.setattr(Contrastive, "epoch", lambda _self, _obs, n, _keys: torch.full((n,), next(measured)))
    with InProcess(run_config(tmp_path, memory="momentum", momentum=beta), lag=0) as run:
        practise(run, 2)
        losses = run.trainer.learning.state()[STATE]["familiar"]["losses"]
        assert losses.tolist() == [4.0] * len(losses)
        practise(run, 2)
        again = run.trainer.learning.state()[STATE]["familiar"]["losses"].tolist()
        assert again[: len(losses)] == pytest.approx([beta * 4 + (1 - beta) * 8] * len(losses))
        assert set(again[len(losses) :]) == {8.0}, "of a new entry there is one alone"


@pytest.mark.parametrize(("share", "each"), [(0.5, {4}), (0.1, {1})])
def test_remembered_rollouts_join_the_batch_in_the_right_share_and_count_nowhere(
    tmp_path: Path, share: float, each: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, widths = Rollouts.joined_by, list[int]()

    def counted(self: Rollouts, other: Batch) -> Rollouts:
        widths.append(other.mask.shape[1])
        return joined(self, other)

    monkeypatch.setattr(Rollouts, "joined_by", counted)
    with InProcess(run_config(tmp_path, replay_share=share), lag=0) as run:
        practise(run, 3)
        assert widths == [], "nothing is remembered yet"
        practise(run, 17)
        widths.clear()
        practise(run, 27)
        assert set(widths) == each
        assert sum(widths) == pytest.approx(27 * 4 * share / (1 - share), abs=1), (
            "in the long run, if not in each batch"
        )
        assert run.trainer.counters.agent_steps == 47 * 4 * 8


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
    with InProcess(run_config(tmp_path, torso=f"{__name__}:{torso}"), lag=0) as run:
        practise(run, 25)
        assert int(run.trainer.net.body.memory.contents.written) > 0


def test_on_policy_the_contents_are_those_that_acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcess(run_config(tmp_path, "a2c"), lag=0) as run:
        step, divergences = run.trainer.step, list[float]()

        def observed() -> Any:
            learned = step()
            divergences.append(float(learned.metrics["behaviour_kl"]))
            return learned

        run.trainer.net.body.memory.gate.data.fill_(0.5)
        practise(run, 1)  # acted with the gate before
        monkeypatch.setattr(run.trainer, "step", observed)
        practise(run, 25)
        assert len(divergences) == 25
        assert max(divergences) < 1e-6
        assert int(run.trainer.net.body.memory.contents.written) > 0


def test_td_errors_of_right_values_are_zero(tmp_path: Path) -> None:
    with InProcess(run_config(tmp_path, "impala", "td_error"), lag=0) as run:
        learning: Any = run.trainer.learning
        batch = Rollouts(run.collect(), run.trainer.record, run.trainer.env, CPU).batch
        ones = torch.ones_like(batch.reward)
        perfect = torch.full_like(batch.extras["value"], 1 / (1 - 0.99))
        batch = batch._replace(reward=ones, terminated=ones < 0, mask=batch.mask | True, extras={"value": perfect})
        returns, errors = learning.returns(batch)
        torch.testing.assert_close(errors, torch.zeros_like(errors), atol=1e-4, rtol=0)
        torch.testing.assert_close(returns[:, 0], (1 - 0.99 ** torch.arange(8, 0, -1)) / 0.01)


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        (["--net.use_lstm=false"], "net.use_lstm"),
        (["--net.memory=nkk"], "net.memory"),
        (["--net.memory_size=4"], "net.memory_neighbours"),
        (["--net.memory=momentum", "--memory.contrastive_rate=0"], "memory.contrastive_rate"),
        (["--algo=ppo", "--memory.replay_share=0.5"], "memory.replay_share"),
        (["--learner.unroll_length=1"], "learner.unroll_length"),
        (["--memory.familiar=100"], "memory.steps_per_batch"),
        (["--memory.replay_share=0.5", "--impala.replay_share=0.5"], "memory.replay_share"),
        (["--net.memory=td_error", "--algo=r2d2"], "net.memory"),
        (["--net.memory=td_error", "--impala.popart=true", "--env=CartPole-v1,Acrobot-v1"], "net.memory"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: list[str], path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        load(["--algo=impala", *LSTM, *flags], {})


def test_of_one_task_td_errors_fit_popart() -> None:
    load([*LSTM, "--algo=impala", "--net.memory=td_error", "--impala.popart=true"], {})


def test_a_memory_that_is_too_large_to_travel_is_refused_with_the_sizes() -> None:
    config = RunConfig.model_validate({"net": {"use_lstm": True, "memory": "knn", "memory_size": 400_000}})
    with pytest.raises(ConfigError, match="115,200,000"):
        make_algorithm(config, VECTORS)


def too_few(familiar: Familiar) -> Tensor:
    return familiar.returns[1:]


def test_a_signal_that_fails_is_named(tmp_path: Path) -> None:
    signal = f"{__name__}:too_few"
    with InProcess(run_config(tmp_path, memory=signal), lag=0) as run:
        practise(run, 1)
        rows = run.collect()
        with pytest.raises(ConfigError, match=signal):
            run.learn(rows)


def test_td_errors_need_values(tmp_path: Path) -> None:
    config = run_config(tmp_path, "r2d2", "td_error")
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"priority_exponent": 0.0})})
    with pytest.raises(ConfigError, match="td_error"):
        Trainer(config, CPU, VECTORS)
