"""What a deterministic run requires of its other settings."""

from pathlib import Path

import pytest

from tests.build.errors import refused
from zerobeast.common.config.load import dump, gather, load
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.placement import groups_of
from zerobeast.rl.acting.weights_inbox import shared_place

CARTPOLE = ["--env", "CartPole-v1", "--actor.env_groups", "2", "--actor.envs_per_group", "8", "--deterministic", "true"]


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


def test_services_read_the_saved_settings_back_unchanged(tmp_path: Path) -> None:
    config = gather([*CARTPOLE, "--local.actors", "3"], {}, groups=groups_of).config
    (file := tmp_path / "config.yaml").write_text(dump(config))
    assert load(["--config", str(file)], {}) == gather(["--config", str(file)], {}, groups=groups_of).config == config


def test_weights_over_tcp_are_refused() -> None:
    config = RunConfig(deterministic=True)
    with refused("learner.endpoint", value="tcp://127.0.0.1:5560"):
        shared_place(config)
    assert shared_place(RunConfig()) is None
    local = config.model_copy(update={"learner": config.learner.model_copy(update={"endpoint": "ipc:///r/l"})})
    assert shared_place(local) == Path("/r/l.weights")
