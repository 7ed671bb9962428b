"""Presets against the tables that they claim to be."""

import pytest

from common.config import preset
from common.config.load import gather, load
from common.config.table import value_at
from common.errors import ConfigError

pytestmark = pytest.mark.unit

#: Espeholt et al. 2018, table G.1; 200M frames of 4 per step; RMSProp's decay from the published code
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


@pytest.mark.parametrize(("name", "table"), [("impala-atari", TABLE_G1), ("torchbeast", MONOBEAST)])
def test_a_published_preset_is_the_published_table(name: str, table: dict[str, object]) -> None:
    config = load(["--preset", name], {})
    assert {path: value_at(config, path) for path in table} == table


def test_the_torchbeast_preset_runs_its_four_environments() -> None:
    config = load(["--preset", "torchbeast"], {})
    assert config.local.actors * config.actor.env_groups * config.actor.envs_per_group == 4


@pytest.mark.parametrize("name", preset.names())
def test_every_preset_is_valid(name: str) -> None:
    loaded = gather(["--preset", name], {})
    assert loaded.origins
    assert all(where.startswith(f"preset {name}: ") for where in loaded.origins.values())


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("PongNoFrameskip-v4", "atari"),
        ("ALE/Breakout-v5", "atari"),
        ("MinAtar/Breakout", "minatar"),
        ("CartPole-v1", "classic"),
        ("my.module:Env-v0", "classic"),
    ],
)
def test_the_environment_chooses_its_family_where_no_preset_is_named(env_id: str, name: str) -> None:
    assert load(["--env", env_id], {}) == load(["--env", env_id, "--preset", name], {})
    assert load([], {"BEAST_ENV__ID": env_id}).impala == load(["--preset", name], {}).impala


def test_a_named_preset_replaces_the_family_and_lies_below_everything_else() -> None:
    config = load(["--env", "CartPole-v1", "--preset", "torchbeast", "--learner.batch_size", "2"], {})
    assert (config.impala.optimizer, config.learner.batch_size) == ("rmsprop", 2)
    assert load(["--preset", "atari"], {"BEAST_PRESET": "torchbeast"}) == load(["--preset", "atari"], {})
    assert load([], {"BEAST_PRESET": "torchbeast"}).learner.unroll_length == 80


def test_an_unknown_preset_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"^preset 'impala': unknown.* \(known: atari, classic, impala-atari, .*\)$"):
        load(["--preset", "impala"], {})
