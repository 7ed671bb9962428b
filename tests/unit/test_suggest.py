"""Suggestions for misspelt names."""

import pytest

from zerobeast.common.text import did_you_mean, suggestion


@pytest.mark.parametrize(
    ("wrong", "known", "text"),
    [
        ("PONG", ["Pong", "Ping"], "; did you mean Pong?"),
        ("batch_sise", ["learner.batch_size", "seed"], "; did you mean learner.batch_size?"),
        ("threads", ["learner.threads", "broker.threads"], "; did you mean learner.threads or broker.threads?"),
        ("health_prot", ["health.port"], "; did you mean health.port?"),
        ("evn", ["seed", "env"], "; did you mean env?"),
        ("enviroment", ["seed", "env"], "; did you mean env?"),
        ("pp0", ["a2c", "ppo", "sac"], "; did you mean ppo?"),
        ("pt0", ["a2c", "ppo", "sac"], ""),
        ("zzz", ["Pong"], ""),
    ],
)
def test_a_name_that_is_near_is_suggested(wrong: str, known: list[str], text: str) -> None:
    assert did_you_mean(wrong, known) == text


def test_if_nothing_is_near_at_most_ten_names_are_listed() -> None:
    assert suggestion("zzz", ["train", "tune"]) == "; known: train, tune"
    assert suggestion("zzz", map(str, range(60))) == "; known: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
