"""Presets, which of them an environment and an algorithm choose, and TorchBeast's flags."""

from collections.abc import Mapping

import pytest

from zerobeast.common.config import preset
from zerobeast.common.config.layers import Given
from zerobeast.common.config.load import gather, load
from zerobeast.common.config.table import value_at
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

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


@pytest.mark.parametrize("name", preset.names())
def test_every_preset_is_valid_and_has_what_is_published(name: str) -> None:
    loaded = gather(["--preset", name], {})
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
    assert load(["--env", env_id], {}) == load(["--env", env_id, "--preset", name], {})
    assert load([], {"BEAST_ENV__ID": env_id}).algorithm == load(["--preset", name], {}).algorithm


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
    assert load(["--env", env_id, "--algo", algo], {}) == load(["--env", env_id, "--preset", name, "--algo", algo], {})
    assert load(["--env", env_id], {"BEAST_ALGO": algo}).algo == algo


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
        loaded = gather(["--env", "mine:Own-v0,mine:Other-v0", "--algo", algo], {}, describe=lambda _: env)
        assert loaded.config.preset == name + end
        assert loaded.origins["preset"] == f"chosen for mine:Own-v0,mine:Other-v0 and {algo}"


def test_an_atari_game_that_its_module_makes_is_remarked_upon_with_the_id_to_use() -> None:
    for env_id, usual in (("ale_py:ALE/Breakout-v5", "Breakout"), ("ale_py:PongNoFrameskip-v4", "Pong")):
        [note] = gather(["--preset", "atari", "--env", env_id], {}).notes
        assert (env_id in note, f"ALE/{usual}-v5" in note.partition(";")[2]) == (True, True)
    for others in (["ALE/Pong-v5,mine:Own-v0"], ["ale_py:ALE/Pong-v5", "--env.kwargs", "{obs_type: ram}"]):
        assert not gather(["--preset", "atari", "--env", *others], {}).notes


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


def test_a_named_preset_replaces_the_family_and_lies_below_everything_else() -> None:
    config = load(["--env", "CartPole-v1", "--preset", "torchbeast", "--learner.batch_size", "2"], {})
    assert (config.algorithm.optimizer, config.learner.batch_size) == ("rmsprop", 2)
    assert load(["--preset", "atari"], {"BEAST_PRESET": "torchbeast"}) == load(["--preset", "atari"], {})
    assert load([], {"BEAST_PRESET": "torchbeast"}).learner.unroll_length == 80
    assert load([], {"BEAST_PRESET": ""}).preset == "atari", "as if it were not there"
    assert load(["--algo", "rainbow", "--preset", "atari-c51"], {}).preset == "atari-c51", "that of an ancestor"


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
