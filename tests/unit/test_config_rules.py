"""Settings that do not go together."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_config_load import mistakes
from zerobeast.common.config.describe import by_origin
from zerobeast.common.config.load import dump, gather, load
from zerobeast.rl.ops.gaussian import SquashedGaussian


def test_settings_that_do_not_go_together_are_named_with_their_layers() -> None:
    argv = ["--preset", "torchbeast", "--broker.max_batch_rows", "1", "--frob"]
    assert mistakes(argv) == [
        "flag --frob: unknown setting",
        "broker.max_batch_rows 1 with actor.envs_per_group 2: expected at least as many, or no request fits a batch "
        "(from flag --broker.max_batch_rows, preset torchbeast: actor.envs_per_group)",
    ]


def test_a_secret_without_the_folder_of_public_keys_is_refused() -> None:
    assert mistakes(["--security.secret", "a.key_secret"]) == [
        "security.secret a.key_secret without security.keys: expected none, as it is of no use without the "
        "public ones (from flag --security.secret)"
    ]


def test_an_env_server_that_no_actor_would_use_is_refused() -> None:
    assert mistakes(["--local.env_servers", "2"]) == [
        "local.env_servers 2 with local.actors 1: expected at most as many: an actor here uses one, the rest would "
        "idle (from flag --local.env_servers)"
    ]
    assert load(["--local.env_servers", "2", "--local.actors", "2"], {}).local.env_servers == 2


def test_an_initial_deviation_too_wide_for_squashed_actions_is_refused() -> None:
    squashed = ["--net.squash_actions", "true", "--net.action_log_std"]
    assert mistakes([*squashed, "0.5"]) == [
        "net.action_log_std 0.5 with net.squash_actions: expected at most 0, the widest that squashed actions begin "
        "with (from flag --net.action_log_std, flag --net.squash_actions)"
    ]
    assert load([*squashed, "0"], {}).net.action_log_std == SquashedGaussian.LOG_STD.high
    assert load(["--net.action_log_std", "1"], {}).net.action_log_std == 1.0


def test_more_minibatches_than_a_batch_has_sequences_are_refused() -> None:
    batch = ["--algo", "ppo", "--learner.batch_size", "4", "--learner.unroll_length", "5"]
    assert mistakes([*batch, "--ppo.minibatches", "5", "--net.use_lstm", "true"]) == [
        "ppo.minibatches 5 with learner.batch_size 4 and with net.use_lstm: expected at most 4, because rollouts stay "
        "whole (from flag --ppo.minibatches, flag --learner.batch_size, flag --net.use_lstm)"
    ]
    assert mistakes([*batch, "--ppo.minibatches", "21"]) == [
        "ppo.minibatches 21 with learner.batch_size 4 and with learner.unroll_length 5: expected at most 20, a batch's "
        "steps (from flag --ppo.minibatches, flag --learner.batch_size, flag --learner.unroll_length)"
    ]
    assert load([*batch, "--ppo.minibatches", "4", "--net.use_lstm", "true"], {}).algorithm.minibatches == 4
    assert load([*batch, "--ppo.minibatches", "20"], {}).algorithm.minibatches == 20
    assert load(["--algo", "a2c", "--ppo.minibatches", "65536"], {}).algo == "a2c", "a note is enough"


def test_replay_settings_that_do_not_fit_the_unroll_length_are_refused() -> None:
    rollouts = ["--env", "CartPole-v1", "--learner.unroll_length", "4"]
    assert mistakes([*rollouts, "--algo", "dqn", "--dqn.n_step", "5"]) == [
        "dqn.n_step 5 with learner.unroll_length 4: expected at most as many, as a return ends in its rollout or in "
        "the next one (from flag --dqn.n_step, flag --learner.unroll_length)"
    ]
    assert load([*rollouts, "--algo", "dqn", "--dqn.n_step", "4"], {}).algorithm.n_step == 4
    r2d2 = [*rollouts, "--algo", "r2d2", "--r2d2.n_step", "4", "--r2d2.burn_in"]
    assert mistakes([*r2d2, "10"]) == [
        "r2d2.burn_in 10 with learner.unroll_length 4: expected a multiple, as it begins with a rollout, where the "
        "recurrent state was stored (from flag --r2d2.burn_in, flag --learner.unroll_length)"
    ]
    assert [load([*r2d2, steps], {}).algorithm.burn_in for steps in ("0", "8")] == [0, 8]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--algo dqn --dqn.replay_size 500", "dqn.replay_min_size 1000 with dqn.replay_size 500: expected at most"),
        (
            "--algo dqn --dqn.replay_size 20 --dqn.replay_min_size 9",
            "dqn.batch_size 32 with dqn.replay_size 20: expected at most what it holds",
        ),
        (
            "--algo r2d2 --learner.unroll_length 40 --r2d2.replay_size 70 --r2d2.replay_min_size 70",
            "r2d2.sequence_length 80 with r2d2.replay_size 70: expected at most what it holds",
        ),
        (
            "--algo r2d2 --learner.unroll_length 40 --r2d2.sequence_length 20",
            "r2d2.sequence_length 20 with learner.unroll_length 40: expected at least as many",
        ),
        (
            "--algo dqn --total_steps 1019 --dqn.replay_min_size 1000 --dqn.samples_per_insert 4 --dqn.batch_size 20 "
            "--dqn.updates_per_step 4",
            "total_steps 1019 with dqn.replay_min_size 1000 and with dqn.samples_per_insert 4.0: expected more, as it "
            "ends before the first step, which draws 80 samples",
        ),
        ("--algo dqn --deterministic true", "algo dqn with deterministic: expected one without a replay"),
    ],
)
def test_a_replay_that_could_never_be_drawn_from_is_refused(flags: str, sentence: str) -> None:
    (said,) = mistakes(["--preset", "atari", *flags.split()])
    assert said.startswith(sentence)


@pytest.mark.parametrize(
    ("flags", "values", "line"),
    [
        ("--algo sac --env Pendulum-v1", (10_000, 10_000), ""),
        ("--algo sac --env Pendulum-v1 --total_steps 100000", (10_000, 10_000), ""),
        ("--algo sac --env Pendulum-v1 --total_steps 3000", (300, 300), "replay_min_size 300, sac.random_steps 300"),
        ("--algo td3 --env Pendulum-v1 --total_steps 15000 --td3.random_steps 9000", (1500, 9000), "size 1500"),
        ("--algo dqn --env CartPole-v1 --total_steps 5000", (500, 1250), "min_size 500, dqn.exploration_steps 1250"),
        ("--algo dqn --env CartPole-v1 --total_steps 80000", (1000, 20_000), ""),
        ("--algo sac --env Pendulum-v1 --total_steps 5", None, ""),
    ],
)
def test_what_comes_before_learning_fits_a_short_run(flags: str, values: tuple[int, int] | None, line: str) -> None:
    if values is None:
        assert mistakes(flags.split())[0].startswith("total_steps 5 with sac.replay_min_size 1")
        return
    loaded = gather(flags.split(), {})
    own: Any = loaded.config.algorithm
    later = own.exploration_steps if loaded.config.section == "dqn" else own.random_steps
    assert (own.replay_min_size, later) == values
    said = by_origin(loaded.config, loaded.origins).get(f"total_steps {loaded.config.total_steps}", {})
    assert ", ".join(f"{path} {value}" for path, value in said.items()).endswith(line)
    assert bool(said) == bool(line)


def test_settings_are_not_compared_while_one_of_them_is_wrong() -> None:
    argv = ["--broker.max_batch_rows", "4", "--actor.envs_per_group", "many"]
    assert len(mistakes(argv)) == 1


def test_settings_of_all_layers_are_checked_together() -> None:
    environ = {"BEAST_ACTOR__ENVS_PER_GROUP": "512"}
    assert load(["--broker.max_batch_rows", "512"], environ).actor.envs_per_group == 512


def test_settings_that_the_optimiser_lacks_are_refused_if_given_for_this_start(tmp_path: Path) -> None:
    assert mistakes(["--impala.momentum", "0.1"], {"BEAST_IMPALA__ALPHA": "0.9"}) == [
        "environment BEAST_IMPALA__ALPHA: impala.optimizer is adam (preset atari), which has no alpha; rmsprop has",
        "flag --impala.momentum: impala.optimizer is adam (preset atari), which has no momentum; rmsprop has",
    ]
    assert load(["--impala.momentum", "0.1", "--impala.optimizer", "rmsprop"], {}).algorithm.momentum == 0.1
    assert load(["--algo", "ppo", "--impala.momentum", "0.1"], {}).algo == "ppo", "a note is enough"
    file = tmp_path / "config.yaml"
    file.write_text(dump(load([], {})), encoding="utf-8")
    assert load(["--config", str(file)], {}).algorithm.optimizer == "adam", "a file has all settings"
