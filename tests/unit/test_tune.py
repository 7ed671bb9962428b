"""`beast tune`: how it climbs, what it leaves alone, and what it says about bad input."""

import math
from pathlib import Path

import pytest

from zerobeast.common.config.load import load
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast_tools import tune
from zerobeast_tools.bench.train import Training
from zerobeast_tools.tune import DIMENSIONS, THREADS, Trial, Values, climb

SHARED_OUT = dict.fromkeys(THREADS, 1)
START: Values = {
    "local.placement": "fused",
    **SHARED_OUT,
    "broker.precision": "auto",
    "learner.precision": "auto",
    "actor.env_groups": 2,
    "actor.envs_per_group": 16,
    "learner.batch_size": 8,
}


class Machine:
    """A made-up machine: its rate is best at 64 environments, a batch of 16, 4 learner threads and bfloat16."""

    def __init__(self) -> None:
        self.tried: list[Values] = []

    def measure(self, values: Values) -> Trial:
        self.tried.append(values)
        values = SHARED_OUT | values
        best = {"actor.envs_per_group": 64, "learner.batch_size": 16, "learner.threads": 4}
        rate = 1000.0 if values["local.placement"] == "apart" else 900.0
        for setting, value in best.items():
            rate /= 1 + abs(math.log2(values[setting] / value))
        rate *= {"auto": 1.0, "float32": 0.9, "bfloat16": 2.0}[values["learner.precision"]]
        return Trial(values, rate)


def test_it_finds_the_best_of_each_dimension_and_tries_nothing_twice() -> None:
    machine = Machine()
    best = climb(START, list(DIMENSIONS), set(), machine.measure).values
    assert (best["actor.envs_per_group"], best["learner.batch_size"], best["learner.threads"]) == (64, 16, 4)
    assert best["learner.precision"] == best["broker.precision"] == "bfloat16"
    assert best["local.placement"] == "apart"
    assert best["actor.env_groups"] == 2  # made no difference, so it stays
    assert all(machine.tried.count(values) == 1 for values in machine.tried)
    assert len(machine.tried) < 40


def test_given_settings_dimensions_not_asked_for_and_changes_within_the_noise_stay() -> None:
    machine = Machine()
    best = climb(START, ["threads", "envs"], {"actor.envs_per_group", "broker.threads"}, machine.measure).values
    assert best == START | {"learner.threads": 4}
    assert {values["broker.threads"] for values in machine.tried} == {1}
    barely = climb(START, ["groups"], set(), lambda values: Trial(values, 1000.0 + values["actor.env_groups"]))
    assert barely.values == START


def test_the_choice_is_a_file_that_train_reads_and_if_nothing_trains_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def rate(flags: list[str], _warmup: float, _seconds: float) -> Training:
        seen.append(flags)
        size = load(flags, {}).learner.batch_size
        if size in (4, 32):
            raise BeastError("training did not start")
        return Training(float(size), {}, {}, 1.0)

    monkeypatch.setattr(tune, "measure_training", rate)
    monkeypatch.setattr(tune, "DIMENSIONS", {"batch": DIMENSIONS["batch"]._replace(candidates=_to_16)})
    out = tmp_path / "tuned.yaml"
    argv = ["--env", "CartPole-v1", "--learner.unroll_length", "5", "--only", "batch", "--out", str(out)]
    assert tune.main(argv) == 0
    assert load(["--config", str(out)], {}).learner.batch_size == 16
    assert all(flags[:4] == argv[:4] for flags in seen)
    out.unlink()
    with pytest.raises(ConfigError):
        tune.main([*argv, "--learner.batch_size", "4"])
    assert not out.exists()


def _to_16(best: Values) -> list[Values]:
    size = best["learner.batch_size"]
    return [{**best, "learner.batch_size": value} for value in (4, min(16, 2 * size))]
