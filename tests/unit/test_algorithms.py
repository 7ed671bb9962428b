"""Algorithms of other packages: found by name or reference, with one sentence for each way to fail."""

import subprocess
import sys
from pathlib import Path

import pytest

from zerobeast.common.algos.ppo.config import SPEC, PPOConfig
from zerobeast.common.config.load import dump, gather, load
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.algorithm import AlgorithmSpec
from zerobeast.common.settings.section import setting
from zerobeast.common.settings.tree import RunConfig

HERE = "tests.unit.test_algorithms"


class Settings(PPOConfig):
    """PPO with an entropy bonus that ends."""

    entropy_until: int = setting(1000, "agent steps after which there is no entropy bonus", ge=0)


MINE = AlgorithmSpec("mine", Settings, "mine:Mine", SPEC)
TAKEN = AlgorithmSpec("dqn", Settings, "mine:Mine")
NONE = 3


def test_an_algorithm_given_by_reference_has_settings_presets_and_relations_of_its_parent(tmp_path: Path) -> None:
    flags = ["--algo", f"{HERE}:MINE", "--env", "CartPole-v1", "--mine.entropy_until", "7"]
    config = load(flags, {})
    ppo = load(["--algo", "ppo", "--env", "CartPole-v1"], {})
    assert isinstance(config.algorithm, Settings)
    assert config.algorithm.entropy_until == 7
    assert config.preset == "classic-ppo"
    assert config.algorithm.model_dump(exclude={"entropy_until"}) == ppo.algorithm.model_dump()
    with pytest.raises(ConfigError, match=r"^mine.minibatches 9999 is above learner.batch_size"):
        load([*flags, "--mine.minibatches", "9999"], {})
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    assert load(["--config", str(file), "--algo", f"{HERE}:MINE"], {}) == config
    with pytest.raises(ConfigError) as refused:
        load(["--config", str(file)], {})
    assert str(refused.value).splitlines() == [
        f"file {file}: algo: '{HERE}:MINE' imports a module, which a file may not decide alone: "
        f"say --algo {HERE}:MINE as well"
    ]
    with pytest.raises(ConfigError, match="imports a module"):
        load(["--config", str(file)], {}, read_only=True)


@pytest.mark.parametrize(
    ("algo", "sentence"),
    [
        (f"{HERE}:NONE", f"algo {HERE}:NONE: expected an AlgorithmSpec, got int"),
        (f"{HERE}:TAKEN", f"algo {HERE}:TAKEN: another algorithm has its name, dqn: expected a name of its own"),
        (f"{HERE}:MIME", f"algo {HERE}:MIME: {HERE} has no 'MIME'; did you mean MINE?"),
        ("no.module:X", "algo no.module:X: no.module cannot be imported: ModuleNotFoundError: No module named 'no'"),
        ("inpala", "flag --algo: algo 'inpala': expected impala, a2c, ppo, vmpo, impact, dqn, c51, rainbow, "),
    ],
)
def test_what_is_no_algorithm_is_refused_in_one_sentence(algo: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gather(["--algo", algo], {})
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["net", "seed", "My-PPO", ""])
def test_an_algorithm_has_a_name_that_no_setting_of_a_run_has(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^algorithm '{name}': expected a name of lower-case letters"):
        AlgorithmSpec(name, Settings, "mine:Mine")


def test_settings_of_an_algorithm_are_part_of_the_tree() -> None:
    config = RunConfig.model_validate({"algo": "ppo", "ppo": {"clip": 0.3}})
    assert RunConfig.model_validate(config.model_dump()) == config
    assert [name for name in config.model_dump() if name in ("ppo", "impala", "algorithm")] == ["ppo"]


MODULES = {
    "good": (
        "from zerobeast.common.settings.algorithm import *\n"
        "class Settings(AlgorithmSettings):\n    x: int = 1\n"
        "GOOD = AlgorithmSpec('good', Settings, 'x:Y')"
    ),
    "bad": "1 / 0",
}
ENTRIES = {"zerobeast-0.1.0": "good = good:GOOD\nbad = bad:BAD\ntwice = good:GOOD", "other-1.0": "twice = bad:BAD"}
PROGRAM = """
from zerobeast.common.config.load import load, settings_help
from zerobeast.common.errors import ConfigError
print(load(["--algo", "good"], {}).section, "--good.x 1" in settings_help())
for flags in (["--algo", "bad"], ["--algo", "twice"], ["--bad.x", "1", "--algo", "good"], []):
    try:
        load(flags, {})
    except ConfigError as error:
        print(error)
"""


def test_installed_algorithms_are_found_without_any_of_ours_and_broken_ones_disturb_no_others(tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name, entries in ENTRIES.items():  # the first of a distribution's name counts, so ours have no entry points
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        package, version = name.split("-")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (folder / "entry_points.txt").write_text(f"[zerobeast.algorithms]\n{entries}\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    broken = "algo bad: bad cannot be imported: ZeroDivisionError: division by zero"
    assert out == [
        "good True",
        f"flag --algo: {broken}",
        "flag --algo: algo twice: two packages bring one of this name, good:GOOD of zerobeast and bad:BAD of other: "
        "expected module:NAME",
        broken,
        "the defaults: algo 'impala': expected good, bad, twice or module:NAME",
    ]
