"""What a deterministic run requires of its other settings."""

from pathlib import Path

import pytest

from zerobeast.common.config.load import dump, gather, load
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.placement import groups_of
from zerobeast.rl.acting.weights_inbox import shared_place

CARTPOLE = ["--env", "CartPole-v1", "--actor.env_groups", "2", "--actor.envs_per_group", "8", "--deterministic", "true"]


def refusals(*flags: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        gather([*CARTPOLE, *flags], {}, groups=groups_of)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("flags", "envs"),
    [
        ("--local.actors 2 --actor.env_groups 1", 16),
        ("--local.placement fused --local.workers 3", 48),
        ("--actor.envs_per_group 4", 8),
    ],
)
def test_deterministic_overrides_the_preset_where_it_must(flags: str, envs: int) -> None:
    loaded = gather([*CARTPOLE, "--algo", "impala", *flags.split()], {}, groups=groups_of)
    config = loaded.config
    assert config.learner.batch_size == envs
    assert config.broker.max_batch_rows == config.actor.envs_per_group
    assert (config.actor.collect_ahead, config.learner.window, config.learner.publish_every) == (False, 1, 1)
    for service in (config.broker, config.learner):
        assert (service.device, service.threads, service.precision) == ("cpu", 1, "float32")
    assert loaded.origins["learner.batch_size"] == "deterministic true: learner.batch_size"


def test_without_deterministic_nothing_changes() -> None:
    assert gather(CARTPOLE[:-2], {}, groups=groups_of).config == load(CARTPOLE[:-2], {})


def test_settings_that_contradict_deterministic_are_refused() -> None:
    assert refusals("--actor.collect_ahead", "true", "--broker.threads", "2") == [
        "actor.collect_ahead true with deterministic: expected false, so that acting and learning take turns "
        "(from flag --actor.collect_ahead, flag --deterministic)",
        "broker.threads 2 with deterministic: expected 1, so that sums are made in the same order "
        "(from flag --broker.threads, flag --deterministic)",
    ]
    assert refusals("--learner.batch_size", "8") == [
        "learner.batch_size 8 with deterministic: expected 16, so that a batch has one rollout of every environment "
        "of the run (from flag --learner.batch_size, flag --deterministic)"
    ]
    assert gather([*CARTPOLE, "--learner.batch_size", "16"], {}, groups=groups_of).config.learner.batch_size == 16


def test_an_end_that_depends_on_the_clock_is_refused() -> None:
    gather([*CARTPOLE, "--stop_at_return", "400"], {}, groups=groups_of)
    (sentence,) = refusals("--stop_at_return", "400", "--evaluate.times", "4")
    assert sentence.startswith(
        "stop_at_return 400.0 with deterministic and with evaluate.times 4: expected at most two of the three"
    )


def test_settings_derived_from_deterministic_are_checked_against_the_others() -> None:
    minibatches = ("--algo", "ppo", "--net.use_lstm", "true", "--ppo.minibatches", "12")
    assert gather([*CARTPOLE, *minibatches], {}, groups=groups_of).config.learner.batch_size == 16
    (sentence,) = refusals(*minibatches, "--actor.env_groups", "1")
    assert sentence.startswith("ppo.minibatches 12 with learner.batch_size 8")


def test_services_read_the_saved_settings_back_unchanged(tmp_path: Path) -> None:
    config = gather([*CARTPOLE, "--local.actors", "3"], {}, groups=groups_of).config
    (file := tmp_path / "config.yaml").write_text(dump(config))
    assert load(["--config", str(file)], {}) == gather(["--config", str(file)], {}, groups=groups_of).config == config


def test_weights_over_tcp_are_refused() -> None:
    config = RunConfig(deterministic=True)
    with pytest.raises(ConfigError, match=r"learner.endpoint tcp://127.0.0.1:5560 with deterministic: expected ipc://"):
        shared_place(config)
    assert shared_place(RunConfig()) is None
    local = config.model_copy(update={"learner": config.learner.model_copy(update={"endpoint": "ipc:///r/l"})})
    assert shared_place(local) == Path("/r/l.weights")
