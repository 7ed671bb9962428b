"""Presets against the tables that they claim to follow."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.build.errors import refused
from zerobeast.common.config import preset
from zerobeast.common.config.layers import Given
from zerobeast.common.config.load import dump, gather, load
from zerobeast.common.config.table import value_at
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

#: Espeholt et al. 2018, table G.1; 200M frames, 4 per step; RMSProp's decay from the published code
TABLE_G1 = {
    "env.frame_size": 84,
    "env.frame_skip": 4,
    "env.frame_stack": 4,
    "env.noop_max": 30,
    "env.episodic_life": True,
    "impala.reward_clipping": "abs_one",
    "learner.unroll_length": 20,
    "learner.batch_size": 32,
    "impala.discount": 0.99,
    "impala.baseline_cost": 0.5,
    "impala.entropy_cost": 0.01,
    "impala.reduction": "sum",
    "impala.optimizer": "rmsprop_tf",
    "impala.momentum": 0.0,
    "impala.alpha": 0.99,
    "impala.epsilon": 0.01,
    "impala.learning_rate": 0.0006,
    "impala.schedule": "linear",
    "impala.max_grad_norm": 40.0,
    "total_steps": 50_000_000,
}
MONOBEAST = {
    "env.episodic_life": True,
    "env.fire_reset": True,
    "total_steps": 100_000,
    "learner.batch_size": 8,
    "learner.unroll_length": 80,
    "net.use_lstm": False,
    "impala.entropy_cost": 0.0006,
    "impala.baseline_cost": 0.5,
    "impala.discount": 0.99,
    "impala.reward_clipping": "abs_one",
    "impala.reduction": "sum",
    "impala.optimizer": "rmsprop",
    "impala.learning_rate": 0.00048,
    "impala.alpha": 0.99,
    "impala.momentum": 0.0,
    "impala.epsilon": 0.01,
    "impala.max_grad_norm": 40.0,
}


#: Schulman et al. 2017, table 3: horizon 2048
PPO_MUJOCO = {
    "algo": "ppo",
    "ppo.discount": 0.99,
    "ppo.trace_decay": 0.95,
    "ppo.epochs": 10,
    "ppo.clip": 0.2,
    "ppo.optimizer": "adam",
    "ppo.learning_rate": 3e-4,
    "total_steps": 1_000_000,
}

#: Kapturowski et al. 2019, table 2; samples_per_insert and max_grad_norm are SEED's
R2D2_ATARI = {
    "env.frame_stack": 4,
    "env.episodic_life": False,
    "net.use_lstm": True,
    "net.lstm_size": 512,
    "learner.unroll_length": 40,
    "r2d2.burn_in": 40,
    "r2d2.sequence_length": 80,
    "r2d2.n_step": 5,
    "r2d2.discount": 0.997,
    "r2d2.target_period": 2500,
    "r2d2.priority_mix": 0.9,
    "r2d2.priority_exponent": 0.9,
    "r2d2.importance_exponent": 0.6,
    "r2d2.batch_size": 64,
    "r2d2.replay_size": 4_000_000,
    "r2d2.samples_per_insert": 0.75,
    "r2d2.reward_clipping": "none",
    "r2d2.optimizer": "adam",
    "r2d2.learning_rate": 1e-4,
    "r2d2.epsilon": 1e-3,
    "r2d2.schedule": "constant",
    "r2d2.max_grad_norm": 80.0,
}

PUBLISHED = {
    "impala-atari": TABLE_G1,
    "torchbeast": MONOBEAST,
    "control-ppo": PPO_MUJOCO,
    "atari-r2d2": R2D2_ATARI,
}


@pytest.mark.parametrize(("name", "table"), PUBLISHED.items())
def test_a_published_preset_is_the_published_table(name: str, table: dict[str, object]) -> None:
    config = load(["--preset", name], {})
    assert {path: value_at(config, path) for path in table} == table


@pytest.mark.parametrize("name", preset.names())
def test_every_preset_is_valid(name: str) -> None:
    origins = dict(gather(["--preset", name], {}).origins)
    assert origins.pop("preset") == "flag --preset"
    assert origins
    assert all(where.startswith(f"preset {name}: ") for where in origins.values())


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("PongNoFrameskip-v4", "atari"),
        ("ALE/Breakout-v5", "atari"),
        ("MinAtar/Breakout", "minatar"),
        ("zipf/Gridworld", "atari"),
        ("zipf/Gridworld-small-rare", "minatar"),
        ("football/academy_empty_goal", "football"),
        ("CartPole-v1", "cartpole-impala"),
        ("Acrobot-v1", "classic"),
        ("LunarLander-v3", "classic"),
        ("my.module:Env-v0", "classic"),
        ("MinAtar/mine.py:Env", "classic"),
        ("ALE/mine.py:Env", "classic"),
    ],
)
def test_the_environment_chooses_its_family_if_no_preset_is_named(env_id: str, name: str) -> None:
    assert load(["--env", env_id], {}) == load(["--env", env_id, "--preset", name], {})
    assert load([], {"BEAST_ENV__ID": env_id}).algorithm == load(["--preset", name], {}).algorithm


@pytest.mark.parametrize(
    ("env_id", "algo", "name"),
    [
        ("PongNoFrameskip-v4", "ppo", "atari-ppo"),
        ("CartPole-v1", "a2c", "classic-a2c"),
        ("my.module:Env-v0", "ppo", "classic-ppo"),
        ("LunarLander-v3", "ppo", "lunarlander-ppo"),
        ("LunarLander-v3", "vmpo", "classic-vmpo"),
        ("football/5_vs_5", "dqn", "football-dqn"),
        ("HalfCheetah-v5", "a2c", "control-a2c"),
        ("Antelope-v1", "a2c", "classic-a2c"),
        ("HalfCheetah-v5", "impala", "control"),
        ("MinAtar/Breakout", "impala", "minatar"),
        ("MinAtar/Breakout-v1", "vmpo", "minatar-vmpo"),
        ("ALE/Breakout-v5", "r2d2", "atari-r2d2"),
    ],
)
def test_an_algorithm_has_presets_of_its_own_or_those_of_the_family(env_id: str, algo: str, name: str) -> None:
    assert load(["--env", env_id, "--algo", algo], {}) == load(["--env", env_id, "--preset", name, "--algo", algo], {})
    assert load(["--env", env_id], {"BEAST_ALGO": algo}).algo == algo


def spec(obs_shape: tuple[int, ...], action: ArraySpace, dtype: str = "<f4") -> EnvSpec:
    return EnvSpec("mine:Own-v0", ArraySpace.box(obs_shape, dtype), action)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (spec((3,), ArraySpace.box((2,), low=(-1.0, -1.0), high=(1.0, 1.0))), "control"),
        (spec((84, 84, 3), ArraySpace.box((), low=(-1.0,), high=(1.0,))), "control"),
        (spec((3,), ArraySpace.discrete(2)), "classic"),
        (spec((4, 4), ArraySpace.discrete(2)), "classic"),
        (spec((10, 10, 4), ArraySpace("multi_discrete", shape=(1,), sizes=(2,))), "minatar"),
        (spec((3, 64, 64), ArraySpace.discrete(2)), "atari"),
        (spec((84, 84), ArraySpace.discrete(2), "|u1"), "atari"),
        (spec((30, 8), ArraySpace.discrete(2)), "classic"),
    ],
)
def test_the_spaces_choose_the_family_of_an_environment_that_is_not_known(env: EnvSpec, name: str) -> None:
    for algo, end in (("impala", ""), ("ppo", "-ppo")):
        loaded = gather(["--env", "mine:Own-v0,mine:Other-v0", "--algo", algo], {}, describe=lambda _: env)
        assert loaded.config.preset == name + end
        assert loaded.origins["preset"] == f"chosen for mine:Own-v0,mine:Other-v0 and {algo}"


def test_an_atari_game_that_its_module_makes_is_remarked_upon_with_the_id_to_use() -> None:
    flags = ["--preset", "atari", "--env"]
    for env_id, usual in (("ale_py:ALE/Breakout-v5", "Breakout"), ("ale_py:PongNoFrameskip-v4", "Pong")):
        [note] = gather([*flags, env_id], {}).notes
        assert note.startswith(f"env.id {env_id} has raw colour frames")
        assert f"ALE/{usual}-v5" in note.partition(";")[2]
    assert not gather([*flags, "ALE/Pong-v5,mine:Own-v0"], {}).notes
    assert not gather([*flags, "ale_py:ALE/Pong-v5", "--env.kwargs", "{obs_type: ram}"], {}).notes, "no frames at all"


def test_an_environment_is_described_only_if_its_id_does_not_settle_the_preset() -> None:
    asked: list[str] = []

    def describe(given: Mapping[str, Given]) -> EnvSpec:
        asked.append(given["env.id"].value)
        return spec((3,), ArraySpace.discrete(2))

    for env in ("PongNoFrameskip-v4", "MinAtar/Breakout-v1", "CartPole-v1", "LunarLander-v3", "HalfCheetah-v5"):
        gather(["--env", env], {}, describe=describe)
    gather(["--env", "mine:Own-v0", "--preset", "control"], {}, describe=describe)
    assert asked == []
    for flags in (["--env", "mine:Own-v0"], ["--env", "LunarLander-v3", "--env.kwargs", "{continuous: true}"]):
        gather(flags, {}, describe=describe)
    assert asked == ["mine:Own-v0", "LunarLander-v3"]


def test_a_run_records_its_preset_and_keeps_it(tmp_path: Path) -> None:
    config = load(["--env", "mine:Own-v0", "--preset", "control"], {})
    file = tmp_path / "config.yaml"
    file.write_text(dump(config), encoding="utf-8")
    assert "\npreset: control\n" in file.read_text(encoding="utf-8")
    assert gather(["--config", str(file), "--env", "mine:Own-v0"], {}, describe=never).config == config


def never(_: Mapping[str, Given]) -> EnvSpec:
    raise AssertionError("asked")


@pytest.mark.parametrize("name", [name for name in preset.names() if name.endswith(("-ppo", "-a2c"))])
def test_a_synchronous_preset_learns_from_every_environment_once(name: str) -> None:
    config = load(["--preset", name], {})
    assert name.endswith(config.algo)
    assert not config.actor.collect_ahead
    assert config.learner.batch_size == config.local.actors * config.actor.env_groups * config.actor.envs_per_group


def test_a_named_preset_replaces_the_family_and_lies_below_everything_else() -> None:
    config = load(["--env", "CartPole-v1", "--preset", "torchbeast", "--learner.batch_size", "2"], {})
    assert (config.algorithm.optimizer, config.learner.batch_size) == ("rmsprop", 2)
    assert load(["--preset", "atari"], {"BEAST_PRESET": "torchbeast"}) == load(["--preset", "atari"], {})
    assert load([], {"BEAST_PRESET": "torchbeast"}).learner.unroll_length == 80
    assert load([], {"BEAST_PRESET": ""}).preset == "atari", "as if it were not there"


def test_a_preset_of_an_algorithm_is_for_it_and_those_that_descend_from_it() -> None:
    assert load(["--algo", "rainbow", "--preset", "atari-c51"], {}).preset == "atari-c51"
    with refused("preset", value="classic-dqn", beside=("algo",)):
        load(["--algo", "ppo", "--preset", "classic-dqn"], {})
    with refused("preset", value="impala"):
        load(["--preset", "impala"], {})
