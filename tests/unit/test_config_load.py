"""The layers of settings: what each can set, which one wins, and how mistakes are reported."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from zerobeast.common.config.confirmed import remember
from zerobeast.common.config.layers import Given
from zerobeast.common.config.load import check, differences, dump, gather, load, settings_help
from zerobeast.common.config.table import TREE
from zerobeast.common.config.trust import decisive
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.env import FRAMES, EnvConfig
from zerobeast.common.settings.section import Section, setting
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

CLASSIC = ["--env", "CartPole-v1"]
ENV = EnvSpec("Own-v0", ArraySpace.box((3,)), ArraySpace.discrete(2))


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("preset: torchbeast\nseed: 2\nlearner: {batch_size: 4, unroll_length: 10}\nenv: Pong-v5\n")
    return path


def mistakes(argv: list[str], environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(argv, environ or {})
    return str(caught.value).splitlines()


def test_a_flag_wins_over_the_environment_over_the_file_over_the_preset_over_the_default(run_file: Path) -> None:
    environ = {"BEAST_LEARNER__BATCH_SIZE": "5", "BEAST_LEARNER__WINDOW": "3", "HOME": "/nowhere"}
    loaded = gather(["--config", str(run_file), "--learner.batch_size", "6"], environ)
    config = loaded.config
    assert config.learner.batch_size == 6  # also in the environment, file and preset
    assert config.learner.window == 3  # also in the preset
    assert config.learner.unroll_length == 10  # also in the preset
    assert config.algorithm.entropy_cost == 0.0006  # in the preset
    assert config.learner.publish_every == RunConfig().learner.publish_every
    assert config.env.id == "Pong-v5"
    assert loaded.origins["learner.batch_size"] == "flag --learner.batch_size"
    assert loaded.origins["learner.window"] == "environment BEAST_LEARNER__WINDOW"
    assert loaded.origins["learner.unroll_length"] == f"file {run_file}: learner.unroll_length"
    assert loaded.origins["impala.entropy_cost"] == "preset torchbeast: impala.entropy_cost"
    assert "learner.publish_every" not in loaded.origins


@pytest.mark.parametrize(
    "flags",
    [
        ["--learner.batch_size", "64"],
        ["--learner.batch-size", "64"],
        ["--learner.batch_size=64"],
        ["--learner.batch_size", "1", "--learner.batch_size", "64"],
    ],
)
def test_a_flag_may_be_written_in_several_ways(flags: list[str]) -> None:
    assert load(flags, {}).learner.batch_size == 64


def test_values_are_converted_to_the_type_of_their_setting() -> None:
    flags = "--total_steps 1e6 --impala.learning_rate 1e-3 --net.use_lstm --health.port 0 --name 010".split()
    config = load([*flags, "--env.kwargs", "{mode: 1, name: x}", "--env.fire_reset", "false"], {"BEAST_SEED": "7"})
    assert (config.total_steps, config.algorithm.learning_rate, config.seed) == (1_000_000, 0.001, 7)
    assert (config.net.use_lstm, config.env.fire_reset) == (True, False)
    assert config.env.kwargs == {"mode": 1, "name": "x"}
    assert config.name == "010"


@pytest.mark.parametrize(("flags", "environ"), [(CLASSIC, {}), ([], {"BEAST_ENV": "CartPole-v1"})])
def test_env_alone_is_the_environments_id(flags: list[str], environ: dict[str, str]) -> None:
    assert load(flags, environ).env.id == "CartPole-v1"


def test_every_mistake_of_every_layer_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("learner: {batch_size: many, batch_sise: 3}\nbroker: 5\nlerner: {threads: 1}\n")
    environ = {"BEAST_LEARNER__UNROLL_LENGTH": "0", "BEAST_SEDE": "1", "BEAST_LEARNER_WINDOW": "2", "BEAST_CONFG": "x"}
    environ |= {"BEAST_ENV": "CartPole-v1", "BEAST_ENV__ID": "CartPole-v1"}
    flags = ["--config", str(path), "--learner.batch_size", "8", "--impala.reduction", "max", "--broker.endpoint", "x"]
    assert sorted(mistakes([*flags, "--learner.threds", "2", "--seed"], environ)) == sorted(
        [
            f"file {path}: learner.batch_size: got 'many', expected a whole number, at least 1 and at most 65536",
            f"file {path}: learner.batch_sise: unknown setting; did you mean learner.batch_size?",
            f"file {path}: broker: got 5, expected a section with settings such as broker.endpoint",
            f"file {path}: lerner: unknown setting; did you mean learner?",
            "environment BEAST_LEARNER__UNROLL_LENGTH: got '0', expected a whole number, at least 1 and at most 10000",
            "environment BEAST_ENV__ID: the same setting as BEAST_ENV; expected it once",
            "environment BEAST_CONFG: unknown setting; did you mean config?",
            "environment BEAST_SEDE: unknown setting; did you mean seed?",
            "environment BEAST_LEARNER_WINDOW: unknown setting; did you mean learner.window?",
            "flag --impala.reduction: got 'max', expected sum or mean",
            "flag --broker.endpoint: got 'x', expected tcp://host:port (port 1 to 65530) or ipc://path",
            "flag --learner.threds: unknown setting; did you mean learner.threads?",
            "flag --seed: expected a value behind it",
        ]
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--seed", "true"], "flag --seed: got 'true', expected a whole number, at least 0 and at most 2147483647"),
        (["--seed", "1.5"], "flag --seed: got '1.5', expected a whole number, at least 0 and at most 2147483647"),
        (["--net.use_lstm", "maybe"], "flag --net.use_lstm: got 'maybe', expected true or false"),
        (
            ["--impala.discount", "1.1"],
            "flag --impala.discount: got '1.1', expected a number, at least 0 and at most 1",
        ),
        (["--impala.alpha", "1"], "flag --impala.alpha: got '1', expected a number, at least 0 and below 1"),
        (["--impala.epsilon", "inf"], "flag --impala.epsilon: got 'inf', expected a number, above 0"),
        (["--impala.epsilon", "nan"], "flag --impala.epsilon: got 'nan', expected a number, above 0"),
        (["--env.kwargs", "5"], "flag --env.kwargs: got 5, expected a mapping such as {name: value}"),
        (["--env.kwargs", "{a"], "flag --env.kwargs: got '{a', expected a mapping such as {name: value}"),
        (
            ["--env", " "],
            "flag --env: got ' ', expected an environment id such as PongNoFrameskip-v4, or several with commas",
        ),
        (["--env", "a, b,a"], "flag --env: got 'a, b,a', expected each environment once"),
        *(
            (["--net.hidden_sizes", text], f"flag --net.hidden_sizes: got '{text}', expected at most 8 widths such as ")
            for text in ("64,0", "64,x", "true", "1,2,3,4,5,6,7,8,9")
        ),
        (["--name", "a/b"], "flag --name: got 'a/b', expected letters, digits, '.', '_' and '-', at most 100"),
        (["--learner.device", "gpu"], "flag --learner.device: got 'gpu', expected auto, cpu, cuda or cuda:N"),
        (["--batch_sise", "3"], "flag --batch_sise: unknown setting; did you mean batch_size?"),
        (["--device", "cpu"], "flag --device: unknown setting; did you mean broker.device or learner.device?"),
        (["--frobnicate"], "flag --frobnicate: unknown setting"),
        (["runs/x"], "argument 'runs/x': expected a flag such as --learner.batch_size 32"),
        (["-s", "1"], "argument '-s': expected a flag such as --learner.batch_size 32"),
        *(
            (
                [word],
                f"argument {word!r}: expected a flag such as --learner.batch_size 32; did you mean --{flag} {word}?",
            )
            for word, flag in (
                ("CartPole-v1", "env"),
                ("ALE/Pong-v5", "env"),
                ("my_module:Walk", "env"),
                ("ppo", "algo"),
            )
        ),
        (["--config"], "flag --config: expected a file behind it"),
        (["--preset"], "flag --preset: expected a value behind it"),
    ],
)
def test_a_mistake_is_named_with_its_place_its_value_and_what_was_expected(flags: list[str], sentence: str) -> None:
    assert mistakes(flags)[0].startswith(sentence)


@pytest.mark.parametrize("text", ["64,32", "[64, 32]"])
def test_a_list_is_text_with_commas_or_a_list(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"net: {{hidden_sizes: {text if text[0] == '[' else repr(text)}}}")
    both = load(["--config", str(path)], {}), load(["--net.hidden_sizes", text], {})
    path.write_text(dump(both[0]))
    assert {config.net.hidden_sizes for config in (*both, load(["--config", str(path)], {}))} == {(64, 32)}
    assert "--net.hidden_sizes 64,32 " in settings_help(config=both[0], origins=defaultdict(str))


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(mistakes(["--seed", "9" * 9999])[0]) < 250


BOMB = "    a0: &a0 [1]\n" + "".join(f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("seed: 1\nlearner: {batch_size: 4\n", ", line 3: not valid YAML: expected ',' or '}', but got '<stream end>'"),
        ("seed: 1\nnet: {}\nseed: 2\n", ", line 3: not valid YAML: 'seed' stands twice"),
        ("- seed\n", ": expected settings such as 'seed: 1', got ['seed']"),
        ("seed: 2020-99-99\n", ": not valid YAML: month must be in 1..12"),
        ("seed: \x07\n", ": not valid YAML: unacceptable character #x0007: special characters are not allowed"),
        ("seed: [" + "[" * 5000, ": not valid YAML: maximum recursion depth exceeded"),
        ("seed: 1\nlearner.window: 2\nlearner: {window: 2}\n", ": learner.window: the same setting as learner.window;"),
        ("seed:\n", ": seed: got None, expected a whole number, at least 0 and at most 2147483647"),
        ("seed: true\n", ": seed: got True, expected a whole number, at least 0 and at most 2147483647"),
        ("name: 10\n", ": name: got 10, expected text"),
        ("preset: atarii\n", "unknown; did you mean atari?"),
        ("learner: &x {window: *x}\n", ", line 1: not valid YAML: expected a value without alias and tag, got '*x'"),
        ("env:\n  kwargs: &x {a: *x}\n", ", line 2: not valid YAML: expected a value without alias and tag, got '*x'"),
        ("env:\n  kwargs:\n" + BOMB, ", line 4: not valid YAML: expected a value without alias and tag, got '*a0'"),
        ("seed: 1\ntotal_steps: !!timestamp x\n", ", line 2: not valid YAML: expected a value without alias and tag"),
        ("total_steps: !!map [1]\n", ", line 1: not valid YAML: expected a value without alias and tag, got '!!map ["),
        ("seed: 0x" + "f" * 5000, ": seed: got '0xfffff"),
        ("seed: 1" + ":1" * 3000, ": seed: got '1:1:1:1"),
        ("seed: 1" + ":1" * 300 + ".0", ": seed: got '1:1:1:1"),
        ("seed: 12:30\n", ": seed: got '12:30', expected a whole number"),
        (
            'env.action_mask: "x\\nssh-ed25519 AAAA"\n',
            "AAAA', expected text without control characters",
        ),
        ('name: "x\\e]0;mine\\a"\n', ": name: got 'x\\x1b]0;mine\\x07', expected text without control characters"),
    ],
)
def test_a_bad_file_is_refused_with_one_sentence(tmp_path: Path, text: str, end: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    [sentence] = mistakes(["--config", str(path)])
    assert sentence.startswith((f"file {path}", "preset 'atarii'"))
    assert end in sentence


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_refused_with_one_sentence(tmp_path: Path, name: str) -> None:
    [sentence] = mistakes(["--config", str(tmp_path / name)])
    assert sentence.startswith(f"file {tmp_path / name}: cannot be read: ")


@pytest.mark.parametrize("text", ["", "# nothing\n", "learner:\nnet: {}\n", "learner:\n  # batch_size: 3\n"])
def test_an_empty_file_or_section_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert load(["--config", str(path)], {}) == load([], {})


def test_later_files_override_earlier_ones_and_the_environment_may_name_one(tmp_path: Path, run_file: Path) -> None:
    above = tmp_path / "above.yaml"
    above.write_text("seed: 3\n")
    both = load(["--config", str(run_file), "--config", str(above)], {})
    assert (both.seed, both.learner.batch_size) == (3, 4)
    assert load([], {"BEAST_CONFIG": str(run_file)}).seed == 2
    assert load(["--config", str(above)], {"BEAST_CONFIG": str(run_file)}) == load(["--config", str(above)], {})


def test_arguments_of_a_higher_layer_are_added_to_those_below_and_null_leaves_one_out(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: {kwargs: {target: 7, size: 5, inner: {a: 1}}, options: {level: 2}}")
    flags = [*CLASSIC, "--config", str(tmp_path / "run.yaml"), "--env.kwargs", '{"size": null, "width": null}']
    config = load([*flags, "--env.kwargs", '{"inner": {"b": 2}}'], {"BEAST_ENV__KWARGS": "{height: 3}"})
    assert config.env.kwargs == {"target": 7, "inner": {"b": 2}, "height": 3, "width": None}
    assert config.env.options == {"level": 2}


def test_variables_that_kubernetes_injects_are_ignored() -> None:
    environ = {
        "BEAST_BROKER_PORT": "tcp://10.0.0.1:5555",
        "BEAST_BROKER_PORT_5555_TCP_ADDR": "10.0.0.1",
        "BEAST_BROKER_SERVICE_HOST": "10.0.0.1",
        "BEAST_BROKER_SERVICE_PORT_HTTP": "80",
    }
    assert load([], environ) == load([], {})
    assert mistakes([], {"BEAST_HEALTH_PORT": "80"}) == [
        "environment BEAST_HEALTH_PORT: unknown setting; did you mean health.port?"
    ]


def test_yaml_of_a_tree_reads_back_as_the_same_tree(tmp_path: Path) -> None:
    environ = {"BEAST_IMPALA__EPSILON": "1e-7"}
    config = load([*CLASSIC, "--name", "on", "--env.kwargs", "{a: [1, null, é], b: {c: 1.5}}"], environ)
    path = tmp_path / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    remember(path, decisive(config))
    assert load(["--config", str(path)], {}) == config
    assert dump(load(["--config", str(path)], {})) == dump(config)


NUMBERS = {"rate": 0.001, "small": 1e-05, "big": 1e22, "text": "1e-3", "mixed": [{"a": -250.0}, "NaN"], "n": 3}
AS_JSON = '{"rate": 1e-3, "small": 0.00001, "big": 1e22, "text": "1e-3", "mixed": [{"a": -2.5E+2}, "NaN"], "n": 3}'
AS_YAML = "{rate: 1e-3, small: 1.e-05, big: 1e22, text: '1e-3', mixed: [{a: -2.5E+2}, 'NaN'], n: 3}"


@pytest.mark.parametrize("text", [AS_JSON, AS_YAML, json.dumps(NUMBERS)])
def test_numbers_in_a_mapping_are_numbers_on_every_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"name: 12e4\nenv:\n  id: CartPole-v1\n  kwargs: {text}\nalgo: ppo\nppo.learning_rate: 1e-4\n")
    remember(path, {"env.kwargs": NUMBERS})
    flag = load([*CLASSIC, "--env.kwargs", text], {})
    variable, file = load(CLASSIC, {"BEAST_ENV__KWARGS": text}), load(["--config", str(path)], {})
    assert repr(flag.env.kwargs) == repr(variable.env.kwargs) == repr(file.env.kwargs) == repr(NUMBERS)
    assert (file.name, file.algorithm.learning_rate) == ("12e4", 0.0001)
    seen: list[Any] = []
    for flags, environ in (([], {"BEAST_ENV__KWARGS": text}), (["--config", str(path)], {})):
        gather(["--env=Own-v0", *flags], environ, describe=lambda given: seen.append(given["env.kwargs"].value) or ENV)
    assert repr(seen) == repr([NUMBERS, NUMBERS]), "what is described has what is trained on"
    path.write_text(dump(file))
    assert repr(load(["--config", str(path)], {})) == repr(file)


@pytest.mark.parametrize(
    "text", ['{"rate": NaN}', "{rate: NaN}", '{"a": [-Infinity]}', "{a: [-Infinity]}", "{a: .inf}"]
)
def test_numbers_that_are_not_finite_are_refused_on_every_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"env: {{kwargs: {text}}}")
    for flags, environ in (
        (["--env.kwargs", text], {}),
        ([], {"BEAST_ENV__KWARGS": text}),
        (["--config", str(path)], {}),
    ):
        [sentence] = mistakes([*CLASSIC, *flags], environ)
        assert "expected text, finite numbers" in sentence


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"sizes": {"entropy": 1 << 64}}, "sizes.entropy is 18446744073709551616"),
        ({"sizes": [0, -(1 << 63) - 1]}, "sizes[1] is -9223372036854775809"),
        ({"levels": {1: "easy"}}, "levels has the key 1"),
        ({"name": "\ud800"}, "name is"),
        ({"prices": [0.5] * 9000}, "expected at most 49,152, or the name of a file"),
    ],
)
def test_arguments_that_would_not_arrive_are_refused_before_anything_starts(kwargs: Any, named: str) -> None:
    for path in ("env.kwargs", "env.options"):
        found: list[str] = []
        check([Given(path, kwargs, f"file x: {path}")], found)
        [sentence] = found
        assert sentence.startswith(f"file x: {path}: got {{")
        assert (named if path == "env.kwargs" else named.replace("49,152", "4,096")) in sentence
    edges = {"most": (1 << 64) - 1, "least": -(1 << 63)}
    assert load([*CLASSIC, "--env.kwargs", json.dumps(edges)], {}).env.kwargs == edges


def test_differences_are_what_is_not_the_default() -> None:
    assert differences(RunConfig()) == {}
    assert differences(load(["--seed", "3", "--preset", "atari"], {}))["seed"] == 3


def test_help_shows_every_setting_with_default_and_meaning() -> None:
    text = settings_help()
    lines = text.splitlines()
    for path, field in TREE.items():
        [entry] = [line for line in lines if line.startswith(f"  --{path} ")]
        assert (field.description or "").split()[0] in entry + lines[lines.index(entry) + 1]
    assert "--learner.batch_size 32 " in text
    assert max(map(len, lines)) <= 120


class Own(Section):
    index: int = setting(0, "which", ge=0)


def test_a_command_may_have_flags_of_its_own() -> None:
    loaded = gather(["--index", "3", "--seed", "4"], {}, own=Own)
    assert (loaded.own, loaded.config.seed) == (Own(index=3), 4)
    with pytest.raises(ConfigError) as caught:
        gather(["--index", "-1", "--idex", "2", "--seed", "x"], {}, own=Own)
    assert str(caught.value).splitlines() == [
        "flag --idex: unknown setting; did you mean index?",
        "flag --seed: got 'x', expected a whole number, at least 0 and at most 2147483647",
        "flag --index: got '-1', expected a whole number, at least 0",
    ]
    assert "\nThis command\n  --index 0 " in settings_help(Own)


def test_help_begins_with_what_is_given_most() -> None:
    text = settings_help(Own, load(["--algo", "ppo"], {}), defaultdict(str))
    places = [text.index(f"--{flag} ") for flag in ("total_steps", "ppo.clip", "env.id", "index", "broker.device")]
    assert places == sorted(places)
    assert places[1] < text.index("--impala.rho_bar ")


def test_only_flags_that_set_another_algorithm_are_noted() -> None:
    flags = ["--algo", "ppo", "--impala.rho_bar", "2", "--ppo.clip", "0.1"]
    assert gather([*flags, "--seed", "3"], {}).notes == (
        "--impala.rho_bar has no effect: it sets impala.rho_bar, and this run's algo is ppo",
    )
    assert gather(["--env", "CartPole-v1", "--impala.learning_rate", "1e-3"], {}).notes == ()


@pytest.mark.parametrize(
    ("env", "used"),
    [
        ("CartPole-v1", ()),
        ("MinAtar/Breakout-v1", ()),
        ("own.py:Own", ()),
        ("zipf(MinAtar/Breakout-v1,MinAtar/Freeway-v1)", ()),
        ("football/academy_empty_goal", ("frame_stack",)),
        ("ALE/Pong-v5", FRAMES),
        ("CartPole-v1,PongNoFrameskip-v4", FRAMES),
    ],
)
def test_settings_of_frames_that_no_environment_uses_are_noted(env: str, used: tuple[str, ...], tmp_path: Path) -> None:
    assert set(FRAMES) <= EnvConfig.model_fields.keys()
    (tmp_path / "config.yaml").write_text(dump(load([*CLASSIC, "--env.frame_size", "42"], {})))  # of a run: not noted
    values = {name: EnvConfig.model_fields[name].default or 0 for name in FRAMES} | {"frame_stack": 8}
    flags = [f"--env.{name}={value}".lower() for name, value in values.items() if name != "frame_skip"]
    argv = ["--config", str(tmp_path / "config.yaml"), "--env", env, *flags]
    notes = gather(argv, {"BEAST_ENV__FRAME_SKIP": "2"}).notes
    origins = {f"flag --env.{name}" for name in {*FRAMES} - {"frame_skip"} - {*used}}
    if "frame_skip" not in used:
        origins.add("environment BEAST_ENV__FRAME_SKIP")
    assert {note.partition(" has no effect: ")[0] for note in notes} == origins


def test_a_size_of_batches_without_its_unit_is_explained() -> None:
    (note,) = gather(["--env", "CartPole-v1", "--algo", "ppo", "--batch_size", "64"], {}).notes
    assert "64 counts rollouts" in note
    assert "4,096 samples" in note
    (note,) = gather(["--env", "Pendulum-v1", "--algo", "sac", "--batch_size", "64"], {}).notes
    assert "512 samples; those of an update are sac.batch_size" in note
    assert not gather(["--env", "CartPole-v1", "--algo", "ppo", "--learner.batch_size", "64"], {}).notes


def test_several_environments_are_one_setting_and_the_first_chooses_the_preset() -> None:
    config = load(["--env", "MinAtar/Breakout-v0, MinAtar/Asterix-v0"], {})
    assert config.env.id == "MinAtar/Breakout-v0,MinAtar/Asterix-v0"
    assert config.env.tasks == ("MinAtar/Breakout-v0", "MinAtar/Asterix-v0")
    for env in ("CartPole-v1,PongNoFrameskip-v4", " CartPole-v1 ,MinAtar/Breakout-v0"):
        mixed, alone = load(["--env", env], {}), load(["--env", "CartPole-v1"], {})
        assert mixed.model_copy(update={"env": alone.env}) == alone


def test_another_environment_leaves_no_levels_out_if_no_file_gives_any() -> None:
    loaded = gather(["--env", "CartPole-v1"], {})
    assert loaded.for_its_env("file x") is loaded
