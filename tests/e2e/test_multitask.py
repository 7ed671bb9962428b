"""One policy for several environments, through all four services; tests/nightly has what it learns."""

import re
from pathlib import Path

from tests.build.commands import done, played

GAMES = ["MinAtar/Breakout-v1", "MinAtar/Seaquest-v1"]
SHORT = ("--plain", "--total_steps", "1000", "--learner.batch_size", "16")


def test_games_of_unequal_sizes_train_one_policy_that_is_evaluated_in_each(tmp_path: Path) -> None:
    """An env-server ends the session of an action that its game does not have, and with it the run."""
    out = done("train", "--root", tmp_path, "--env", ",".join(GAMES), "--name", "games", *SHORT)
    assert "env.pad_obs 10,10,10, env.pad_actions 6" in out
    found = played("games", "--root", tmp_path, "--episodes", "1", "--max_steps", "200")
    assert [each["env"] for each in found] == GAMES


def test_a_mix_of_games_is_one_environment_that_trains_and_is_evaluated_by_its_levels(tmp_path: Path) -> None:
    done("train", "--root", tmp_path, "--env", f"zipf({','.join(GAMES)};2)", *SHORT)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert re.fullmatch(r"zipf-MinAtar-Breakout-v1-impala-\d{8}-\d{6}", folder.name)
    levels = ("--levels", f"rare,{GAMES[0]}", "--sample", "--episodes", "1")
    assert [each["info/level"] for each in played(folder.name, "--root", tmp_path, *levels)] == [1.0, 0.0]
