"""What a call in Python names: environments, algorithms, and what of them other processes and files may name again."""

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGTERM
from types import ModuleType

import gymnasium
import pytest

from tests.build.errors import refuses
from zerobeast.common import plugins
from zerobeast.common.config import trust
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.load import resolve_flags
from zerobeast.rl.algos.ppo.config import SPEC as PPO

ENV = """
import gymnasium

class Walk(gymnasium.Env):
    def __init__(self, size=1): self.size = size

def make(**kwargs): return Walk(**kwargs)

lazily = lambda: Walk()
"""
UNKNOWN = "-".join(("Elsewhere", "v0"))  # which this file must not contain
SPEC = """
from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl.algos.ppo.config import PPOConfig

class Own(PPOConfig):
    bonus: float = setting({1}, "weight")

SPEC = AlgorithmSpec("{0}", Own, "zerobeast.rl.algos.ppo.algorithm:PPO")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of scripts, which Python finds; what is imported from there is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def module(folder: Path, name: str, text: str) -> ModuleType:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_an_environment_is_given_as_what_makes_it_with_its_arguments(folder: Path) -> None:
    walks = module(folder, "walks_a", ENV)
    walk, made = f"--env={folder}/walks_a.py:Walk", f"--env={folder}/walks_a.py:make"
    assert flags_for({"env": walks.Walk}) == [walk]
    assert flags_for({"env": walks.lazily}) == [f"--env={folder}/walks_a.py:lazily"]
    assert flags_for({"env": walks.make, "env_kwargs": {"size": 5}}) == [made, '--env.kwargs={"size": 5}']
    bound = partial(partial(walks.Walk, size=3), size=4)
    assert flags_for({"env": bound}) == ['--env.kwargs={"size": 4}', walk]
    config = resolve_flags(flags_for({"env": bound, "env_kwargs": {"depth": 1}, "preset": "classic"}), {}).config
    assert config.env.kwargs == {"size": 4, "depth": 1}
    given = flags_for({"env": {"id": "CartPole-v1", "frame_stack": 2}, "algo": "ppo"})
    assert given == ["--env.id=CartPole-v1", "--env.frame_stack=2", "--algo=ppo"]


def test_what_no_other_process_could_make_is_refused(folder: Path) -> None:
    walk = module(folder, "walks_b", ENV).Walk
    for env in (lambda: walk(), walk(size=3), partial(walk, 3)):
        with refuses("env", value=env):
            flags_for({"env": env})
    assert flags_for({"env": gymnasium.make}) == ["--env=gymnasium.envs.registration:make"]


def test_an_id_is_found_in_the_module_whose_calls_register_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "names_a": "# gymnasium.register('Long-v10')\nIDS = ['Long-v1', 'Long-v10']\ngymnasium = 'register'",
        "longer": f"{ENV}\ngymnasium.register('Long-v10', Walk)",
        "long": f"{ENV}\ngymnasium.register(id='Long-v1', entry_point='longer:Walk')",
        "loop": f"{ENV}\nfor size in (1, 2): gymnasium.register(f'Looped{{size}}-v0', Walk)",
        "foreign": "import gymnasium\ngymnasium.register('Pole-v7', 'gymnasium.envs.classic_control:CartPoleEnv')",
    }.items():
        module(folder, name, text)
    for env_id, home in {"Long-v1": "long", "Long-v10": "longer", "Looped2-v0": "loop", "Pole-v7": "foreign"}.items():
        assert flags_for({"env": env_id}) == [f"--env={folder}/{home}.py:{env_id}"]
    gymnasium.register(UNKNOWN, entry_point="longer:Walk")
    with refuses("env", value=UNKNOWN):
        flags_for({"env": UNKNOWN})
    script = ModuleType("__main__")
    (folder / "script.py").write_text(f"gymnasium.register('{UNKNOWN}', entry_point='longer:Walk')")
    script.__file__ = str(folder / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert flags_for({"env": UNKNOWN}) == [f"--env={folder}/script.py:{UNKNOWN}"]
    for env_id in ("CartPole-v1", "None-v0", "MinAtar/Breakout-v1"):
        assert flags_for({"env": env_id}) == [f"--env={env_id}"]


def test_an_object_is_referred_to_where_it_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(folder, "early", "")
    spec = module(folder, "spec_a", SPEC.format("spec_a", 0.5)).SPEC
    for name in ("early", "__main__"):
        monkeypatch.setattr(sys.modules[name], "SPEC", spec, raising=False)
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])  # as multiprocessing does
    assert flags_for({"algo": spec}) == [f"--algo={folder}/spec_a.py:SPEC"]
    assert plugins.reference_to(PPO, "algo") == "zerobeast.rl.algos.ppo.config:SPEC"
    for stray in (replace(spec, name="stray"), SIGTERM.value):  # modules have that number
        with refuses("algo", value=stray):
            plugins.reference_to(stray, "algo")


def test_a_file_that_was_edited_is_read_anew_by_the_next_call(folder: Path) -> None:
    file = folder / "spec_b.py"
    flags = ["--algo", f"{file}:SPEC", "--env", "CartPole-v1"]
    found = []
    for number, weight in enumerate((0.5, 0.25)):
        file.write_text(SPEC.format("spec_b", weight))
        os.utime(file, ns=(number, number))
        plugins.reread()
        found += [resolve_flags(flags, {}).config.algorithm.bonus for _ in range(2)]  # type: ignore[attr-defined]
    assert found == [0.5, 0.5, 0.25, 0.25]
    file.write_text("raise RuntimeError")
    os.utime(file, ns=(3, 3))
    assert resolve_flags(flags, {}).config.section == "spec_b", "a run that goes on is not disturbed"


def test_what_calls_in_this_process_were_given_needs_no_flag_in_a_file(folder: Path) -> None:
    def is_refused(reference: str, path: str = "env.id") -> bool:
        one = GivenValue(path, reference, f"file {folder}/gift/config.yaml: {path}")
        return bool(trust.refusals([one], {path: one}))

    file = folder / "walks_d.py"
    file.write_text(ENV + "from os import abort\nhelper = 3\n")
    module = importlib.import_module("walks_d")
    assert is_refused(f"{file}:Walk"), "it is imported, but nothing was made of it"
    assert plugins.reference_to(module.Walk, "env") == f"{file}:Walk"
    assert not is_refused(f"{file}:Walk")
    assert not is_refused(f"{file}:Walk,CartPole-v1")
    assert not is_refused(f"{file}:Walk", "net.torso")
    for other in (
        *(f"{file}:abort", f"{file}:helper", f"{file}:make", "os:abort", "zerobeast:train", "gymnasium:make"),
        f"{file}:Walk,evil.py:Walk",
        f"evil/({file}:Walk",
        f"{folder}/walks_d .py:Walk",
        f"evil,{file}:Walk(;)",
    ):
        assert is_refused(other), other
    assert is_refused(f"evil/a,{file}:Walk", "net.torso")
