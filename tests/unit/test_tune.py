"""`beast tune` climbs along a dimension and leaves a file that `beast train` reads."""

from pathlib import Path

import pytest

from zerobeast.common.config.load import load
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast_tools import tune
from zerobeast_tools.bench.train import Training
from zerobeast_tools.tune import DIMENSIONS, Values


def test_the_choice_is_a_file_that_train_reads_and_if_nothing_trains_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate(flags: list[str], _warmup: float, _seconds: float) -> Training:
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
    out.unlink()
    with pytest.raises(ConfigError):
        tune.main([*argv, "--learner.batch_size", "4"])
    assert not out.exists()


def _to_16(best: Values) -> list[Values]:
    size = best["learner.batch_size"]
    return [{**best, "learner.batch_size": value} for value in (4, min(16, 2 * size))]
