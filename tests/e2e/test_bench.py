"""A benchmark of the whole system runs and has figures, never how fast it was; tests/nightly has the others."""

import json
from pathlib import Path

from zerobeast.cli import main as cli

CARTPOLE = ["--env", "CartPole-v1"]
SHORT = ["--seconds", "0.5", "--warmup", "0.2"]


def test_train_reports_its_rate_beside_the_limit(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert cli.main(["bench", "train", *CARTPOLE, *SHORT, "--part", "0.1", "--json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["figures"][0]["ratio"] == result["rate"] / result["machine"]["best"] > 0


def test_compare_lets_runs_take_turns_and_refuses_a_wrong_setting_before_any_runs(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert cli.main(["bench", "compare", *CARTPOLE, "--against", "--learner.batch_size none"]) == 2
    more = ["--against", "--actor.envs_per_group 4 --learner.batch_size 8"]
    assert cli.main(["bench", "compare", *CARTPOLE, *SHORT, *more, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [entry["ratio"] for entry in found] == [entry["rate"] / found[0]["rate"] for entry in found]
