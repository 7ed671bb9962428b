"""Learning with an episodic memory, around any recurrent algorithm: what is learned, sent, saved and refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import VECTORS
from tests.build.errors import refuses
from zerobeast.common.config.load import load_config
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.data import Batch, Rollouts
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.memory.contrastive import Contrastive
from zerobeast.rl.memory.learning import STATE, MemoryLearning
from zerobeast.rl.nets.body import Body
from zerobeast.rl.nets.weights import flatten
from zerobeast.services.learner.checkpoint import pack_state, restore_random_state, unpack_state
from zerobeast.services.learner.parent import Parent
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import are_same, config_of, copy_numbers
from zerobeast_tools.bench.in_process import InProcess

CPU = torch.device("cpu")
LSTM = ["--env=CartPole-v1", "--net.core=lstm", "--net.memory=knn"]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


OWN = {
    "impala": {"batches": 1, "uses": 1},
    "ppo": {"epochs": 1},
    "r2d2": {"burn_in": 0, "sequence_length": 8, "replay_min_size": 64},
}


def run_config(root: Path, algo: str = "impala", memory: str = "knn", torso: str = "auto", **own: Any) -> RunConfig:
    return config_of(
        algo,
        OWN.get(algo, {}),
        root=str(root),
        env={"id": "CartPole-v1"},
        net={"torso": torso, "core": "lstm", "memory": memory, "memory_size": 12},
        memory={"familiar": 12, "steps_per_batch": 4, "refresh_every": 2, **own},
        broker={"precision": "float32"},
        learner={"unroll_length": 8},
    )


def practise(run: InProcess, batches: int) -> None:
    for _ in range(batches):
        run.learn(run.collect())


@pytest.mark.parametrize("algo", ["impala", "a2c", "ppo", "impact", "vmpo", "r2d2"])
def test_any_recurrent_algorithm_fills_it_brokers_get_it_and_runs_from_it_do_not(tmp_path: Path, algo: str) -> None:
    share = {"replay_share": 0.25} if algo in ("impala", "impact", "vmpo") else {}
    with InProcess(run_config(tmp_path, algo, **share), lag=0) as run:
        practise(run, 12)
        trainer, memory = run.trainer, run.trainer.net.body.memory
        state = unpack_state(pack_state(trainer.state()))
    contents = memory.contents
    assert isinstance(trainer.learning, MemoryLearning)
    assert int((contents.absent == 0).sum()) == 12
    assert int(contents.written) > 12
    assert 0 < float(contents.priorities.min()) <= float(contents.priorities.max()) <= 1
    torch.testing.assert_close(contents.keys.norm(dim=-1), torch.ones(12))
    assert contents.versions.max() > contents.versions.min() >= 0
    assert memory.gate.abs().sum() > 0, "the loss uses what is reinstated"

    broker = Inference(trainer.algorithm, max_rows=4, device=CPU, dtype=torch.bfloat16, seed=1)
    broker.load(flatten(trainer.net))
    for name, value in contents.state_dict().items():
        assert torch.equal(value, broker.net.body.memory.contents.state_dict()[name]), name

    config = trainer.config.model_copy(update={"root": str(tmp_path / "fork")})
    fork = Trainer(config, CPU, trainer.env, Parent("run", tmp_path / "saved.pt", state)).net.body.memory
    assert torch.equal(fork.gate, memory.gate), "weights are the parent's"
    for name, value in fork.contents.state_dict().items():
        assert (value < 0).all() if name.endswith("absent") else not value.any(), name


@pytest.mark.parametrize(("algo", "share"), [("vmpo", 0.3), ("ppo", 0.0)])
def test_a_run_that_is_continued_is_one_that_was_never_interrupted(tmp_path: Path, algo: str, share: float) -> None:
    config = run_config(tmp_path, algo, "momentum", replay_share=share)
    with InProcess(config, lag=0) as run:
        practise(run, 9)
        saved = unpack_state(pack_state(run.trainer.state()))
        rows = [run.collect().copy() for _ in range(5)]
        other = Trainer(config, CPU, run.trainer.env)
        other.load(tmp_path, saved)
        for trainer in (run.trainer, other):
            restore_random_state(saved["rng"])
            for each in rows:
                trainer.add(each)
                while trainer.learning.due:
                    trainer.step()
        learned, again = (copy_numbers([each.net.state_dict(), each.learning.state()]) for each in (run.trainer, other))
        assert are_same(learned, again)
        heads = [state[STATE]["contrastive"]["head"] for state in (saved["learning"], run.trainer.learning.state())]
        assert not are_same(*map(copy_numbers, heads)), "it is trained"


def test_momentum_losses_are_a_moving_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter((4.0, 8.0))
    monkeypatch.setattr(Contrastive, "epoch", lambda _self, _obs, n, _keys: torch.full((n,), next(measured)))
    with InProcess(run_config(tmp_path, memory="momentum", momentum=0.75, familiar=16), lag=0) as run:
        practise(run, 2)
        losses = run.trainer.learning.state()[STATE]["familiar"]["losses"]
        assert losses.tolist() == [4.0] * len(losses)
        practise(run, 2)
        again = run.trainer.learning.state()[STATE]["familiar"]["losses"].tolist()
        assert again[: len(losses)] == [5.0] * len(losses)
        assert set(again[len(losses) :]) == {8.0}, "of a new entry there is one alone"


@pytest.mark.parametrize(("share", "each"), [(0.5, {4}), (0.1, {1})])
def test_remembered_rollouts_join_the_batch_in_the_right_share_and_count_nowhere(
    tmp_path: Path, share: float, each: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, widths = Rollouts.join_old, list[int]()

    def counted(self: Rollouts, other: Batch) -> Rollouts:
        widths.append(other.mask.shape[1])
        return joined(self, other)

    monkeypatch.setattr(Rollouts, "join_old", counted)
    with InProcess(run_config(tmp_path, replay_share=share), lag=0) as run:
        practise(run, 3)
        assert widths == [], "nothing is remembered yet"
        practise(run, 3)
        widths.clear()
        practise(run, 18)
        assert set(widths) == each
        assert sum(widths) == pytest.approx(18 * 4 * share / (1 - share), abs=1), "in the long run, if not in each"
        assert run.trainer.counters.agent_steps == 24 * 4 * 8


class Doubled(Body):
    """A body of another package, with features for each head."""

    def forward(self, inputs: Any, core: Tensor) -> tuple[list[Tensor], Tensor]:
        features, core = super().forward(inputs, core)
        return features * 2, core


@pytest.mark.parametrize("torso", ["tests.build.parts:Tokens", f"{__name__}:Doubled"])
def test_networks_of_other_packages_have_it_too(tmp_path: Path, torso: str) -> None:
    with InProcess(run_config(tmp_path, torso=torso), lag=0) as run:
        practise(run, 5)
        assert int(run.trainer.net.body.memory.contents.written) > 0


def test_on_policy_the_contents_are_those_that_acted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcess(run_config(tmp_path, "a2c"), lag=0) as run:
        step, learned = run.trainer.step, list[Any]()
        run.trainer.net.body.memory.gate.data.fill_(0.5)
        practise(run, 1)  # acted with the gate before
        monkeypatch.setattr(run.trainer, "step", lambda: learned.append(step()))
        practise(run, 15)
        assert len(learned) == 15
        assert max(float(each.metrics["behaviour_kl"]) for each in learned) < 1e-6
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
        (["--net.core=none"], "net.core"),
        (["--net.memory=nkk"], "net.memory"),
        (["--net.memory_size=4"], "net.memory_neighbours"),
        (["--net.memory=momentum", "--memory.contrastive_rate=0"], "memory.contrastive_rate"),
        (["--algo=ppo", "--memory.replay_share=0.5"], "memory.replay_share"),
        (["--learner.unroll_length=1"], "learner.unroll_length"),
        (["--memory.familiar=100"], "memory.familiar"),
        (["--memory.replay_share=0.5", "--impala.replay_share=0.5"], "memory.replay_share"),
        (["--net.memory=td_error", "--algo=r2d2"], "net.memory"),
        (["--net.memory=td_error", "--impala.popart=true", "--env=CartPole-v1,Acrobot-v1"], "net.memory"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: list[str], path: str) -> None:
    load_config(["--algo=impala", *LSTM, "--net.memory=td_error", "--impala.popart=true"], {})  # of one task
    with refuses(path):
        load_config(["--algo=impala", *LSTM, *flags], {})


def test_a_memory_too_large_to_travel_and_td_errors_without_values_are_refused(tmp_path: Path) -> None:
    config = run_config(tmp_path, "r2d2", "td_error")
    large = config.model_copy(update={"net": config.net.model_copy(update={"memory": "knn", "memory_size": 10**7})})
    uniform = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"priority_exponent": 0.0})})
    with refuses("net.max_parameters"):
        make_algorithm(large, VECTORS)
    with refuses("net.memory td_error"):
        Trainer(uniform, CPU, VECTORS)


def test_a_signal_that_fails_is_named(tmp_path: Path) -> None:
    signal = "tests.build.parts:too_few"
    with InProcess(run_config(tmp_path, memory=signal), lag=0) as run:
        practise(run, 1)
        with pytest.raises(ConfigError, match=signal):
            run.learn(run.collect())
