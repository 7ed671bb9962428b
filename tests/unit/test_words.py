"""Errors of calls from Python name arguments, not flags."""

from pathlib import Path

import pytest

import zerobeast as zb
from zerobeast.api.words import with_arguments


@pytest.mark.parametrize(
    ("text", "worded"),
    [
        ("flag --ppo.lr: unknown setting", "ppo.lr: unknown setting"),
        ("flag --seed: got 'x', expected a number", "seed: got 'x', expected a number"),
        ("(from flag --dqn.n_step, preset atari)", "(from dqn.n_step, preset atari)"),
        ("a new one: give another --name, or --fresh", "a new one: give another name=, or fresh=True"),
        ("and --from begins a new one", "and from_run= begins a new one"),
        ("give --env 'my env.py:Walk' as well", "give env='my env.py:Walk' as well"),
        ("--by-env shows each", "by_env=True shows each"),
        ("--ppo.schedule constant holds it at --ppo.clip 0.1", "ppo.schedule constant holds it at ppo={'clip': 0.1}"),
        ("give --env /x/walk.py:Walk as well", "give env='/x/walk.py:Walk' as well"),
        ("give --env.kwargs '{\"a\": true}' as well", "give env_kwargs={'a': True} as well"),
        ("--broker.device=cpu --seed=3: no", "broker={'device': 'cpu'} seed=3: no"),
        ("(--net.torso=own.py:Torso)", "(net={'torso': 'own.py:Torso'})"),
        (
            "`beast train --name x`; to see where: python --env=X",
            "`beast train --name x`; to see where: python --env=X",
        ),
        ("a - b -- c", "a - b -- c"),
    ],
)
def test_flags_become_arguments_except_in_commands(text: str, worded: str) -> None:
    assert with_arguments(text) == with_arguments(worded) == worded


def test_calls_speak_of_their_arguments(tmp_path: Path) -> None:
    with pytest.raises(zb.ConfigError, match=r"^ppo\.lr: unknown setting; did you mean ppo\.learning_rate\?$"):
        zb.train("CartPole-v1", "ppo", root=tmp_path, ppo={"lr": 1e-3})
    with pytest.raises(zb.ConfigError, match=r"a new one needs env=$"):
        zb.start(name="x", root=tmp_path)
    with pytest.raises(zb.ConfigError, match=r"^batch_siz: unknown setting"):
        zb.start("CartPole-v1", root=tmp_path, batch_siz=3)
    with pytest.raises(zb.ConfigError, match=r"^ppo: got '3', expected a section with settings such as ppo\.\w+$"):
        zb.start("CartPole-v1", "ppo", root=tmp_path, ppo=3)
    for sentence, call in (("^out is 3", lambda: zb.record("x", 3)), ("^run is 3", lambda: zb.record(3))):  # type: ignore[arg-type]
        with pytest.raises(zb.ConfigError, match=sentence):
            call()
    with pytest.raises(zb.ConfigError, match=r"^file is \{\}, expected"):
        zb.sweep({})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    assert zb.train.__name__ == "train"
