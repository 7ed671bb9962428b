"""A TorchBeast user's command line, and what becomes of its numbers."""

import pytest

from tests.build.errors import refused
from zerobeast.common.config.load import gather, load
from zerobeast.common.config.table import value_at

README = """--env PongNoFrameskip-v4 --num_actors 45 --total_steps 30000000 --learning_rate 0.0004 --epsilon 0.01
    --entropy_cost 0.01 --batch_size 4 --unroll_length 80 --num_buffers 60 --num_threads 4 --xpid example"""


def test_the_command_of_its_readme_loads_to_the_right_tree() -> None:
    loaded = gather(README.split(), {"BEAST_ACTOR__ENV_GROUPS": "2"})
    expected = {
        "name": "example",
        "total_steps": 30_000_000,
        "actor.envs_per_group": 23,  # 45 over two groups, rounded up
        "learner.batch_size": 4,
        "learner.unroll_length": 80,
        "impala.learning_rate": 0.0004,
    }
    assert {path: value_at(loaded.config, path) for path in expected} == expected
    assert loaded.config.env.id == "PongNoFrameskip-v4"
    assert (loaded.config.algorithm.epsilon, loaded.config.algorithm.entropy_cost) == (0.01, 0.01)
    _, needless, defaults = loaded.notes
    assert needless.startswith("--num_threads is not needed here")
    assert defaults.startswith("--num_actors is a flag of TorchBeast")
    assert ("impala.optimizer 'adam'" in defaults, "learner.batch_size" in defaults) == (True, False), "it was given"
    assert loaded.origins["learner.batch_size"] == "flag --batch_size"
    assert loaded.origins["actor.envs_per_group"].startswith("flag --num_actors")


def test_every_other_flag_sets_its_equivalent_or_is_taken_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    flags = """--savedir logs --use_lstm --baseline_cost .25 --discounting .9 --reward_clipping none --alpha .9
        --momentum .1 --grad_norm_clipping 10 --disable_cuda --mode train --impala.optimizer rmsprop""".split()
    config = load(flags, {})
    impala = config.algorithm
    assert (config.root, config.net.use_lstm) == ("logs", True)
    assert (impala.baseline_cost, impala.discount, impala.reward_clipping) == (0.25, 0.9, "none")
    assert (impala.alpha, impala.momentum, impala.max_grad_norm) == (0.9, 0.1, 10.0)
    assert (config.broker.device, config.learner.device) == ("cpu", "cpu")
    caplog.clear()
    flags = """--num_buffers 60 --num_learner_threads 2 --num_inference_threads 2 --num_servers 4 --num_actions 6
        --max_learner_queue_size 8 --pipes_basename unix:/tmp/x --disable_checkpoint --write_profiler_trace""".split()
    assert load([*flags, "--preset", "torchbeast"], {}) == load(["--preset", "torchbeast"], {})
    assert len(caplog.records) == 9, "and none about defaults"
    shared = "--learning_rate .1 --entropy_cost .1 --epsilon .1 --unroll_length 9 --use_lstm"
    assert gather(["--env", "CartPole-v1", *shared.split()], {}).notes == (), "names that are ours too"


def test_a_wrong_flag_is_refused_with_the_setting_that_it_stands_for() -> None:
    for flags, path in (
        ("--num_actors 0", "actor.envs_per_group"),
        ("--num_actors", "num_actors"),
        ("--mode test", "mode"),
        ("--algo ppo --discounting 2", "ppo.discount"),
    ):
        with refused(path):
            load(flags.split(), {})


def test_flags_of_an_algorithm_set_the_one_that_runs() -> None:
    for algorithm in (["--algo", "ppo"], ["--preset", "classic-ppo"]):
        loaded = gather([*algorithm, "--entropy_cost", "0.5", "--learning_rate", "1", "--ppo.learning_rate", "2"], {})
        assert (loaded.config.algorithm.entropy_cost, loaded.config.algorithm.learning_rate) == (0.5, 2)
        assert loaded.origins["ppo.entropy_cost"] == "flag --entropy_cost"


@pytest.mark.parametrize(
    ("flags", "envs"),
    [
        ("--num_actors 4 --batch_size 8", 2),
        ("--num_actors 5 --actor.env_groups 1 --batch_size 5", 5),
        ("--num_actors 64 --local.actors 4", 8),
        ("--num_actors 4 --actor.envs_per_group 7", 7),  # a setting's own flag wins
    ],
)
def test_num_actors_counts_environments_of_all_groups(flags: str, envs: int) -> None:
    groups = {"BEAST_ACTOR__ENV_GROUPS": "2", "BEAST_ACTOR__ENVS_PER_GROUP": "16"}
    config = load(flags.split(), groups | {"BEAST_LEARNER__BATCH_SIZE": "32"})
    assert config.actor.envs_per_group == envs
