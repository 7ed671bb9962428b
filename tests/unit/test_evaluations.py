"""evaluations.csv: whatever is written is read again, and names of infos may come late."""

from pathlib import Path

from zerobeast.common.files import evaluations

FIRST = {"agent_steps": 100, "env": "CartPole-v1", "mean_return": 12.5, "stderr_return": None, "returns": [10.0, 15.0]}
LATER = {**FIRST, "agent_steps": 200, "info/is_success": 0.5, "lengths": [3, 4], "mean_return": 1e-7}


def test_a_table_grows_by_rows_and_by_names(tmp_path: Path) -> None:
    assert evaluations.read(tmp_path) == []
    for row in (FIRST, LATER):
        evaluations.append(tmp_path, [row])
    first, later = evaluations.read(tmp_path)
    assert first == {**FIRST, "info/is_success": None, "lengths": []}
    assert later == LATER


def test_an_evaluation_that_is_repeated_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    other = {**FIRST, "env": "B", "level": "rare", "mean_return": 7.5}
    evaluations.append(tmp_path, [FIRST])  # then the process was killed
    evaluations.append(tmp_path, [{**FIRST, "mean_return": 2.5, "returns": [0.5] * 20_000}, other])
    rows = [*evaluations.read(tmp_path), LATER]
    assert evaluations.scores(rows, ["CartPole-v1", "B"], "") == {100: 5.0, 200: 1e-7}
    assert evaluations.scores(rows, [""], "") == evaluations.scores(rows, ["CartPole-v1"], "") == {100: 2.5, 200: 1e-7}
    assert evaluations.scores(rows, [evaluations.first_level(", rare,CartPole-v1")], "") == {100: 7.5}
