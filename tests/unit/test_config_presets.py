"""Presets, which of them an environment and an algorithm choose, and TorchBeast's flags."""

from collections.abc import Mapping

import pytest

from zerobeast.common.config import preset, torchbeast
from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.load import load_config, resolve_flags
from zerobeast.common.config.settings_table import value_at
from zerobeast.common.wire import ArraySpace, EnvSpec

#: what is published, as text in which each setting of a preset is followed by its value
PUBLISHED = {
    # Espeholt et al. 2018, table G.1; RMSProp's decay and epsilon as TensorFlow has them
    "impala-atari": "learner.unroll_length 20 learner.batch_size 32 impala.entropy_cost 0.01 impala.reduction sum "
    "impala.optimizer rmsprop_tf impala.epsilon 0.01 impala.learning_rate 0.0006 total_steps 50000000",
    "torchbeast": "learner.unroll_length 80 learner.batch_size 8 impala.entropy_cost 0.0006 impala.reduction sum "
    "impala.optimizer rmsprop impala.epsilon 0.01 impala.learning_rate 0.00048 total_steps 100000",
    # Schulman et al. 2017, table 3
    "control-ppo": "ppo.trace_decay 0.95 ppo.epochs 10 ppo.clip 0.2 ppo.learning_rate 0.0003 total_steps 1000000",
    # Kapturowski et al. 2019, table 2; max_grad_norm is SEED's
    "atari-r2d2": "r2d2.burn_in 40 r2d2.sequence_length 80 r2d2.n_step 5 r2d2.discount 0.997 r2d2.priority_mix 0.9 "
    "r2d2.importance_exponent 0.6 r2d2.target_period 2500 r2d2.replay_size 4000000 r2d2.max_grad_norm 80.0",
}


@pytest.mark.parametrize("name", preset.list_presets())
def test_every_preset_is_valid_and_has_what_is_published(name: str) -> None:
    loaded = resolve_flags(["--preset", name], {})
    origins = dict(loaded.origins)
    assert origins.pop("preset") == "flag --preset"
    assert origins
    assert all(where.startswith(f"preset {name}: ") for where in origins.values())
    paths, values = (PUBLISHED.get(name, "").split()[part::2] for part in (0, 1))
    assert [str(value_at(loaded.config, path)) for path in paths] == values
    if name.endswith(("-ppo", "-a2c")):  # it learns from every environment once
        config = loaded.config
        assert (name.rpartition("-")[2], config.actor.collect_ahead) == (config.algo, False)
        envs = config.local.actors * config.actor.env_groups * config.actor.envs_per_group
        assert config.learner.batch_size == envs


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("PongNoFrameskip-v4", "atari"),
        ("zipf/Gridworld", "atari"),
        ("zipf/Gridworld-small-rare", "minatar"),
        ("football/academy_empty_goal", "football"),
        ("CartPole-v1", "cartpole-impala"),
        ("Acrobot-v1", "classic"),
        ("LunarLander-v3", "classic"),
        ("MinAtar/mine.py:Env", "classic"),
        ("ALE/mine.py:Env", "classic"),
    ],
)
def test_the_environment_chooses_its_family_if_no_preset_is_named(env_id: str, name: str) -> None:
    assert load_config(["--env", env_id], {}) == load_config(["--env", env_id, "--preset", name], {})
    assert load_config([], {"BEAST_ENV__ID": env_id}).algorithm == load_config(["--preset", name], {}).algorithm


@pytest.mark.parametrize(
    ("env_id", "algo", "name"),
    [
        ("PongNoFrameskip-v4", "ppo", "atari-ppo"),
        ("my.module:Env-v0", "ppo", "classic-ppo"),
        ("LunarLander-v3", "vmpo", "classic-vmpo"),
        ("football/5_vs_5", "dqn", "football-dqn"),
        ("HalfCheetah-v5", "a2c", "control-a2c"),
        ("Antelope-v1", "a2c", "classic-a2c"),
        ("HalfCheetah-v5", "impala", "control"),
    ],
)
def test_an_algorithm_has_presets_of_its_own_or_those_of_the_family(env_id: str, algo: str, name: str) -> None:
    flags = ["--env", env_id, "--algo", algo]
    assert load_config(flags, {}) == load_config([*flags, "--preset", name], {})
    assert load_config(["--env", env_id], {"BEAST_ALGO": algo}).algo == algo


def spec(obs_shape: tuple[int, ...], action: ArraySpace) -> EnvSpec:
    return EnvSpec("mine:Own-v0", ArraySpace.box(obs_shape), action)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (spec((3,), ArraySpace.box((2,), low=(-1.0, -1.0), high=(1.0, 1.0))), "control"),
        (spec((84, 84, 3), ArraySpace.box((), low=(-1.0,), high=(1.0,))), "control"),
        (spec((3,), ArraySpace.discrete(2)), "classic"),
        (spec((10, 10, 4), ArraySpace("multi_discrete", shape=(1,), sizes=(2,))), "minatar"),
        (spec((3, 64, 64), ArraySpace.discrete(2)), "atari"),
        (spec((30, 8), ArraySpace.discrete(2)), "classic"),
    ],
)
def test_the_spaces_choose_the_family_of_an_environment_that_is_not_known(env: EnvSpec, name: str) -> None:
    for algo, end in (("impala", ""), ("ppo", "-ppo")):
        loaded = resolve_flags(["--env", "mine:Own-v0,mine:Other-v0", "--algo", algo], {}, describe=lambda _: env)
        assert loaded.config.preset == name + end
        assert loaded.origins["preset"] == f"chosen for mine:Own-v0,mine:Other-v0 and {algo}"


def test_an_atari_game_that_its_module_makes_is_remarked_upon_with_the_id_to_use() -> None:
    for env_id, usual in (("ale_py:ALE/Breakout-v5", "Breakout"), ("ale_py:PongNoFrameskip-v4", "Pong")):
        [note] = resolve_flags(["--preset", "atari", "--env", env_id], {}).notes
        assert (env_id in note, f"ALE/{usual}-v5" in note.partition(";")[2]) == (True, True)
    for others in (["ALE/Pong-v5,mine:Own-v0"], ["ale_py:ALE/Pong-v5", "--env.kwargs", "{obs_type: ram}"]):
        assert not resolve_flags(["--preset", "atari", "--env", *others], {}).notes


def test_an_environment_is_described_only_if_its_id_does_not_settle_the_preset() -> None:
    asked: list[str] = []

    def describe(given: Mapping[str, GivenValue]) -> EnvSpec:
        asked.append(given["env.id"].value)
        return spec((3,), ArraySpace.discrete(2))

    for env in ("PongNoFrameskip-v4", "MinAtar/Breakout-v1", "CartPole-v1", "LunarLander-v3", "HalfCheetah-v5"):
        resolve_flags(["--env", env], {}, describe=describe)
    resolve_flags(["--env", "mine:Own-v0", "--preset", "control"], {}, describe=describe)
    assert asked == []
    for flags in (["--env", "mine:Own-v0"], ["--env", "LunarLander-v3", "--env.kwargs", "{continuous: true}"]):
        resolve_flags(flags, {}, describe=describe)
    assert asked == ["mine:Own-v0", "LunarLander-v3"]


def test_a_named_preset_replaces_the_family_and_lies_below_everything_else() -> None:
    config = load_config(["--env", "CartPole-v1", "--preset", "torchbeast", "--learner.batch_size", "2"], {})
    assert (config.algorithm.optimizer, config.learner.batch_size) == ("rmsprop", 2)
    assert load_config(["--preset", "atari"], {"BEAST_PRESET": "torchbeast"}) == load_config(["--preset", "atari"], {})
    assert load_config([], {"BEAST_PRESET": "torchbeast"}).learner.unroll_length == 80
    assert load_config([], {"BEAST_PRESET": ""}).preset == "atari", "as if it were not there"
    assert load_config(["--algo", "rainbow", "--preset", "atari-c51"], {}).preset == "atari-c51", "that of an ancestor"


README = """--preset torchbeast --env PongNoFrameskip-v4 --num_actors 45 --total_steps 30000000 --learning_rate 0.0004
    --epsilon 0.01 --entropy_cost 0.01 --batch_size 4 --unroll_length 80 --num_buffers 60 --num_threads 4
    --xpid example"""


def expanded(flags: str) -> tuple[list[str], list[str]]:
    """The flags of ours, and the remarks."""
    remarks = list[str]()
    return torchbeast.translate_flags(flags.split(), remarks.append), remarks


def test_the_command_of_its_readme_loads_to_the_right_tree() -> None:
    flags, remarks = expanded(README)
    loaded = resolve_flags(flags, {})
    expected = {
        "name": "example",
        "total_steps": 30_000_000,
        "actor.envs_per_group": 23,  # 45 over two groups, rounded up
        "learner.batch_size": 4,
        "learner.unroll_length": 80,
        "impala.learning_rate": 0.0004,
        "impala.epsilon": 0.01,
        "impala.entropy_cost": 0.01,
        "impala.optimizer": "rmsprop",
        "env.id": "PongNoFrameskip-v4",
    }
    assert {path: value_at(loaded.config, path) for path in expected} == expected
    assert [remark.partition(" is not needed here")[0] for remark in remarks] == ["--num_buffers", "--num_threads"]
    assert loaded.notes == ()


def test_every_flag_of_the_table_sets_something_or_is_not_needed_for_a_reason() -> None:
    values = {"reward_clipping": "none", "use_lstm": "true", "alpha": "0.5", "momentum": "0.5"}
    named = " ".join(f"--{name}={values.get(name, '1')}" for name in torchbeast.TABLE)
    flags, remarks = expanded(f"--preset=torchbeast {named}")
    loaded = resolve_flags(flags, {})
    assert {*loaded.origins.values()} >= {f"flag {flag.partition('=')[0]}" for flag in flags}
    assert (loaded.config.broker.device, loaded.config.net.core, loaded.config.root) == ("cpu", "lstm", "1")
    assert len(remarks) == sum(not meaning.startswith("--") for meaning in torchbeast.TABLE.values()) == 10


@pytest.mark.parametrize(
    ("flags", "ours"),
    [
        ("--preset atari --num_actors 4 --xpid x", "--preset atari --num_actors 4 --xpid x"),  # which are refused
        ("--use_lstm --preset=torchbeast", "--net.core=lstm --preset=torchbeast"),
        ("--preset torchbeast odd -h --xpid x", "odd -h --name=x --preset=torchbeast"),
        ("--seed 7 --num-actors 9 --preset torchbeast", "--actor.envs_per_group=5 --seed=7 --preset=torchbeast"),
    ],
)
def test_its_flags_come_with_its_preset_and_below_those_of_ours(flags: str, ours: str) -> None:
    assert expanded(flags)[0] == ours.split()
