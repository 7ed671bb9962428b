"""Runs that begin with what another one has learned."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.build.batches import REACH, VECTORS
from tests.build.learners import CPU, ENV, run_config, save_checkpoint, state_in, train_on_seeds
from tests.build.starts import NOW
from zerobeast.cli.train import TrainFlags
from zerobeast.common.config.load import Request, dump, load_config
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.plan import parent as launcher
from zerobeast.plan.parent import load_parent
from zerobeast.plan.resolution import resolve_run
from zerobeast.rl.protocol import OF_ITS_RUN
from zerobeast.services.learner.parent import Parent, read_parent
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import are_same

ON_POLICY: list[tuple[str, dict[str, Any]]] = [
    ("impala", {"batches": 3, "uses": 4, "entropy_target": 0.5, "replay_share": 0.5, "replay_rollouts": 6}),
    ("ppo", {"epochs": 2, "minibatches": 3, "normalize_returns": True}),
    ("vmpo", {"target_period": 2, "popart": True}),
]


def config_of(root: Path, name: str, algo: str, settings: dict[str, Any] | None = None, **run: Any) -> RunConfig:
    tree = run_config(root).model_dump()
    tree.pop("impala")
    net = {**tree["net"], **run.pop("net", {})}
    return RunConfig.model_validate({**tree, "name": name, "algo": algo, algo: settings or {}, "net": net, **run})


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in net.state_dict().items() if name != "agent_steps"}


def learned(state: Any) -> Any:
    """What a run has learned besides its policy: without settings of optimisers, and steps that networks know of."""
    left_out = OF_ITS_RUN | {"param_groups", "agent_steps"}
    if isinstance(state, dict):
        return {name: learned(value) for name, value in state.items() if name not in left_out}
    return state


@pytest.mark.parametrize(("algo", "settings"), ON_POLICY)
def test_a_run_begins_with_weights_and_optimisers_of_another_and_counts_anew(
    tmp_path: Path, algo: str, settings: dict[str, Any]
) -> None:
    net = {"normalize_obs": True}
    old = train_on_seeds(Trainer(config_of(tmp_path, "old", algo, settings, net=net), CPU, ENV), range(5))
    path = save_checkpoint(tmp_path, old)
    config = config_of(tmp_path, "new", algo, settings, net=net, seed=7)
    new = Trainer(config, CPU, ENV, Parent("old", path, state_in(path)))
    assert are_same(weights(new.net), weights(old.net))
    assert are_same(learned(new.learning.state()), learned(old.learning.state()))
    assert new.counters.agent_steps == new.counters.policy_version == int(new.net.agent_steps) == 0
    fresh = Trainer(config, CPU, ENV).learning.state()
    for name in fresh.keys() & OF_ITS_RUN:
        assert are_same(new.learning.state()[name], fresh[name]), f"{name}: nothing that the other run has collected"
    assert train_on_seeds(new, range(5, 7)).counters.agent_steps == 40


@pytest.mark.parametrize(("algo", "env"), [("dqn", VECTORS), ("r2d2", VECTORS), ("sac", REACH)])
def test_of_an_algorithm_with_a_replay_the_critics_and_targets_go_on_and_the_replay_is_empty(
    tmp_path: Path, algo: str, env: Any
) -> None:
    net = {"core": "lstm" if algo == "r2d2" else "none", "core_width": 8}
    old = Trainer(config_of(tmp_path, "old", algo, net=net), CPU, env)
    for part in old.learning.parts.values():  # type: ignore[attr-defined]
        module = part if isinstance(part, torch.nn.Module) else getattr(part, "copy", torch.nn.Module())
        for parameter in module.parameters():
            parameter.data.add_(0.5)
    state = old.state()
    state["learning"]["pace"]["inserted"] = state["learning"]["replay"]["inserted"] = 1000
    state["counters"]["agent_steps"] = 1000
    new = Trainer(config_of(tmp_path, "new", algo, net=net, seed=7), CPU, env, Parent("old", tmp_path, state))
    assert are_same(weights(new.net), weights(old.net))
    assert are_same(learned(new.learning.state()), learned(state["learning"]))
    assert new.learning.state()["pace"]["inserted"] == new.learning.state()["replay"]["inserted"] == 0


def test_another_algorithm_takes_the_weights_alone_and_an_optimiser_of_another_kind_begins_anew(tmp_path: Path) -> None:
    config = config_of(tmp_path, "old", "ppo", {"epochs": 1})
    path = save_checkpoint(tmp_path, old := train_on_seeds(Trainer(config, CPU, ENV), range(3)))
    for algo, settings in [("vmpo", {}), ("ppo", {"epochs": 1, "optimizer": "rmsprop"})]:
        new = Trainer(config_of(tmp_path, "new", algo, settings), CPU, ENV, Parent("old", path, state_in(path)))
        assert are_same(weights(new.net), weights(old.net))
        assert new.learning.state()["optimizer"]["state"]["state"] == {}
        assert train_on_seeds(new, range(2)).counters.updates == 2


def test_what_does_not_fit_and_a_missing_checkpoint_are_refused_with_the_name_of_the_parent(tmp_path: Path) -> None:
    narrow = Trainer(config_of(tmp_path, "old", "ppo"), CPU, ENV).state()
    two = Trainer(config_of(tmp_path, "old", "td3"), CPU, REACH).state()
    wider = config_of(tmp_path, "new", "ppo", net={"hidden_size": 32})
    three = config_of(tmp_path, "new", "td3", {"critics": 3})
    for config, env, state in ((wider, ENV, narrow), (three, REACH, two)):
        with pytest.raises(CheckpointError, match=r"net.* of old"):
            Trainer(config, CPU, env, Parent("old", tmp_path, state))
    with pytest.raises(CheckpointError, match=r"parent\.run"):
        read_parent(config_of(tmp_path, "new", "ppo", parent={"run": "old", "agent_steps": 5}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that has trained 60 steps with the settings of its config.yaml."""
    flags = ["--env", "CartPole-v1", "--algo", "ppo", "--net.hidden_size", "16", "--learner.batch_size", "4"]
    config = load_config(["--root", str(tmp_path), "--name", "old", *flags, "--learner.unroll_length", "32"], {})
    config.folder.mkdir()
    trainer = Trainer(config, CPU, ENV)
    trainer.counters.agent_steps = 60
    save_checkpoint(config.folder, trainer)
    (config.folder / "config.yaml").write_text(dump(config))
    return config.folder


def forked(run: Path, *flags: str, place: Path | None = None) -> Any:
    parent = load_parent("old", place or run)
    request = Request.of_flags(["--root", str(run.parent), "--name", "new", *flags], {}, TrainFlags)
    return resolve_run(request, NOW, parent=parent)


def test_a_fork_has_the_settings_of_its_parent_under_those_that_are_given_and_names_it(run: Path) -> None:
    resolved = forked(run, "--learner.batch_size", "8", "--env.kwargs", '{"sutton_barto_reward": true}')
    config = resolved.config
    assert (config.name, config.algo, config.net.hidden_size, config.learner.batch_size) == ("new", "ppo", 16, 8)
    assert (config.env.id, config.env.kwargs) == ("CartPole-v1", {"sutton_barto_reward": True})
    assert (config.parent.run, config.parent.agent_steps, resolved.saved) == ("old", 60, None)
    assert resolved.origins["net.hidden_size"].startswith(f"file {run}/config.yaml")


def test_arguments_and_levels_of_a_fork_follow_from_those_of_its_parent(run: Path) -> None:
    config = run / "config.yaml"
    text = config.read_text().replace("kwargs: {}", "kwargs: {sutton_barto_reward: true}")
    config.write_text(text.replace("levels: ''", "levels: rare"))
    added = {"sutton_barto_reward": True, "max_episode_steps": 9}
    for given, found in (("{max_episode_steps: 9}", added), ("{sutton_barto_reward: null}", {})):
        assert forked(run, "--env.kwargs", given).config.env.kwargs == found
    assert forked(run).config.evaluate.levels == "rare"
    assert forked(run, "--env", "CartPole-v0").config.evaluate.levels == "", "they are of its environment"


def fork_of(parent: RunConfig, *flags: str) -> RunConfig:
    """The settings of a run that begins with the weights of one with these."""
    other = launcher.Parent("old", Path("config.yaml"), yaml.safe_load(dump(parent)), {"counters": {"agent_steps": 60}})
    request = Request.of_flags(["--root", "nowhere", "--name", "new", *flags], {}, TrainFlags)
    return resolve_run(request, NOW, parent=other).config


@pytest.mark.parametrize(("before", "after"), [("5000", "1000000"), ("1000000", "5000")])
def test_what_follows_from_the_length_of_a_run_follows_in_a_fork_from_its_own(before: str, after: str) -> None:
    flags = ["--env", "CartPole-v1", "--algo", "dqn", "--total_steps"]
    fresh = load_config([*flags, after], {}).algorithm
    shorter = fresh.model_copy(update={"exploration_steps": 300})
    for given, own in (([], fresh), (["--dqn.exploration_steps", "300"], shorter)):
        assert fork_of(load_config([*flags, before, *given], {}), "--total_steps", after).algorithm == own


def test_another_algorithm_or_a_checkpoint_elsewhere_has_what_weights_are_bound_to(run: Path, tmp_path: Path) -> None:
    config = forked(run, "--algo", "impala").config
    assert (config.section, config.preset, config.env.id) == ("impala", "cartpole-impala", "CartPole-v1")
    assert config.net.hidden_size == 16
    assert config.learner.unroll_length == load_config(["--env", "CartPole-v1"], {}).learner.unroll_length
    place = tmp_path / "elsewhere" / "mine.pt"
    place.parent.mkdir()
    place.write_bytes((run / "checkpoint.pt").read_bytes())
    config = forked(run, place=place).config
    assert (config.section, config.env.id, config.net.hidden_size) == ("ppo", "CartPole-v1", 16)
    assert config.learner.batch_size == load_config(["--env", "CartPole-v1", "--algo", "ppo"], {}).learner.batch_size


def test_a_fork_takes_no_name_of_a_run_and_a_parent_imports_nothing_by_its_file_alone(run: Path) -> None:
    with pytest.raises(ConfigError, match="--fresh"):
        forked(run, "--name", "old")
    assert forked(run, "--name", "old", "--fresh").config.parent.run == "old", "that is moved aside"
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("id: CartPole-v1", "id: os:path"))
    with pytest.raises(ConfigError, match="os:path"):
        forked(run)
