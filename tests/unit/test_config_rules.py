"""Settings that do not go together, and what a deterministic run requires of others."""

from pathlib import Path
from typing import Any

import pytest

from tests.build.errors import refuses
from zerobeast.common.config.describe import by_origin
from zerobeast.common.config.load import dump, load_config, resolve_flags
from zerobeast.common.settings.tree import RunConfig
from zerobeast.plan.placement import groups_of
from zerobeast.rl.acting.weights_inbox import shared_place

PPO = "--algo ppo --learner.batch_size 4 --learner.unroll_length 5"
SHORT = "--env CartPole-v1 --learner.unroll_length 4"
R2D2 = "--preset atari --algo r2d2 --learner.unroll_length 40"
ORDERED = "--env CartPole-v1 --actor.env_groups 2 --actor.envs_per_group 8 --deterministic true"

#: flags, the settings that they break, first the one at fault, and flags with which they fit; others: tests/golden
RULES = [
    ("--preset torchbeast --broker.max_batch_rows 1", "broker.max_batch_rows actor.envs_per_group", ""),
    ("--local.env_servers 2", "local.env_servers local.actors", "--local.actors 2"),
    (f"{PPO} --ppo.minibatches 5 --net.core lstm", "ppo.minibatches learner.batch_size net.core", ""),
    (f"{PPO} --ppo.minibatches 21", "ppo.minibatches learner.batch_size learner.unroll_length", "--ppo.minibatches 20"),
    (f"{SHORT} --algo dqn --dqn.n_step 5", "dqn.n_step learner.unroll_length", "--dqn.n_step 4"),
    (
        f"{SHORT} --algo r2d2 --r2d2.n_step 4 --r2d2.burn_in 10",
        "r2d2.burn_in learner.unroll_length",
        "--r2d2.burn_in 8",
    ),
    (
        "--preset atari --algo dqn --dqn.replay_size 20 --dqn.replay_min_size 9",
        "dqn.batch_size dqn.replay_size",
        "--dqn.batch_size 20",
    ),
    (f"{R2D2} --r2d2.replay_size 70 --r2d2.replay_min_size 70", "r2d2.sequence_length r2d2.replay_size", ""),
    (f"{R2D2} --r2d2.sequence_length 20", "r2d2.sequence_length learner.unroll_length", ""),
    (
        "--preset atari --algo dqn --total_steps 1019 --dqn.replay_min_size 1000 --dqn.samples_per_insert 4 "
        "--dqn.batch_size 20 --dqn.updates_per_step 4",
        "total_steps dqn.replay_min_size dqn.samples_per_insert",
        "--total_steps 1020",
    ),
    ("--env Pendulum-v1 --algo sac --total_steps 5", "total_steps sac.replay_min_size sac.samples_per_insert", ""),
    ("--env CartPole-v1 --algo impala --net.norm batch", "net.norm algo", "--net.norm layer"),
    ("--env CartPole-v1 --algo dqn --net.norm batch", "net.norm algo", ""),
    (
        "--env Pendulum-v1 --algo sac --net.norm batch --net.residual_blocks 2 --net.hidden_sizes 8,8",
        "net.hidden_sizes net.residual_blocks",
        "--net.residual_blocks 0",
    ),
    ("--env Pendulum-v1 --algo td3 --td3.atoms 51 --td3.v_min 5", "td3.v_min td3.v_max", "--td3.atoms 1"),
    (f"{ORDERED} --learner.batch_size 8", "learner.batch_size deterministic", "--learner.batch_size 16"),
    (f"{ORDERED} --stop_at_return 400 --evaluate.times 4", "stop_at_return deterministic evaluate.times", ""),
    (
        f"{ORDERED} --algo ppo --net.core lstm --ppo.minibatches 12 --actor.env_groups 1",
        "ppo.minibatches learner.batch_size net.core",
        "--actor.env_groups 2",
    ),
]


@pytest.mark.parametrize(("flags", "paths", "remedy"), RULES)
def test_settings_that_do_not_go_together_are_refused(flags: str, paths: str, remedy: str) -> None:
    path, *beside = paths.split()
    with refuses(path, beside=tuple(beside)) as caught:
        resolve_flags(flags.split(), {}, groups=groups_of)
    assert caught.paths == [path]
    assert caught.error.mistakes[0].layer
    if remedy:
        resolve_flags([*flags.split(), *remedy.split()], {}, groups=groups_of)


@pytest.mark.parametrize(
    ("flags", "values", "line"),
    [
        ("--algo sac --env Pendulum-v1 --total_steps 100000", (10_000, 10_000), ""),
        ("--algo sac --env Pendulum-v1 --total_steps 3000", (300, 300), "replay_min_size 300, sac.random_steps 300"),
        ("--algo td3 --env Pendulum-v1 --total_steps 15000 --td3.random_steps 9000", (1500, 9000), "size 1500"),
        ("--algo dqn --env CartPole-v1 --total_steps 5000", (500, 1250), "min_size 500, dqn.exploration_steps 1250"),
        ("--algo dqn --env CartPole-v1 --total_steps 80000", (1000, 20_000), ""),
    ],
)
def test_what_comes_before_learning_fits_a_short_run(flags: str, values: tuple[int, int], line: str) -> None:
    loaded = resolve_flags(flags.split(), {})
    own: Any = loaded.config.algorithm
    later = own.exploration_steps if loaded.config.section == "dqn" else own.random_steps
    assert (own.replay_min_size, later) == values
    said = by_origin(loaded.config, loaded.origins).get(f"total_steps {loaded.config.total_steps}", {})
    assert ", ".join(f"{path} {value}" for path, value in said.items()).endswith(line)
    assert bool(said) == bool(line)


def test_settings_of_all_layers_are_checked_together_unless_one_of_them_is_wrong() -> None:
    with refuses("actor.envs_per_group") as caught:
        load_config(["--broker.max_batch_rows", "4", "--actor.envs_per_group", "many"], {})
    assert len(caught.paths) == 1
    environ = {"BEAST_ACTOR__ENVS_PER_GROUP": "512"}
    assert load_config(["--broker.max_batch_rows", "512"], environ).actor.envs_per_group == 512
    assert load_config(["--algo", "a2c", "--ppo.minibatches", "65536"], {}).algo == "a2c", "a note is enough"
    assert load_config(["--net.action_log_std", "1"], {}).net.action_log_std == 1.0


def test_settings_that_the_optimiser_lacks_are_refused_only_if_given_for_this_start(tmp_path: Path) -> None:
    assert load_config(["--impala.momentum", "0.1", "--impala.optimizer", "rmsprop"], {}).algorithm.momentum == 0.1
    assert load_config(["--algo", "ppo", "--impala.momentum", "0.1"], {}).algo == "ppo", "a note is enough"
    file = tmp_path / "config.yaml"
    file.write_text(dump(load_config([], {})), encoding="utf-8")
    assert load_config(["--config", str(file)], {}).algorithm.optimizer == "adam", "a file has all settings"


@pytest.mark.parametrize(
    ("flags", "envs"),
    [
        ("--local.actors 2 --actor.env_groups 1", 16),
        ("--local.placement fused --local.workers 3", 48),
        ("--actor.envs_per_group 4", 8),
    ],
)
def test_deterministic_overrides_the_preset_where_it_must(flags: str, envs: int) -> None:
    loaded = resolve_flags([*ORDERED.split(), "--algo", "impala", *flags.split()], {}, groups=groups_of)
    config = loaded.config
    assert config.learner.batch_size == envs
    assert config.broker.max_batch_rows == config.actor.envs_per_group
    assert (config.actor.collect_ahead, config.learner.window, config.learner.publish_every) == (False, 1, 1)
    for service in (config.broker, config.learner):
        assert (service.device, service.threads, service.precision) == ("cpu", 1, "float32")
    assert loaded.origins["learner.batch_size"] == "deterministic true: learner.batch_size"


def test_services_read_the_saved_settings_back_unchanged(tmp_path: Path) -> None:
    flags = ORDERED.split()[:-2]
    assert resolve_flags(flags, {}, groups=groups_of).config == load_config(flags, {}), "without it"
    config = resolve_flags([*ORDERED.split(), "--local.actors", "3"], {}, groups=groups_of).config
    (file := tmp_path / "config.yaml").write_text(dump(config))
    assert load_config(["--config", str(file)], {}) == config
    assert resolve_flags(["--config", str(file)], {}, groups=groups_of).config == config


def test_weights_over_tcp_are_refused() -> None:
    config = RunConfig(deterministic=True)
    with refuses("learner.endpoint", value="tcp://127.0.0.1:5560"):
        shared_place(config)
    assert shared_place(RunConfig()) is None
    local = config.model_copy(update={"learner": config.learner.model_copy(update={"endpoint": "ipc:///r/l"})})
    assert shared_place(local) == Path("/r/l.weights")
