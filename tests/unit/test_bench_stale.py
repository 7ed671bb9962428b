"""`beast bench stale`: which policy acts, how often a batch is used, and how a curve is judged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.nets.weights import Bytes, flatten, load_flat
from zerobeast.rl.protocol import Algorithm
from zerobeast.tools import bench
from zerobeast.tools.bench import stale
from zerobeast.tools.bench.in_process import InProcess
from zerobeast.tools.bench.stale_report import Curve, SeedRun, describe, summaries

T, B = 10, 4
UPDATES = 7


def configs(*argv: str, algo: str = "impala") -> list[RunConfig]:
    sizes = ["--learner.unroll_length", str(T), "--learner.batch_size", str(B), "--net.hidden_size", "8"]
    options, flags = stale._parse([*sizes, "--env", "CartPole-v1", "--total_steps", str(UPDATES * T * B), *argv])
    return stale._configs(algo, options, flags)


def config(*argv: str, algo: str = "impala") -> RunConfig:
    return configs(*argv, algo=algo)[0]


def replayed(algorithm: Algorithm, weights: Bytes, rows: NDArray[Any]) -> NDArray[Any]:
    """[B, T, A]: logits of a policy with these weights in a rollout, step by step."""
    net = algorithm.network().eval()
    load_flat(net, weights)
    core = torch.from_numpy(rows["core_state"].copy())
    logits = []
    for t in range(T):
        seen = (rows[name][:, t].copy() for name in ("obs", "last_action", "reward", "first"))
        with torch.inference_mode():
            answer, core = net(StepInput(*(torch.from_numpy(entry)[None] for entry in seen)), core)
        logits.append(answer.logits[0].numpy())
    return np.stack(logits, axis=1)


@pytest.mark.parametrize("algo", ["impala", "impact"])
@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("use_lstm", ["false", "true"])
def test_the_acting_policy_is_bit_for_bit_the_one_of_lag_updates_ago(algo: str, lag: int, use_lstm: str) -> None:
    with InProcess(config("--net.use_lstm", use_lstm, "--net.lstm_size", "8", algo=algo), lag) as run:
        past = [flatten(run.trainer.net)]
        for update in range(UPDATES):
            rows = run.collect()
            acting = max(0, update - lag)
            assert (rows["policy_version"] == acting).all()
            for version, weights in enumerate(past):
                same = np.array_equal(replayed(run.trainer.algorithm, weights, rows), rows["logits"])
                assert same is (version == acting)
            run.learn(rows)
            past.append(flatten(run.trainer.net))
        assert run.trainer.steps_left == 0


def test_rollouts_follow_one_another_without_a_gap() -> None:
    with InProcess(config(), lag=2) as run:
        before = run.collect().copy()
        for _ in range(UPDATES):
            rows = run.collect().copy()
            for name in ("obs", "first", "reward", "terminated", "truncated", "last_action"):
                np.testing.assert_array_equal(rows[name][:, 0], before[name][:, -1])
            before = rows


def test_a_seed_decides_every_number() -> None:
    def outcome(seed: int) -> tuple[list[bytes], bytes, Curve]:
        with InProcess(config("--seed", str(seed), algo="impact"), lag=2) as run:
            rollouts = []
            for _ in range(UPDATES):
                rows = run.collect()
                rollouts.append(rows.tobytes())
                run.learn(rows)
            weights = flatten(run.trainer.net).tobytes()
        large = config("--seed", str(seed), "--learner.batch_size", "32", "--total_steps", "6400", algo="impact")
        return rollouts, weights, stale.train(large, 2, goal=30.0).curve

    one, again, other = outcome(1), outcome(1), outcome(2)
    assert one == again
    assert len(one[2]) > 3
    assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("algo", ["impala", "impact"])
def test_every_batch_is_learned_from_as_often_as_asked(algo: str) -> None:
    with InProcess(config("--uses", "3", algo=algo), lag=1) as run:
        steps = [run.trainer.counters.optimizer_steps for _ in range(5) if run.learn(run.collect()) is None]
        assert steps == [1, 3, 6, 9, 12]


def test_the_users_own_flags_and_seeds_come_last() -> None:
    first, second = configs("--seeds", "2", "--seed", "7", "--uses", "3", "--impala.batches", "6", "--algo", "ppo")
    assert (first.algo, first.algorithm.uses, first.algorithm.batches) == ("impala", 3, 6)
    assert (first.seed, second.seed) == (7, 8)
    assert config("--uses", "3", algo="impact").algorithm.batches == 3
    assert config("--uses", "3", algo="vmpo").algo == "vmpo"


@pytest.mark.parametrize(("flag", "value"), [("--seeds", "0"), ("--lag", "-1"), ("--uses", "0")])
def test_invalid_flags_are_refused(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag} {value}: expected at least"):
        bench.main(["stale", flag, value])


def run_of(*values: float, goal: float = 100.0, diverged: bool = False) -> SeedRun:
    curve = [(1000 * (n + 1), value) for n, value in enumerate(values)]
    return SeedRun.of("impala", 1, curve, goal=goal, diverged=diverged, rate=5000.0)


def test_a_run_is_judged_by_its_best_its_end_and_when_it_reached_the_goal() -> None:
    found = run_of(20.0, 120.0, 200.0, 101.0)
    assert (found.best, found.last, found.reached, found.collapsed) == (200.0, 101.0, 2000, False)
    assert run_of(20.0, 200.0, 99.0).collapsed
    assert run_of(20.0, 90.0).reached is None


def test_negative_returns_and_runs_without_episodes_are_no_collapse_but_overflow_is() -> None:
    assert not run_of(-200.0, -1200.0).collapsed
    assert run_of()[2:6] == (None, None, None, False)
    assert run_of(diverged=True).collapsed


def test_over_the_seeds_a_run_without_a_figure_counts_as_the_worst() -> None:
    runs = [run_of(50.0, 150.0), run_of(120.0, 130.0, 40.0), run_of(90.0)]
    (found,) = summaries(runs).values()
    assert found["best"] == {"median": 130.0, "min": 90.0, "max": 150.0}
    assert found["reached"] == {"median": 2000, "min": 1000, "max": None}
    assert (found["runs"], found["runs_reached"], found["runs_collapsed"]) == (3, 2, 1)
    assert "impala: 2 of 3 reached the goal, 1 collapsed" in describe(runs)


def test_the_command_shows_every_run_and_writes_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_all(configs: list[RunConfig], lag: int, goal: float) -> list[SeedRun]:
        assert lag == 3
        return [run_of(50.0, 150.0, goal=goal)._replace(algo=c.algo, seed=c.seed) for c in reversed(configs)]

    monkeypatch.setattr(stale, "_run_all", run_all)
    out = tmp_path / "result.json"
    argv = ["--algos", "impact,impala", "--seeds", "2", "--lag", "3", "--goal", "60", "--json", str(out)]
    assert bench.main(["stale", *argv]) == 0
    result = json.loads(out.read_text())
    assert [(run["algo"], run["seed"]) for run in result["runs"]] == [
        ("impact", 1),
        ("impact", 2),
        ("impala", 1),
        ("impala", 2),
    ]
    assert result["runs"][0]["curve"] == [[1000, 50.0], [2000, 150.0]]
    assert list(result["algos"]) == ["impact", "impala"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["impact", "1", "150.0", "150.0", "2,000", "-", "5,000"]
