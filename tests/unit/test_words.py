"""Errors of calls from Python name arguments, not flags."""

from functools import partial
from pathlib import Path

import pytest

import zerobeast as zb
from tests.build.errors import refused
from zerobeast.api.words import with_arguments


@pytest.mark.parametrize(
    ("text", "worded"),
    [
        ("flag --ppo.lr: unknown setting", "ppo.lr: unknown setting"),
        ("a new one: give another --name, or --fresh", "a new one: give another name=, or fresh=True"),
        ("--by-env shows each", "by_env=True shows each"),
        ("give --env.kwargs '{\"a\": true}' as well", "give env_kwargs={'a': True} as well"),
        ("`beast train --name x`: python --env=X", "`beast train --name x`: python --env=X"),
        ("a - b -- c", "a - b -- c"),
    ],
)
def test_flags_become_arguments_except_in_commands(text: str, worded: str) -> None:
    assert with_arguments(text) == with_arguments(worded) == worded


def test_calls_speak_of_their_arguments(tmp_path: Path) -> None:
    begin = partial(zb.start, root=tmp_path)
    for path, call in (
        ("ppo.lr", lambda: zb.train("CartPole-v1", "ppo", root=tmp_path, ppo={"lr": 1e-3})),
        ("name", lambda: begin(name="x")),
        ("batch_siz", lambda: begin("CartPole-v1", batch_siz=3)),
        ("ppo", lambda: begin("CartPole-v1", "ppo", ppo=3)),
        ("run", lambda: zb.record(3)),  # type: ignore[arg-type]
        ("file", lambda: zb.sweep({})),  # type: ignore[arg-type]
    ):
        with refused(path) as caught:
            call()
        assert "--" not in str(caught.error)
    assert not list(tmp_path.iterdir())
    assert zb.train.__name__ == "train"
