"""The benchmarks that run the whole system: that they run, and what they report, never how fast it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from zerobeast.cli import main as cli
from zerobeast.tools.bench import scale
from zerobeast.tools.bench.memory import growth

CARTPOLE = ["--env", "CartPole-v1"]
SHORT = ["--seconds", "0.5", "--warmup", "0.2"]


def run(tmp_path: Path, *argv: str) -> dict[str, Any]:
    """The result of a benchmark, which `beast bench all` has to be able to read."""
    out = tmp_path / "result.json"
    assert cli.main(["bench", *argv, "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    assert all(figure["met"] is not None for figure in found["figures"] if figure["goal"])
    return found


def test_train_reports_its_rate_beside_the_limit(tmp_path: Path) -> None:
    result = run(tmp_path, "train", *CARTPOLE, *SHORT, "--part", "0.1")
    assert result["rate"] > 0
    assert [figure["ratio"] for figure in result["figures"][:1]] == [result["rate"] / result["machine"]["best"]]
    assert result["figures"][-1]["value"] < 1, "CPU outside the three parts"


def test_latency_reports_a_rate_for_every_distance(tmp_path: Path) -> None:
    rates = run(tmp_path, "latency", *CARTPOLE, "--seconds", "4", "--warmup", "1")["rates"]
    assert isinstance(rates, dict)
    assert list(rates) == ["0 ms", "5 ms", "20 ms"]
    assert min(rates.values()) > 0


def test_keys_reports_the_rate_without_and_with_them(tmp_path: Path) -> None:
    found = run(tmp_path, "keys", *CARTPOLE, *SHORT)
    rates = found["rates"]
    assert isinstance(rates, dict)
    assert list(rates) == ["without keys", "with keys"]
    assert all(rate > 0 for (rate,) in rates.values())
    (figure,) = found["figures"]
    assert figure["ratio"] == pytest.approx(rates["with keys"][0] / rates["without keys"][0])


def test_compare_lets_runs_take_turns(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    more = ["--against", "--actor.envs_per_group 4 --learner.batch_size 8"]
    assert cli.main(["bench", "compare", *CARTPOLE, *SHORT, *more, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [entry["flags"] for entry in found] == [
        "--env CartPole-v1",
        "--env CartPole-v1 --actor.envs_per_group 4 --learner.batch_size 8",
    ]
    assert all(rate > 0 for entry in found for rate in entry["rates"])
    assert [entry["ratio"] for entry in found] == [entry["rate"] / found[0]["rate"] for entry in found]


def test_compare_refuses_a_wrong_setting_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "compare", *CARTPOLE, "--against", "--learner.batch_size none"]) == 2
    assert "learner.batch_size" in capsys.readouterr().err


def test_scale_starts_as_many_actors_as_it_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "MOST", 2)
    rates = run(tmp_path, "scale", "--seconds", "2", "--warmup", "0.2")["rates"]
    assert isinstance(rates, dict)
    assert list(rates) == ["1", "2"]
    assert min(rates.values()) > 0


def test_memory_watches_every_service(tmp_path: Path) -> None:
    found = run(tmp_path, "memory", *CARTPOLE, "--minutes", "0.1", "--out", str(tmp_path / "memory.png"))["growth"]
    assert isinstance(found, dict)
    assert set(found) == {"learner", "broker", "envserver", "actor"}
    assert all(figures["at_end_mib"] > 10 for figures in found.values())
    assert (tmp_path / "memory.png").stat().st_size > 1000


def test_growth_is_the_slope_after_settling() -> None:
    settling = [(minute / 10, 50.0 + 3 * minute) for minute in range(100)]
    steady = [(10 + minute / 10, 350.0) for minute in range(200)]
    assert growth(settling + steady)["mib_per_hour"] == pytest.approx(0.0, abs=1e-6)
    leaking = [(minute / 10, 100.0 + minute / 10) for minute in range(300)]
    assert growth(leaking) == pytest.approx({"at_end_mib": 129.9, "mib_per_hour": 60.0})


def test_stale_trains_every_algorithm_and_repeats_itself(tmp_path: Path) -> None:
    sizes = ["--learner.batch_size", "8", "--learner.unroll_length", "20", "--total_steps", "1600"]
    for name in ("one", "again"):
        out = ["--json", str(tmp_path / name)]
        assert cli.main(["bench", "stale", "--env", "MinAtar/Breakout-v1", "--seeds", "1", *sizes, *out]) == 0
    one, again = (json.loads((tmp_path / name).read_text())["runs"] for name in ("one", "again"))
    assert [(run["algo"], run["seed"]) for run in one] == [("impala", 1), ("impact", 1)]
    assert [run["curve"] for run in one] == [run["curve"] for run in again]
    assert all(run["curve"][-1][0] == 1600 for run in one)
