"""The layers of settings: what each can set, which one wins, and how mistakes are reported."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.errors import refuses
from zerobeast.common.config.confirmations import remember
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.load import Request, check_layer, dump, load_config, resolve, resolve_flags, settings_help
from zerobeast.common.config.settings_table import TREE
from zerobeast.common.config.trust import decisive_values
from zerobeast.common.errors import BeastError
from zerobeast.common.settings import EnvConfig, RunConfig, Section, setting
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.services.envserver.frames import Frames

FRAMES = [name for name in Frames.model_fields if name not in EnvConfig.model_fields]
CLASSIC = ["--env", "CartPole-v1"]
ENV = EnvSpec("Own-v0", ArraySpace.box((3,)), ArraySpace.discrete(2))


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("preset: torchbeast\nseed: 2\nlearner: {batch_size: 4, unroll_length: 10}\nenv: Pong-v5\n")
    return path


def test_a_flag_wins_over_the_environment_over_the_file_over_the_preset_over_the_default(run_file: Path) -> None:
    environ = {"BEAST_LEARNER__BATCH_SIZE": "5", "BEAST_LEARNER__WINDOW": "3", "HOME": "/nowhere"}
    loaded = resolve_flags(["--config", str(run_file), "--learner.batch_size", "6"], environ)
    config = loaded.config
    assert (config.learner.batch_size, config.learner.window, config.learner.unroll_length) == (6, 3, 10)
    assert config.algorithm.entropy_cost == 0.0006
    assert config.learner.publish_every == RunConfig().learner.publish_every
    origins = {
        "learner.batch_size": "flag --learner.batch_size",  # also in the environment, file and preset
        "learner.window": "environment BEAST_LEARNER__WINDOW",  # also in the preset
        "learner.unroll_length": f"file {run_file}: learner.unroll_length",  # also in the preset
        "impala.entropy_cost": "preset torchbeast: impala.entropy_cost",
    }
    assert loaded.origins.items() >= origins.items()
    assert "learner.publish_every" not in loaded.origins


@pytest.mark.parametrize("flags", ["--learner.batch_size 64", "--learner.batch-size 64", "--learner.batch_size=64"])
def test_a_flag_may_be_written_in_several_ways(flags: str) -> None:
    assert load_config(flags.split(), {}).learner.batch_size == 64
    assert load_config(["--learner.batch_size", "1", *flags.split()], {}).learner.batch_size == 64


def test_values_are_converted_to_the_type_of_their_setting() -> None:
    flags = "--total_steps 1e6 --impala.learning_rate 1e-3 --net.normalize_obs --health.port 0 --name 010".split()
    config = load_config(
        [*flags, "--env.kwargs", "{mode: 1, name: x}", "--env.fire_reset", "false"], {"BEAST_SEED": "7"}
    )
    assert (config.total_steps, config.algorithm.learning_rate, config.seed) == (1_000_000, 0.001, 7)
    assert (config.net.normalize_obs, config.env.fire_reset) == (True, False)
    assert config.env.kwargs == {"mode": 1, "name": "x"}
    assert (config.name, load_config([], {"BEAST_ENV": "CartPole-v1"}).env.id) == ("010", "CartPole-v1")


BOMB = "    a0: &a0 [1]\n" + "".join(f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("seed: 1\nlearner: {batch_size: 4\n", "file"),
        ("seed: 1\nnet: {}\nseed: 2\n", "file"),
        ("- seed\n", "file"),
        ("seed: 2020-99-99\n", "file"),
        ("seed: [" + "[" * 5000, "file"),
        ("learner: &x {window: *x}\n", "file"),
        ("env:\n  kwargs:\n" + BOMB, "file"),
        ("total_steps: !!map [1]\n", "file"),
        ("seed: 1\nlearner.window: 2\nlearner: {window: 2}\n", "learner.window"),
        ("seed:\n", "seed"),
        ("name: 10\n", "name"),
        ("seed: 0x" + "f" * 5000, "seed"),
        ("seed: 1" + ":1" * 3000, "seed"),
        ('env.action_mask: "x\\nssh-ed25519 AAAA"\n', "env.action_mask"),
        ('name: "x\\e]0;mine\\a"\n', "name"),
    ],
)
def test_a_bad_file_is_refused_with_one_sentence(tmp_path: Path, text: str, path: str) -> None:
    (file := tmp_path / "run.yaml").write_text(text)
    with refuses(f"file {file}" if path == "file" else path) as caught:
        load_config(["--config", str(file)], {})
    assert len(caught.error.mistakes) == 1
    assert len(str(caught.error)) < 2000
    assert str(caught.error).isprintable()


def test_a_file_that_cannot_be_read_is_refused_and_an_empty_one_changes_nothing(tmp_path: Path) -> None:
    for name in ("missing.yaml", "."):
        with refuses(str(tmp_path / name)):
            load_config(["--config", str(tmp_path / name)], {})
    for text in ("", "# nothing\n", "learner:\n  # batch_size: 3\nnet: {}\n"):
        (tmp_path / "run.yaml").write_text(text)
        assert load_config(["--config", str(tmp_path / "run.yaml")], {}) == load_config([], {})


def test_later_files_override_earlier_ones_and_the_environment_may_name_one(tmp_path: Path, run_file: Path) -> None:
    above = tmp_path / "above.yaml"
    above.write_text("seed: 3\n")
    both = load_config(["--config", str(run_file), "--config", str(above)], {})
    assert (both.seed, both.learner.batch_size) == (3, 4)
    assert load_config([], {"BEAST_CONFIG": str(run_file)}).seed == 2
    flags = ["--config", str(above)]
    assert load_config(flags, {"BEAST_CONFIG": str(run_file)}) == load_config(flags, {})
    there = Request.of_values({"local": {"restarts": 1}}, {"BEAST_CONFIG": str(run_file)}).of_run("file x", {"seed": 5})
    assert resolve(there).config.seed == 5
    assert resolve(replace(there, files=[str(above)])).config.seed == 3
    with refuses("local.restarts", value=True):
        resolve(Request.of_values({"local": {"restarts": True}}))


def test_a_file_lies_above_its_base_which_is_near_it(tmp_path: Path) -> None:
    (file := tmp_path / "x.yaml").write_text("base: base.yaml\nlearner.batch_size: 4\nnet:\n")
    (tmp_path / "base.yaml").write_text("seed: 1\nlearner: {batch_size: 3, window: 5}\nnet: {core: lstm}\n")
    config = load_config(["--config", str(file)], {})
    assert (config.seed, config.learner.batch_size, config.learner.window, config.net.core) == (1, 4, 5, "lstm")
    for wrong in ("x.yaml", "/etc/passwd", "../../base.yaml", "[x.yaml]"):
        file.write_text(f"base: {wrong}\n")
        with refuses(f"file {file}: base"):
            load_config(["--config", str(file)], {})


def test_arguments_of_a_higher_layer_are_added_to_those_below_and_null_leaves_one_out(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: {kwargs: {target: 7, size: 5, inner: {a: 1}}, options: {level: 2}}")
    flags = [*CLASSIC, "--config", str(tmp_path / "run.yaml"), "--env.kwargs", '{"size": null, "width": null}']
    config = load_config([*flags, "--env.kwargs", '{"inner": {"b": 2}}'], {"BEAST_ENV__KWARGS": "{height: 3}"})
    assert config.env.kwargs == {"target": 7, "inner": {"b": 2}, "height": 3, "width": None}
    assert config.env.options == {"level": 2}


def test_variables_that_kubernetes_injects_are_ignored() -> None:
    environ = {
        "BEAST_BROKER_PORT": "tcp://10.0.0.1:5555",
        "BEAST_BROKER_PORT_5555_TCP_ADDR": "10.0.0.1",
        "BEAST_BROKER_SERVICE_HOST": "10.0.0.1",
        "BEAST_BROKER_SERVICE_PORT_HTTP": "80",
    }
    assert load_config([], environ) == load_config([], {})
    with refuses("health_port", layer="environment BEAST_HEALTH_PORT"):
        load_config([], {"BEAST_HEALTH_PORT": "80"})


def test_yaml_of_a_tree_reads_back_as_the_same_tree(tmp_path: Path) -> None:
    environ = {"BEAST_IMPALA__EPSILON": "1e-7"}
    given = ["--name", "on", "--env.kwargs", "{a: [1, null, é], b: {c: 1.5}}", "--net.hidden_sizes", "64,32"]
    config = load_config([*CLASSIC, *given], environ)
    assert config.net.hidden_sizes == (64, 32)
    path = tmp_path / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    remember(path, decisive_values(config))
    assert load_config(["--config", str(path)], {}) == config
    assert dump(load_config(["--config", str(path)], {})) == dump(config)


NUMBERS = {"rate": 0.001, "small": 1e-05, "big": 1e22, "text": "1e-3", "mixed": [{"a": -250.0}, "NaN"], "n": 3}
AS_JSON = '{"rate": 1e-3, "small": 0.00001, "big": 1e22, "text": "1e-3", "mixed": [{"a": -2.5E+2}, "NaN"], "n": 3}'
AS_YAML = "{rate: 1e-3, small: 1.e-05, big: 1e22, text: '1e-3', mixed: [{a: -2.5E+2}, 'NaN'], n: 3}"


@pytest.mark.parametrize("text", [AS_JSON, AS_YAML, json.dumps(NUMBERS)])
def test_numbers_in_a_mapping_are_numbers_on_every_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"name: 12e4\nenv:\n  id: CartPole-v1\n  kwargs: {text}\nalgo: ppo\nppo.learning_rate: 1e-4\n")
    remember(path, {"env.kwargs": NUMBERS})
    flag = load_config([*CLASSIC, "--env.kwargs", text], {})
    variable, file = load_config(CLASSIC, {"BEAST_ENV__KWARGS": text}), load_config(["--config", str(path)], {})
    assert repr(flag.env.kwargs) == repr(variable.env.kwargs) == repr(file.env.kwargs) == repr(NUMBERS)
    assert (file.name, file.algorithm.learning_rate) == ("12e4", 0.0001)
    seen: list[Any] = []
    for flags, environ in (([], {"BEAST_ENV__KWARGS": text}), (["--config", str(path)], {})):
        resolve_flags(
            ["--env=Own-v0", *flags], environ, describe=lambda given: seen.append(given["env.kwargs"].value) or ENV
        )
    assert repr(seen) == repr([NUMBERS, NUMBERS]), "what is described has what is trained on"
    path.write_text(dump(file))
    assert repr(load_config(["--config", str(path)], {})) == repr(file)


@pytest.mark.parametrize(("path", "text"), [("net.torso", "[mlp]"), ("env.id", "[A-v0]"), ("root", '"\\uD800"')])
def test_what_is_no_text_is_refused(tmp_path: Path, path: str, text: str) -> None:
    (file := tmp_path / "config.yaml").write_text(f"{path}: {text}")
    with refuses(path):
        load_config(["--config", str(file)], {})


@pytest.mark.parametrize("text", ['{"rate": NaN}', "{a: [-Infinity]}", "{a: .inf}"])
def test_numbers_that_are_not_finite_are_refused_on_every_path(tmp_path: Path, text: str) -> None:
    (file := tmp_path / "config.yaml").write_text(f"env: {{kwargs: {text}}}")
    environ = {"BEAST_ENV__KWARGS": text}
    for flags, given in ((["--env.kwargs", text], {}), ([], environ), (["--config", str(file)], {})):
        with refuses("env.kwargs"):
            load_config([*CLASSIC, *flags], given)


@pytest.mark.parametrize(
    "kwargs", [{"sizes": {"entropy": 1 << 64}}, {"levels": {1: "easy"}}, {"name": "\ud800"}, {"prices": [0.5] * 9000}]
)
def test_arguments_that_would_not_arrive_are_refused_before_anything_starts(kwargs: Any) -> None:
    for path in ("env.kwargs", "env.options"):
        found: list[BeastError] = []
        assert check_layer([GivenValue(path, kwargs, f"file x: {path}")], found) == ({}, {path})
        assert [(each.path, each.value) for each in found] == [(path, kwargs)]
    edges = {"most": (1 << 64) - 1, "least": -(1 << 63)}
    assert load_config([*CLASSIC, "--env.kwargs", json.dumps(edges)], {}).env.kwargs == edges


def test_help_shows_every_setting_with_default_and_meaning() -> None:
    lines = settings_help().splitlines()
    for path, field in TREE.items():
        [entry] = [line for line in lines if line.startswith(f"  --{path} ")]
        assert (field.description or "").split()[0] in entry + lines[lines.index(entry) + 1]
    assert max(map(len, lines)) <= 120


class Own(Section):
    index: int = setting(0, "which", ge=0)


def test_a_command_may_have_flags_of_its_own() -> None:
    loaded = resolve_flags(["--index", "3", "--seed", "4"], {}, own=Own)
    assert (loaded.own, loaded.config.seed) == (Own(index=3), 4)
    with refuses("index", value="-1", layer="flag --index") as caught:
        resolve_flags(["--index", "-1", "--idex", "2", "--seed", "x"], {}, own=Own)
    assert caught.paths == ["idex", "seed", "index"]
    assert "\nThis command\n  --index 0 " in settings_help(Own)


def test_only_flags_that_set_another_algorithm_are_noted() -> None:
    flags = ["--algo", "ppo", "--impala.rho_bar", "2", "--ppo.clip", "0.1", "--seed", "3"]
    (note,) = resolve_flags(flags, {}).notes
    assert note.startswith("--impala.rho_bar has no effect")
    assert resolve_flags(["--env", "CartPole-v1", "--impala.learning_rate", "1e-3"], {}).notes == ()


@pytest.mark.parametrize(
    ("env", "used"),
    [
        ("CartPole-v1", ()),
        ("zipf(MinAtar/Breakout-v1,MinAtar/Freeway-v1)", ()),
        ("football/academy_empty_goal", ("frame_stack",)),
        ("CartPole-v1,PongNoFrameskip-v4", FRAMES),
    ],
)
def test_settings_of_frames_that_no_environment_uses_are_noted(env: str, used: tuple[str, ...]) -> None:
    values = {name: Frames.model_fields[name].default or 0 for name in FRAMES} | {"frame_stack": 8}
    loaded = resolve_flags(["--env", env, *(f"--env.{name}={value}".lower() for name, value in values.items())], {})
    unused = {*FRAMES} - {*used}
    assert {name for name in FRAMES if any(f"--env.{name} " in note for note in loaded.notes)} == unused
    assert (len(loaded.notes), unused & {*type(loaded.config.env).model_fields}) == (len(unused), set())


def test_several_environments_are_one_setting_and_the_first_chooses_the_preset() -> None:
    config = load_config(["--env", "MinAtar/Breakout-v0, MinAtar/Asterix-v0"], {})
    assert config.env.id == "MinAtar/Breakout-v0,MinAtar/Asterix-v0"
    assert config.env.tasks == ("MinAtar/Breakout-v0", "MinAtar/Asterix-v0")
    for env in ("CartPole-v1,PongNoFrameskip-v4", " CartPole-v1 ,MinAtar/Breakout-v0"):
        mixed, alone = load_config(["--env", env], {}), load_config(["--env", "CartPole-v1"], {})
        assert mixed.model_copy(update={"env": alone.env}) == alone


def test_numbers_of_numpy_are_numbers_and_tuples_and_arrays_arrive_as_lists() -> None:
    kwargs = {"size": (84, np.float32(0.5)), "prices": np.array([[0.5]], np.float32), "on": np.True_, "none": None}
    given = {"seed": np.int64(3), "net.hidden_sizes": np.array([4, 5]), "env": {"kwargs": kwargs}}
    arguments = '{"size": [84, 0.5], "prices": [[0.5]], "on": true, "none": null}'
    assert flags_for(given) == ["--seed=3", "--net.hidden_sizes=[4, 5]", f"--env.kwargs={arguments}"]


@pytest.mark.parametrize(
    ("kwargs", "place"),
    [
        ({"walls": {np.int64(3): 1}}, "walls"),
        ({"folder": Path("maps")}, "folder"),
        ({"names": {"a", "b"}}, "names"),
        ({"rates": np.array([0.5, np.nan])}, "rates[1]"),
        ({"objects": np.array([{1}], object)}, "objects[0]"),
    ],
)
def test_arguments_that_would_arrive_otherwise_are_refused(kwargs: dict[str, Any], place: str) -> None:
    with refuses(f"env.kwargs.{place}"):
        flags_for({"env": {"kwargs": kwargs}})
