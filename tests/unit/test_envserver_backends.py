"""Environments of other packages: backends by entry point, classes and functions by reference, a sentence for each way
to fail."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
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
from functools import partial
from gymnasium.spaces import Box, Discrete
from zerobeast.services.envserver.backend import Backend
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.spaces import env_spec

class Court(gymnasium.Env):
    observation_space, action_space = Box(-9, 9, (1,)), Discrete(3)
    def __init__(self, size=1.0, fails=False):
        if fails:
            raise ValueError("no\\ncourt")
        self.size = size
    def reset(self, *, seed=None, options=None):
        return np.full(1, self.size, np.float32), {}
    def step(self, action):
        return np.full(1, action, np.float32), 1.0, False, False, {}

class Courts(InlineEnvs):  # ends every second step, and restarts as every row after an episode's last does
    def __init__(self, config, num_envs, seed):
        super().__init__(env_spec(config.id, Court.observation_space, Court.action_space), num_envs)
        self.t, self.seed = np.zeros(num_envs, int), seed
    def reset(self, seed=None, options=None, only=None):
        self.fill_first(np.full((self.num_envs, 1), float(self.seed)))
    def begin_step(self, actions):
        self.actions = actions
    def finish_step(self):
        first, self.t = self.t == 2, (self.t + 1) % 3
        ended, no = self.t == 2, np.zeros(self.num_envs, bool)
        self.episodes = self.statistics.update(np.ones(self.num_envs), first, ended)
        self.fill(self.actions[:, None].astype(np.float32), np.ones(self.num_envs), ended, no, first)
    def close(self):
        raise RuntimeError("closed badly")

def make(env_id, kwargs):
    return Court(**kwargs)

def make_vec(request):
    return InlineVectorEnv(partial(Courts, request.config), request.num_envs, request.seed, 2)

SINGLE = Backend(make, ids=lambda: ["court/Clay-v0"])
VECTOR = Backend(make_vec=make_vec)
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
    "court-1.0": "court/* = courts:SINGLE\nvector/* = courts:VECTOR\nneedy/* = courts:NEEDY\n"
    "none/* = courts:NOT_VECTOR\n"
    "dict/* = courts:NOT_ENV\nthree/* = courts:THREE\nno/* = courts:NO_IDS\nCartPole-v* = courts:VECTOR",
    "other-1.0": "broken/* = no_such_module:BACKEND\nends/* = ends:X\ncourt/* = courts:VECTOR\nNew-v0 = courts:VECTOR",
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


def made(env_id: str, num_envs: int = 1, *, in_process: bool = False, **settings: Any) -> VectorEnv:
    config = EnvConfig.model_validate({"id": env_id, **settings})
    env = make_vector_env(config, num_envs, 5, EnvServerConfig(in_process=in_process, workers=1))
    finish(env)
    return env


def finish(env: VectorEnv) -> None:
    while not env.collect():
        select.select(env.files, (), (), 0.1)


def end(env: VectorEnv) -> None:
    env.close()
    while not env.closed(force=True):
        select.select((), (), (), 0.01)


def refusal(env_id: str, **settings: Any) -> str:
    with pytest.raises(EnvError) as caught:
        end(made(env_id, in_process=True, **settings))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def brought(folder: Path) -> Iterator[None]:
    with bring(
        folder, "zerobeast.environments", ENTRIES | {"other-1.0": ENTRIES["other-1.0"].replace("court/*", "o/*")}
    ):
        yield


@pytest.mark.usefixtures("brought")
def test_a_vector_environment_of_another_package_steps_in_the_server_with_its_own_autoreset() -> None:
    for env_id in ("vector/Clay-v0", "New-v0", "CartPole-v9"):
        env = made(env_id, 3)
        assert (env.processes, env.spec.env_id, env.rows["obs"].tolist()) == (0, env_id, [[5], [5], [7]])
        seen = []
        env.reset()
        finish(env)
        for action in (0, 1, 2):
            env.step(np.full(3, action))
            finish(env)
            row = env.rows[2]
            seen.append([float(row["obs"][0]), float(row["reward"]), bool(row["terminated"]), bool(row["first"])])
        assert seen == [[0, 1, False, False], [1, 1, True, False], [2, 0, False, True]]
        end(env)


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize("in_process", [True, False])
def test_single_environments_of_another_package_are_made_where_they_step(in_process: bool) -> None:
    env = made("court/Clay-v0", 2, in_process=in_process, kwargs={"size": 3.0})
    env.reset()
    finish(env)
    assert env.rows["obs"].tolist() == [[3], [3]]
    end(env)


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("broken/A-v0", "env.id 'broken/A-v0', backend no_such_module:BACKEND: no_such_module cannot be imported: "),
        ("ends/A-v0", "env.id 'ends/A-v0', backend ends:X: ends cannot be imported: SystemExit: "),
        ("three/A-v0", "env.id 'three/A-v0', backend courts:THREE: expected a Backend, got int"),
        ("none/A-v0", "env.id 'none/A-v0', backend courts:NOT_VECTOR: make_vec returned 1, no VectorEnv"),
        (
            "dict/A-v0",
            "env.id 'dict/A-v0': expected a gymnasium.Env, or an environment of PettingZoo, but what makes it returned",
        ),
        ("no/A-v0", "env.id 'no/A-v0': its backend makes no single ones, "),
        ("needy/A-v0", "env.id 'needy/A-v0' cannot be made: ModuleNotFoundError: No module named 'no_courts'"),
        ("cuort/Clay-v0", "env.id 'cuort/Clay-v0' is unknown; did you mean court/Clay-v0?"),
        ("a/b/c", "env.id 'a/b/c' is unknown: no installed backend claims it (patterns of ids: *, */*, *NoFr"),
    ],
)
def test_what_is_wrong_with_a_backend_is_reported_in_one_sentence_and_disturbs_no_other(
    env_id: str, sentence: str
) -> None:
    assert refusal(env_id).startswith(sentence)
    end(made("court/Clay-v0", in_process=True))


@pytest.mark.usefixtures("brought")
def test_what_its_constructor_raises_is_a_sentence() -> None:
    sentence = "env.id 'court/Clay-v0' cannot be made: ValueError: no court"
    assert refusal("court/Clay-v0", kwargs={"fails": True}) == sentence


def test_two_packages_may_not_claim_the_same_ids(folder: Path) -> None:
    with bring(folder, "zerobeast.environments", ENTRIES):
        assert refusal("court/Clay-v0") == (
            "env.id 'court/Clay-v0', backend court/*: two packages bring one of this name, courts:SINGLE of court and "
            "courts:VECTOR of other: expected one"
        )
        end(made("New-v0"))


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


def test_a_reference_to_a_folder_never_stands_for_what_has_its_name_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "decoder.py").write_text(COURTS)
    assert "json.decoder cannot be imported: ImportError: Python finds that of " in refusal(
        f"{tmp_path}/json.decoder:A"
    )


def test_a_reference_to_a_folder_never_stands_for_a_module_without_a_file(tmp_path: Path) -> None:
    assert "sys cannot be imported: ImportError: Python finds its own first" in refusal(f"{tmp_path}/sys:A")


def test_what_is_described_by_hand_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text("raise SystemExit('taken')")
    flags = ("-m", "zerobeast.services.envserver", "describe", "--env=CartPole-v1")
    code, _, error = finished(python(*flags, cwd=tmp_path))
    assert code == 0, error


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "limit"),
    [("Court", None), ("wrapped", 5), ("Limited", 3), ("Clay-v7", 3), ("CartPole-v1", 500)],
)
def test_a_reference_names_a_class_a_function_or_an_id(name: str, limit: int | None) -> None:
    env = make_env(f"courts:{name}", {})
    steps = {"CartPole-v1": 500}.get(name, limit)
    found: Any = env
    while not hasattr(found, "_max_episode_steps") and hasattr(found, "env"):
        found = found.env
    assert getattr(found, "_max_episode_steps", None) == steps, "an id of its class's name has its time limit"


@pytest.mark.parametrize(
    ("env_id", "kwargs", "sentence"),
    [
        ("no_module:A", {}, "no_module cannot be imported: ModuleNotFoundError: No module named 'no_module'"),
        ("no/file.py:A", {}, "no/file.py cannot be imported: FileNotFoundError: [Errno 2] No such file or directory: "),
        ("ends:A", {}, "ends cannot be imported: SystemExit: "),
        (":A", {}, " cannot be imported: ValueError: Empty module name"),
        ("courts:Cuort", {}, "courts has no 'Cuort' and registers no such id; did you mean Court?"),
        ("courts:", {}, "courts has no '' and registers no such id"),
        ("courts:THREE", {}, "expected a class or function, but THREE is of type int"),
        (
            "courts:Backend",
            {},
            "expected a gymnasium.Env, or an environment of PettingZoo, but what makes it returned Backend",
        ),
        ("courts:Spaceless", {}, "expected a gymnasium.Space as action_space of Spaceless"),
        ("courts:Court", {"fails": True}, "cannot be made: ValueError: no court"),
        ("courts:Court", {"sise": 1}, "cannot be made: TypeError: Court.__init__() got an unexpected keyword"),
    ],
)
def test_what_is_wrong_with_a_reference_is_reported_in_one_sentence(
    folder: Path, env_id: str, kwargs: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(env_id, kwargs=kwargs)
    assert refusal(env_id, kwargs=kwargs).startswith(f"env.id {env_id!r}")


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
