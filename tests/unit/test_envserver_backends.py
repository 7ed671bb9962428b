"""Environments of other packages: backends by entry point, classes and functions by reference, a sentence for each way
to fail."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.helpers import bring, finished, python
from zerobeast.common import plugins
from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.launcher.fleet import child_environ, service_command
from zerobeast.services.envserver.catalogue import make_env, make_vector_env
from zerobeast.services.envserver.vector import VectorEnv

COURTS = """
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete
from zerobeast.services.envserver.backend import Backend

class Court(gymnasium.Env):
    observation_space, action_space = Box(-9, 9, (1,)), Discrete(3)
    def __init__(self, size=1.0, fails=False):
        if fails:
            raise ValueError("no\\ncourt")
        self.size = size
    def reset(self, *, seed=None, options=None):
        return np.full(1, self.size, np.float32), {}

def make(env_id, kwargs):
    return Court(**kwargs)

SINGLE = Backend(make, ids=lambda: ["court/Clay-v0"])
NOT_VECTOR = Backend(make_vec=lambda request: request.num_envs)
NOT_ENV = Backend(make=lambda env_id, kwargs: {})
NEEDY = Backend(make_vec=lambda request: __import__("no_courts"))
NO_IDS = Backend(ids=lambda: 1 / 0)
THREE = 3

def wrapped(**kwargs):
    return gymnasium.wrappers.TimeLimit(Court(**kwargs), 5)

class Spaceless(gymnasium.Env):
    observation_space = Discrete(2)

class Limited(Court):
    pass
gymnasium.register("Limited", Limited, max_episode_steps=3)
gymnasium.register("Clay-v7", Court, max_episode_steps=3)
"""
ENTRIES = {
    "court-1.0": "court/* = courts:SINGLE\nneedy/* = courts:NEEDY\nnone/* = courts:NOT_VECTOR\n"
    "dict/* = courts:NOT_ENV\nthree/* = courts:THREE\nno/* = courts:NO_IDS\nCartPole-v9 = courts:SINGLE",
    "other-1.0": "broken/* = no_such_module:BACKEND\nends/* = ends:X\ncourt/* = courts:NOT_ENV\nNew-v0 = courts:SINGLE",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is searched for modules, with `courts`."""
    (tmp_path / "courts.py").write_text(COURTS)
    (tmp_path / "ends.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name in ("courts", "ends") or name.startswith("zerobeast_file_")]:
        del sys.modules[name]
    for name in ("Limited", "Clay-v7"):
        gymnasium.registry.pop(name, None)


def made(env_id: str, **settings: Any) -> VectorEnv:
    config = EnvConfig.model_validate({"id": env_id, **settings})
    env = make_vector_env(config, 1, 5, EnvServerConfig(in_process=True))
    while not env.collect():
        pass
    return env


def refusal(env_id: str, **settings: Any) -> str:
    """The sentence with which an environment is refused."""
    with pytest.raises(EnvError) as caught:
        made(env_id, **settings).close()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"env.id {env_id!r}")
    return str(caught.value)


@pytest.fixture
def brought(folder: Path) -> Iterator[None]:
    with bring(
        folder, "zerobeast.environments", ENTRIES | {"other-1.0": ENTRIES["other-1.0"].replace("court/*", "o/*")}
    ):
        yield


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize(
    ("env_id", "named"),
    [
        ("broken/A-v0", "no_such_module"),
        ("ends/A-v0", "SystemExit"),
        ("three/A-v0", "got int"),
        ("none/A-v0", "VectorEnv"),
        ("dict/A-v0", "returned dict"),
        ("no/A-v0", "makes no single"),
        ("needy/A-v0", "'no_courts'"),
        ("cuort/Clay-v0", "court/Clay-v0?"),
        ("a/b/c", "*NoFr"),
    ],
)
def test_what_is_wrong_with_a_backend_is_reported_in_one_sentence_and_disturbs_no_other(
    env_id: str, named: str
) -> None:
    assert named in refusal(env_id)
    for other in ("court/Clay-v0", "New-v0", "CartPole-v9"):
        made(other).close()


def test_two_packages_may_not_claim_the_same_ids(folder: Path) -> None:
    with bring(folder, "zerobeast.environments", ENTRIES):
        sentence = refusal("court/Clay-v0")
        made("New-v0").close()
    assert "courts:SINGLE of court" in sentence
    assert "courts:NOT_ENV of other" in sentence


@pytest.mark.parametrize("in_process", ["true", "false"])
def test_a_package_description_in_the_current_folder_claims_no_id(folder: Path, in_process: str) -> None:
    trap = folder / "trap-1.0.dist-info"
    trap.mkdir()
    (trap / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n")
    (trap / "entry_points.txt").write_text(
        "[zerobeast.environments]\nBlackjack-v1 = courts:SINGLE\nTrap-v0 = courts:SINGLE\n"
    )
    described = describe(folder, "--env=Blackjack-v1", "--envserver.in_process", in_process)
    assert json.loads(described.stdout)["env_id"] == "Blackjack-v1", described.stderr
    assert json.loads(described.stdout)["action"]["sizes"] == [2], "gymnasium's"
    assert b"'Trap-v0' is unknown" in describe(folder, "--env=Trap-v0").stderr


IN_A_WORKER = """
import json, os, sys
from zerobeast.common.config.load import load
from zerobeast.services.envserver.catalogue import make_vector_env
config = load(sys.argv[1:], os.environ)
env = make_vector_env(config.env, 1, 0, config.envserver)
while not env.collect():
    pass
print(json.dumps(env.spec.to_wire()))
env.close()
"""


def describe(folder: Path, *flags: str) -> "subprocess.CompletedProcess[bytes]":
    environ = {name: value for name, value in child_environ(os.environ).items() if name != "PYTHONPATH"}
    command = service_command("envserver", "describe", *flags)
    if "false" in flags:
        command = [sys.executable, "-P", "-c", IN_A_WORKER, *flags]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True)


@pytest.mark.parametrize("in_process", ["true", "false"])
def test_a_file_that_is_named_relative_to_the_current_folder_provides_environments(
    tmp_path: Path, in_process: str
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "mine.py").write_text(f"import beside\n{COURTS}\nif __name__ == '__main__':\n    1 / 0")
    (tmp_path / "scripts" / "beside.py").touch()
    flags = ("--env=scripts/mine.py:wrapped", "--env.kwargs={size: 2}", "--envserver.in_process", in_process)
    described = describe(tmp_path, *flags)
    assert json.loads(described.stdout)["env_id"] == "scripts/mine.py:wrapped", described.stderr


TRAIN = """
from games.walk import wrapped
from zerobeast.common.plugins import reference_to
print(reference_to(wrapped, "env"))
"""


@pytest.mark.parametrize(("package", "in_process"), [(True, "false"), (False, "true")])
def test_a_class_in_a_package_beside_a_script_is_found_from_any_folder(
    tmp_path: Path, package: bool, in_process: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    games = tmp_path / "my project" / "games"
    games.mkdir(parents=True)
    if package:
        (games / "__init__.py").touch()
    (games / "walk.py").write_text("from .courts import wrapped as made\ndef wrapped():\n    return made(size=2)")
    (games / "courts.py").write_text(COURTS)
    (games.parent / "train.py").write_text(TRAIN)
    code, out, error = finished(python(games.parent / "train.py", cwd=tmp_path / "elsewhere"))
    assert (code, out) == (0, f"{games}.walk:wrapped\n"), error
    described = describe(tmp_path / "elsewhere", f"--env={out.strip()}", "--envserver.in_process", in_process)
    assert json.loads(described.stdout)["env_id"] == out.strip(), described.stderr
    described = describe(tmp_path, "--env=my project/games.walk:wrapped", "--envserver.in_process", in_process)
    assert described.returncode == 0, described.stderr


@pytest.mark.parametrize("in_process", ["true", "false"])
def test_an_environment_inherits_no_secret_but_those_that_are_passed_on(tmp_path: Path, in_process: str) -> None:
    seen = (
        'kept = [name for name in ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "SIMULATOR") if name in os.environ]'
    )
    (tmp_path / "own.py").write_text(f"import os\n{seen}\nraise SystemExit(kept)")
    given = {"WANDB_API_KEY": "k", "HF_TOKEN": "t", "OPENAI_API_KEY": "k", "SIMULATOR": "s"}
    environ = {**os.environ, **given, "ZEROBEAST_PASS_ON": "OPENAI_API_KEY"}  # of an env-server that is started by hand
    command = service_command("envserver", "describe", "--env=own:Env", "--envserver.in_process", in_process)
    described = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert "own cannot be imported: SystemExit: ['OPENAI_API_KEY', 'SIMULATOR']" in described.stderr


@pytest.mark.parametrize("module", ["json.decoder", "sys"])  # which is in no file
def test_a_reference_to_a_folder_never_stands_for_what_has_its_name_elsewhere(tmp_path: Path, module: str) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "decoder.py").write_text(COURTS)
    assert "ImportError: Python finds" in refusal(f"{tmp_path}/{module}:A")


def test_what_is_described_by_hand_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text("raise SystemExit('taken')")
    flags = ("-m", "zerobeast.services.envserver", "describe", "--env=CartPole-v1")
    code, _, error = finished(python(*flags, cwd=tmp_path))
    assert code == 0, error


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "limited"),
    [("Court", False), ("wrapped", True), ("Limited", True), ("Clay-v7", True), ("CartPole-v1", True)],
)
def test_a_reference_names_a_class_a_function_or_an_id(name: str, limited: bool) -> None:
    env = make_env(f"courts:{name}", {})
    assert isinstance(env, gymnasium.wrappers.TimeLimit) == limited, "an id of its class's name has its time limit"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("env_id", "kwargs", "named"),
    [
        ("no_module:A", {}, "ModuleNotFoundError"),
        ("no/file.py:A", {}, "FileNotFoundError"),
        ("ends:A", {}, "SystemExit"),
        (":A", {}, "ValueError"),
        ("courts:Cuort", {}, "Court?"),
        ("courts:", {}, "''"),
        ("courts:THREE", {}, "type int"),
        ("courts:Backend", {}, "returned Backend"),
        ("courts:Spaceless", {}, "action_space"),
        ("courts:Court", {"fails": True}, "no court"),
        ("courts:Court", {"sise": 1}, "TypeError"),
    ],
)
def test_what_is_wrong_with_a_reference_is_reported_in_one_sentence(
    env_id: str, kwargs: dict[str, Any], named: str
) -> None:
    assert named in refusal(env_id, kwargs=kwargs)


def test_an_environment_that_changes_the_folder_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "roams.py").write_text(
        f"{COURTS}\nimport os\nclass Roams(Court):\n    def reset(self, **_):\n        return 0, os.chdir('/')"
    )
    monkeypatch.chdir(tmp_path)
    plugins.start_folder.cache_clear()
    try:
        for _ in range(2):
            make_env("roams.py:Roams", {}).reset()
    finally:
        plugins.start_folder.cache_clear()
