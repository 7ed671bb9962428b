"""Which backend makes an environment: by id, by entry point of a package or by reference, and the ways to fail."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.helpers import bring, python, wait_for_end
from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.plan.processes import child_environ, service_command
from zerobeast.services.envserver.atari import games
from zerobeast.services.envserver.catalogue import make_env, make_vector_env
from zerobeast.services.envserver.workers import WorkerVectorEnv
from zerobeast.testing.sessions import Session, session

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
    "other-1.0": "broken/* = no_such_module:BACKEND\ncourt/* = courts:NOT_ENV\nNew-v0 = courts:SINGLE",
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


def refusal(env_id: str, **settings: Any) -> str:
    """The sentence with which an environment is refused."""
    with pytest.raises(EnvError) as caught, session(env_id, settings, envs=1):
        pass
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("env.")
    return str(caught.value)


@pytest.fixture
def brought(folder: Path) -> Iterator[None]:
    entries = ENTRIES | {"other-1.0": ENTRIES["other-1.0"].replace("court/*", "o/*")}
    with bring(folder, "zerobeast.environments", entries):
        yield


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize(
    ("env_id", "named"),
    [
        ("broken/A-v0", "no_such_module"),
        ("three/A-v0", "got int"),
        ("none/A-v0", "VectorEnv"),
        ("dict/A-v0", "returned dict"),
        ("no/A-v0", "makes no single"),
        ("needy/A-v0", "'no_courts'"),
        ("cuort/Clay-v0", "court/Clay-v0?"),
    ],
)
def test_what_is_wrong_with_a_backend_is_one_sentence_and_disturbs_no_other(env_id: str, named: str) -> None:
    assert named in refusal(env_id)
    for other in ("court/Clay-v0", "New-v0", "CartPole-v9"):
        Session(other, {}, envs=1).close()


def test_two_packages_may_not_claim_the_same_ids(folder: Path) -> None:
    with bring(folder, "zerobeast.environments", ENTRIES):
        sentence = refusal("court/Clay-v0")
        Session("New-v0", {}, envs=1).close()
    assert "courts:SINGLE of court" in sentence
    assert "courts:NOT_ENV of other" in sentence


DESCRIBE = """
import json, os, select, sys
from zerobeast.common.config.load import load_config
from zerobeast.services.envserver.catalogue import make_vector_env
in_process, elsewhere, *ids = sys.argv[1:]
for env_id in ids:
    config = load_config(["--env", env_id, "--envserver.in_process", in_process], os.environ)
    env = make_vector_env(config.env, 1, 0, config.envserver)
    while not env.collect():
        select.select(env.files, (), (), 0.05)
    env.close()
    print(json.dumps(env.spec.to_wire()))
    os.chdir(elsewhere)  # as an environment might do
"""


def described(folder: Path, in_process: str, *ids: str, elsewhere: str = ".") -> tuple[list[dict[str, Any]], str]:
    """The specs of environments that a service in this folder makes, itself or in a worker process, and an error."""
    environ = {name: value for name, value in child_environ(os.environ).items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", DESCRIBE, in_process, elsewhere, *ids]
    found = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)
    return [json.loads(line) for line in found.stdout.splitlines()], found.stderr


@pytest.mark.parametrize("in_process", ["true", "false"])
def test_a_package_description_in_the_current_folder_claims_no_id(folder: Path, in_process: str) -> None:
    trap = folder / "trap-1.0.dist-info"
    trap.mkdir()
    (trap / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n")
    claims = "Blackjack-v1 = courts:SINGLE\nTrap-v0 = courts:SINGLE\n"
    (trap / "entry_points.txt").write_text(f"[zerobeast.environments]\n{claims}")
    (spec,), error = described(folder, in_process, "Blackjack-v1", "Trap-v0")
    assert spec["action"]["sizes"] == [2], "gymnasium's"
    assert "'Trap-v0' is unknown" in error


TRAIN = """
from games.walk import wrapped
from zerobeast.common.plugins import reference_to
print(reference_to(wrapped, "env"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("package", "in_process"), [(True, "false"), (False, "true")])
def test_what_is_beside_a_script_is_found_from_any_folder(tmp_path: Path, package: bool, in_process: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    games = tmp_path / "my project" / "games"
    games.mkdir(parents=True)
    if package:
        (games / "__init__.py").touch()
    (games / "walk.py").write_text("from .courts import wrapped as made\ndef wrapped():\n    return made(size=2)")
    (games / "courts.py").write_text(COURTS)
    (games.parent / "train.py").write_text(TRAIN)
    (games.parent / "mine.py").write_text(f"import beside\n{COURTS}\nif __name__ == '__main__':\n    1 / 0")
    (games.parent / "beside.py").touch()
    code, out, error = wait_for_end(python(games.parent / "train.py", cwd=tmp_path / "elsewhere"))
    assert (code, out) == (0, f"{games}.walk:wrapped\n"), error
    ids = ["my project/games.walk:wrapped", "my project/mine.py:wrapped", out.strip()]
    specs, error = described(tmp_path, in_process, *ids, elsewhere="/")
    assert [spec["env_id"] for spec in specs] == ids, error


@pytest.mark.parametrize("in_process", ["true", "false"])
def test_an_environment_inherits_no_secret_but_those_that_are_passed_on(tmp_path: Path, in_process: str) -> None:
    given = {"WANDB_API_KEY": "k", "HF_TOKEN": "t", "OPENAI_API_KEY": "k", "SIMULATOR": "s"}
    kept = f"[name for name in {[*given]} if name in os.environ]"
    (tmp_path / "own.py").write_text(f"import os\nraise SystemExit({kept})")
    environ = {**os.environ, **given, "ZEROBEAST_PASS_ON": "OPENAI_API_KEY"}  # of an env-server that is started by hand
    command = service_command("envserver", "describe", "--env=own:Env", "--envserver.in_process", in_process)
    described = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert "own cannot be imported: SystemExit: ['OPENAI_API_KEY', 'SIMULATOR']" in described.stderr


@pytest.mark.parametrize("module", ["json.decoder", "sys"])  # which is in no file
def test_a_reference_to_a_folder_never_stands_for_what_has_its_name_elsewhere(tmp_path: Path, module: str) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "decoder.py").write_text(COURTS)
    assert "ImportError: Python finds" in refusal(f"{tmp_path}/{module}:A")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "limited"),
    [("Court", False), ("wrapped", True), ("Limited", True), ("Clay-v7", True), ("CartPole-v1", True)],
)
def test_a_reference_names_a_class_a_function_or_an_id(name: str, limited: bool) -> None:
    env = make_env(f"courts:{name}", {})
    assert isinstance(env, gymnasium.wrappers.TimeLimit) == limited, "an id of its class's name has its time limit"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no_module:A", {}, "ModuleNotFoundError"),
    ("no/file.py:A", {}, "FileNotFoundError"),
    ("ends:A", {}, "SystemExit"),
    (":A", {}, "ValueError"),
    ("courts:Cuort", {}, "Court?"),
    ("courts:THREE", {}, "type int"),
    ("courts:Backend", {}, "returned Backend"),
    ("courts:Spaceless", {}, "action_space"),
    ("courts:Court", {"fails": True}, "no court"),
    ("courts:Court", {"sise": 1}, "TypeError"),
    ("ALE/Pong-v5", {"mode": 1}, "ale_py:ALE/Pong-v5"),
    ("ALE/Pong-v5", {"maxpool": "yes"}, "maxpool"),
    ("CartPole-v1", {"gravity": 1}, "gravity"),
    ("zipf/Gridworld", {"exponent": -1}, "-1"),
    ("zipf/Gridworld", {"exponent": "two"}, "'two'"),
    ("ALE/Brekout-v5", {}, "ALE/Breakout-v5"),
    ("ALE/-v5", {}, "'ALE/-v5'"),
    ("SpaceInvaderNoFrameskip-v4", {}, "SpaceInvadersNoFrameskip-v4"),
    ("Acrobot-v7", {}, "Acrobot-v1"),
    ("breakout", {}, "ALE/Breakout-v5 or BreakoutNoFrameskip-v4 or MinAtar/Breakout-v1"),
    ("MinAtar/Brekout-v1", {}, "`Breakout`"),
    ("pettingzoo/classic/conect_four_v3", {}, "pettingzoo/classic/connect_four_v3"),
    ("zipf/Gridworld-smal", {}, "zipf/Gridworld-small"),
    ("envpool/CartPol-v1", {}, "envpool/CartPole-v1"),
    ("envpool/gfootball/academy_empty_goal-v1", {}, "gfootball/academy_empty_goal"),
    ("football/academy_emty_goal", {}, "football/academy_empty_goal"),
    ("gfootball/academy_emty_goal", {}, "football/academy_empty_goal"),
    ("../../etc/passwd", {}, "'../../etc/passwd'"),
    *((raw, {}, "ALE/Pong-v5 or PongNoFrameskip-v4") for raw in ("Pong-v4", "ALE/Pong-v4")),
]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("env_id", "kwargs", "named"), WRONG)
def test_what_is_wrong_with_an_id_or_its_arguments_is_one_sentence_with_what_was_probably_meant(
    env_id: str, kwargs: dict[str, Any], named: str
) -> None:
    games()  # importing the emulator registers raw ids of Atari games with gymnasium
    assert named in refusal(env_id, kwargs=kwargs)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "PongNoFrameskip-v4", "zipf/Gridworld-small"])
def test_ids_with_a_vectorised_implementation_use_it(env_id: str) -> None:
    assert make_vector_env(EnvConfig.model_validate({"id": env_id}), 3, 0, EnvServerConfig()).processes == 0


def test_a_vectorised_implementation_with_another_autoreset_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class SameStep(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    cartpole = "gymnasium.envs.classic_control:CartPoleEnv"
    spec = gymnasium.envs.registration.EnvSpec("SameStep-v0", cartpole, vector_entry_point=SameStep)
    monkeypatch.setitem(gymnasium.registry, "SameStep-v0", spec)
    assert isinstance(make_vector_env(EnvConfig(id="SameStep-v0"), 1, 0, EnvServerConfig()), WorkerVectorEnv)


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**_: Any) -> gymnasium.Env[Any, Any]:
        raise gymnasium.error.DependencyNotInstalled('Thing is not installed, run `pip install "gymnasium[thing]"`')

    monkeypatch.setitem(gymnasium.registry, "Thing-v0", gymnasium.envs.registration.EnvSpec("Thing-v0", make))
    assert 'pip install "gymnasium[thing]"' in refusal("Thing-v0")
    for name in [name for name in sys.modules if name.partition(".")[0] == "minatar"]:
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [])
        assert "zerobeast[minatar]" in refusal("MinAtar/Breakout-v1")
    for package, env_id in (("ale_py", "ALE/Pong-v5"), ("gymnasium", "Acrobot-v1")):
        monkeypatch.setitem(sys.modules, package, None)
        assert "zerobeast[envserver]" in refusal(env_id)
