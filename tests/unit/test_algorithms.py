"""Algorithms of other packages: found by name or reference, checked, and with the hooks that their page promises."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import Field

from tests.build.batches import algorithm_of, make_batch
from tests.build.errors import refuses
from tests.build.starts import make_run_folder, resolve_new_run
from tests.helpers import ROOT, bring
from zerobeast.common.config.load import dump, load_config, resolve_flags, settings_help
from zerobeast.common.config.preset import choose_preset
from zerobeast.common.plugins import find_part
from zerobeast.common.settings import AlgorithmSettings, AlgorithmSpec, RunConfig, Section, setting
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.plan import run_folder
from zerobeast.rl.algos.ppo.config import PPOConfig
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.factory import begin_learning, make_algorithm
from zerobeast.rl.ops import optim

HERE = "tests.unit.test_algorithms"


class Settings(PPOConfig):
    """PPO with an entropy bonus that ends."""

    entropy_until: int = setting(1000, "agent steps after which there is no entropy bonus", ge=0)


MINE = AlgorithmSpec("mine", Settings, "mine:Mine")
TAKEN = AlgorithmSpec("dqn", Settings, "mine:Mine")
NONE = 3
OWN = AlgorithmSpec("own", type("Own", (AlgorithmSettings,), {"__module__": __name__}), "mine:Mine")


def test_an_algorithm_given_by_reference_has_settings_presets_and_relations_of_its_parent(tmp_path: Path) -> None:
    flags = ["--algo", f"{HERE}:MINE", "--env", "CartPole-v1", "--mine.entropy_until", "7"]
    config = load_config(flags, {})
    ppo = load_config(["--algo", "ppo", "--env", "CartPole-v1"], {})
    assert isinstance(config.algorithm, Settings)
    assert config.algorithm.entropy_until == 7
    assert config.preset == "classic-ppo"
    assert config.algorithm.model_dump(exclude={"entropy_until"}) == ppo.algorithm.model_dump()
    with refuses("mine.minibatches", value=9999):
        load_config([*flags, "--mine.minibatches", "9999"], {})
    file = tmp_path / "config.yaml"
    file.write_text(dump(config).replace(HERE, "not.imported"))
    for read_only in (False, True):
        with refuses("algo", value="not.imported:MINE", layer=f"file {file}: algo") as caught:
            resolve_flags(["--config", str(file)], {}, read_only=read_only)
        assert caught.paths == ["algo"]
    file.write_text(dump(config))
    for more in (["--algo", f"{HERE}:MINE"], []):
        assert load_config(["--config", str(file), *more], {}) == config


def test_a_run_of_an_algorithm_given_by_reference_continues_with_any_reference_to_it(tmp_path: Path) -> None:
    (script := tmp_path / "moved.py").write_text(f"from {HERE} import MINE as SPEC")
    make_run_folder(tmp_path, "x", "--algo", f"{HERE}:MINE", "--env", "CartPole-v1")
    run = resolve_new_run(tmp_path, "--name", "x", "--algo", f"{script}:SPEC", "--mine.entropy_until", "9")
    assert run.saved is not None
    assert (run.config.algo, run.saved.section) == (f"{script}:SPEC", "mine")
    assert (run.config.algorithm.entropy_until, run.saved.algorithm.entropy_until) == (9, 1000)  # type: ignore[attr-defined]
    with refuses("algo", value="ppo"):
        resolve_new_run(tmp_path, "--name", "x", "--algo", "ppo")


def test_settings_derived_from_those_of_an_algorithm_have_its_presets() -> None:
    again = AlgorithmSpec("again", type("Again", (Settings,), {"__module__": __name__}), "mine:Mine")
    same = AlgorithmSpec("same", PPOConfig, "mine:Mine")
    assert [choose_preset("Ant-v5", spec) for spec in (MINE, again, same)] == ["control-ppo"] * 3
    assert [spec.name for spec in again.lineage] == ["again", "mine", "ppo"]
    assert load_config(["--algo", f"{HERE}:OWN", "--env", "CartPole-v1"], {}).preset == "classic", "of the run alone"


def test_a_part_whose_package_is_missing_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    (tmp_path / "part.py").write_text("import wandb\n")
    with refuses("algo") as caught:
        resolve_flags(["--algo", f"{tmp_path}/part.py:MINE"], {})
    assert "pip install 'zerobeast[wandb]'" in str(caught.error)


@pytest.mark.parametrize("algo", [f"{HERE}:NONE", f"{HERE}:TAKEN", f"{HERE}:MIME", "no.module:X", "inpala"])
def test_what_is_no_algorithm_is_refused(algo: str) -> None:
    with refuses("algo", value=algo) as caught:
        resolve_flags(["--algo", algo], {})
    assert "\n" not in str(caught.error)


@pytest.mark.parametrize("name", ["net", "seed", "algorithm", "My-PPO", ""])
def test_an_algorithm_has_a_name_that_no_setting_of_a_run_has(name: str) -> None:
    with refuses("name", value=name):
        AlgorithmSpec(name, Settings, "mine:Mine")


class Inner(Section):
    depth: int = setting(3, "of a section in a section")


class Nested(Settings):
    inner: Inner = Inner()


NESTED = AlgorithmSpec("nested", Nested, "mine:Mine")


def test_settings_may_have_sections_or_be_none_at_all(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for name in ("nested", "own"):
        flags = ["--algo", f"{HERE}:{name.upper()}"]
        config = load_config(flags, {})
        file.write_text(dump(config))
        assert load_config(["--config", str(file), *flags], {}) == config
        file.write_text(f"{name}: 3")
        with refuses(name, value=3):
            load_config(["--config", str(file), *flags], {})


def raising(*_of_a_run: object) -> Any:
    raise KeyError("raised")


@pytest.mark.parametrize("answer", ["relations", "unused_settings", "flaw", "bound", "jump", "make", "nothing"])
def test_settings_and_makers_that_raise_or_make_nothing_are_named(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    of_settings = {} if answer in ("make", "nothing") else {answer: raising}
    kind = type("Raising", (Settings,), {"__module__": __name__, **of_settings})
    make = raising if answer == "make" else lambda *_: None
    monkeypatch.setattr(f"{HERE}.RAISING", AlgorithmSpec("raising", kind, make), raising=False)
    with refuses() as caught:
        config = load_config(["--algo", f"{HERE}:RAISING"], {})
        run_folder.refuse_changes(config, config)
        run_folder.schedule_note(config, config)
        make_algorithm(config, EnvSpec("Own-v0", ArraySpace.box((3,)), ArraySpace.discrete(2)))
    assert "algo raising" in str(caught.error)
    assert ("NoneType" if answer == "nothing" else "KeyError: 'raised'") in str(caught.error)


@pytest.mark.filterwarnings("ignore:.*shadows an attribute")
def test_settings_have_defaults_and_no_names_of_answers() -> None:
    class Odd(Settings):
        needed: int
        made: list[int] = Field(default_factory=list)
        bound: float = 1.0  # type: ignore[assignment]

    with refuses("settings", value=["needed", "made", "bound"]):
        AlgorithmSpec("odd", Odd, "mine:Mine")


def test_another_process_gets_settings_of_an_algorithm_in_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script_of_mine.py"
    script.write_text(f"{MODULES['good']}\nSPEC = GOOD")
    config = load_config(["--algo", f"{script}:SPEC", "--good.x", "7"], {})
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).algorithm.x)"
    child = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(config), capture_output=True, check=True)
    assert child.stdout == b"7\n"
    assert pickle.loads(pickle.dumps(config)) == RunConfig(**dict(config)) == config


def test_files_in_the_folder_install_nothing_beside_what_is_referred_to(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULES["good"])
    (tmp_path / "trap.py").write_text("print('sprung')")
    folder = tmp_path / "trap-1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text("[zerobeast.algorithms]\ntrap = trap:TRAP\n")
    code = "from zerobeast.common.config.load import *; load_config(['--algo', 'mine:GOOD'], {}); settings_help()"
    run = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not run.stdout


MODULES = {
    "good": (
        "from zerobeast.common.settings.algorithm import *\n"
        "class Settings(AlgorithmSettings):\n    x: int = 1\n"
        "GOOD = AlgorithmSpec('good', Settings, 'x:Y')"
    ),
    "bad": "1 / 0",
    "ends": "raise SystemExit",
}
ENTRIES = {
    "mine-0.1.0": "good = algo_good:GOOD\nbad = algo_bad:BAD\nends = algo_ends:X\ntwice = algo_good:GOOD",
    "other-1.0": "twice = algo_bad:BAD",
}


def test_installed_algorithms_are_found_despite_broken_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"algo_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with bring(tmp_path, "zerobeast.algorithms", ENTRIES):
        assert load_config(["--algo", "good"], {}).section == "good"
        assert "--good.x 1" in settings_help()
        for flags in (["--algo", "bad"], ["--algo", "ends"], ["--algo", "twice"], ["--algo", "good", "--bad.x", "1"]):
            with refuses("algo", value="bad" if "--bad.x" in flags else flags[1]):
                load_config(flags, {})


PAGE = (ROOT / "docs" / "own_algorithm.md").read_text()


@pytest.mark.parametrize("part", [optim.Adam([torch.zeros(1, requires_grad=True)]), 3])
def test_a_part_that_no_checkpoint_can_hold_is_refused_before_the_first_step(part: Any) -> None:
    algorithm = algorithm_of("ppo")
    learning = algorithm.learning(net := algorithm.network())
    learning.parts |= {"opt": part}
    algorithm.learning = lambda _: learning
    with refuses("opt"):
        begin_learning(algorithm, RunConfig(algo="ppo"), net)


def test_a_coefficient_may_fall_over_the_run_and_is_a_number_when_it_is_used(tmp_path: Path) -> None:
    flags = ["--algo", "ppo", "--ppo.entropy_cost", "linear 0.02 0", "--ppo.learning_rate", "linear 1e-3 1e-4"]
    config: Any = load_config(flags, {})
    (tmp_path / "run.yaml").write_text(dump(config))
    assert load_config(["--config", str(tmp_path / "run.yaml")], {}) == config
    assert config.algorithm.at(0.5).entropy_cost == 0.01
    assert config.algorithm.learning_rate_at(500, 1000) == pytest.approx(5.5e-4)
    for wrong in ("linear 0.1", "linear 0.1 -1", "falling 1 0"):
        with refuses("ppo.entropy_cost", value=wrong):
            load_config(["--algo", "ppo", "--ppo.entropy_cost", wrong], {})


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_a_schedule_is_followed_by_the_agent_steps_of_the_run(name: str) -> None:
    def weights(cost: Any, before: int) -> list[torch.Tensor]:
        algorithm = algorithm_of(name, entropy_cost=cost, learning_rate=0.01)
        torch.manual_seed(1)
        net = algorithm.network()
        net.agent_steps.fill_(before)
        learning = algorithm.learning(net)
        learning.add(SimpleNamespace(batch=make_batch(algorithm)), before)
        learning.step(before + 100)
        return [each.detach() for each in net.parameters()]

    for before, cost, same in ((0, 0.5, True), (500, 0.3, True), (500, 0.5, False)):
        assert all(map(torch.equal, weights("linear 0.5 0.1", before), weights(cost, before))) == same


def test_the_methods_and_fields_that_the_page_names_exist() -> None:
    rows = re.findall(r"^\| `([\w.:]+)` \| `(\w+)\(", PAGE, re.MULTILINE)
    assert len(rows) > 10
    for home, method in rows:
        assert callable(getattr(find_part("", f"zerobeast.rl.{home}", "page"), method)), (home, method)
    fields = re.search(r"### Fields of a batch\n(.*?)\n#", PAGE, re.DOTALL)
    assert fields is not None
    assert set(re.findall(r"^\| `(\w+)`", fields[1], re.MULTILINE)) >= set(Batch._fields) - {"origin"}
