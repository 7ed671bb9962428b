"""What a learner leaves behind, and how the next one goes on from it or says why not."""

import copy
import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tests.build.learners import (
    B,
    FakeActor,
    Opener,
    T,
    drive,
    feed,
    greet,
    learn_batches,
    learner_for,
    next_weights,
    open_learner,
    rollout_rows,
    run_config,
)
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.files import metrics
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, WeightsSubscriber
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.services.learner.checkpoint import load_checkpoint


@pytest.fixture
def config(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> RunConfig:
    """The settings of a run that has a checkpoint."""
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    learn_batches(config, actor_of(config), range(1, 3))
    return config


def test_without_locks_a_learner_stops_when_a_later_one_has_taken_the_folder(
    ipc: str, tmp_path: Path, actor_of: Callable[..., FakeActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOSYS, "")))
    config = run_config(tmp_path, endpoint=ipc)
    with open_learner(config) as first:
        feed(first, actor_of(config), range(1, 3))
        first.tick(first.clock() + 2000)
        files = [config.folder / name for name in ("checkpoint.pt", "metrics.csv")]
        with open_learner(run_config(tmp_path, endpoint=f"{ipc}2")):
            before = [file.read_bytes() for file in files]
            for write in (lambda: first.tick(first.clock() + 4000), first.drain):
                with pytest.raises(ConfigError):
                    write()
            assert [file.read_bytes() for file in files] == before


def test_a_resumed_learner_publishes_at_once_and_holds_actors_to_its_environment(
    config: RunConfig, context: Context, actor_of: Callable[..., FakeActor]
) -> None:
    with open_learner(config) as learner:
        with closing(WeightsSubscriber(context, config.learner.endpoint)) as subscriber:
            assert next_weights(learner, subscriber)[0].body[0] == 2
        page = learner.report()
        assert (page["agent_steps"], page["mean_return_100"]) == (40, pytest.approx(1.5))
        other = EnvSpec("Test-v0", ArraySpace.box((5,)), ArraySpace.discrete(2), frame_skip=4)
        with pytest.raises(ConfigError):
            greet(learner, actor_of(config, env=other.to_wire()))


def test_a_run_ends_with_the_update_that_reaches_its_return_and_ends_at_once_when_started_again(
    tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    given = run_config(tmp_path, total_steps=10**6, endpoint=f"ipc://{tmp_path}/l", window=4)
    config = given.model_copy(update={"stop_at_return": 90.0})
    with open_learner(config) as learner:
        greet(learner, actor := actor_of(config))
        for seq, value in enumerate((10.0, 90.0, 10.0), 1):
            actor.push(seq, rollout_rows(4, seq), [[value, 1]] * 100)
        drive(learner, [actor], lambda: learner.stopping)
        learner.drain()
    assert load_checkpoint(config.folder / "checkpoint.pt")["counters"]["agent_steps"] == 2 * B * T
    Loop([again := learner_for(config)]).run()
    assert again.page["agent_steps"] == 2 * B * T
    assert (config.folder / "reached").exists()
    higher = config.model_copy(update={"stop_at_return": 91.0})
    with open_learner(higher) as learner:
        assert not learner.training.finished
        assert not (config.folder / "reached").exists()


def test_periodic_checkpoints_and_rows_are_written_when_due_and_a_failure_ends_the_run_only_at_its_end(
    open_run: Opener,
) -> None:
    run = open_run(checkpoint_every_s=5.0, log_every_s=7.0)
    learner, folder = run.learner, run.learner.config.folder
    learner.tick(learner.deadline())
    feed(learner, run.actor(), range(1, 3))
    path = folder / "checkpoint.pt"
    assert not path.exists(), "nothing to save before anything was learned"
    learner.tick(learner.deadline() + 10)
    first = path.stat().st_mtime_ns
    learner.tick(learner.deadline() - 1)
    assert path.stat().st_mtime_ns == first
    row = metrics.read_last_row(folder)
    assert row["agent_steps"] == 40
    assert "pg_loss" in row
    (folder / ".checkpoint.pt.new").mkdir()
    learner.tick(learner.deadline() + 10)
    assert path.stat().st_mtime_ns == first
    with pytest.raises(CheckpointError):
        learner.drain()


def test_a_checkpoint_of_another_run_is_refused_before_anything_starts_and_its_other_settings_are_data(
    config: RunConfig, actor_of: Callable[..., FakeActor]
) -> None:
    tree = config.model_dump()
    for section, changes in (("env", {"id": "Other-v0"}), ("net", {"hidden_size": 32}), ("net", {"activation": "elu"})):
        with pytest.raises(CheckpointError):
            Loop([learner_for(RunConfig.model_validate(tree | {section: tree[section] | changes}))]).run()
    file = config.folder / "checkpoint.pt"
    state = torch.load(file)
    torch.save(state | {"config": state["config"] | {"algo": "absent:SPEC"}}, file)
    learn_batches(config, actor_of(config), range(3, 4))  # nothing was imported
    net = state["config"]["net"] | {"last_action_reward": "always"}
    torch.save(state | {"config": state["config"] | {"net": net}}, file)
    with pytest.raises(CheckpointError):
        Loop([learner_for(config)]).run()


def test_two_learners_cannot_share_a_run_or_an_endpoint(tmp_path: Path) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    elsewhere, other = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/m"), config.model_copy(update={"name": "other"})
    with open_learner(config):
        for second in (elsewhere, other):
            with pytest.raises(ConfigError, match="another"):
                Loop([learner_for(second)]).run()
    with open_learner(config):
        pass


REPLACEMENTS: list[Any] = [None, -1, 1e308, "text", [], {}, [[1]], torch.ones(2, 3), {"a": torch.zeros(0)}, 2**70]
REPLACED_BY_TENSOR = 7


def places(tree: Any, depth: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every entry down to a depth."""
    if path:
        yield path
    if depth and isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, depth - 1, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(tree)
    branch = changed
    for key in path[:-1]:
        branch = branch[key]
    branch[path[-1]] = value
    return changed


def test_a_checkpoint_is_held_to_its_schema(config: RunConfig, tmp_path: Path) -> None:
    path = config.folder / "checkpoint.pt"
    good = load_checkpoint(path)
    sentences = []
    used = [place for place in places(good, 3) if place[0] not in ("config", "policy") or len(place) == 1]
    for number, place in [*enumerate(used), (REPLACED_BY_TENSOR, ("statistics", "lost"))]:
        torch.save(replaced(good, place, REPLACEMENTS[number % len(REPLACEMENTS)]), path)
        try:
            with open_learner(config):
                pass
        except CheckpointError as error:
            sentences.append(str(error))
    assert all(sentence.startswith(f"{path}: ") for sentence in sentences), sentences
    assert len(sentences) > len(used) / 2
