"""What a learner leaves behind, and how the next one goes on from it."""

import csv
import errno
from collections.abc import Callable
from pathlib import Path

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
    learned,
    learner_for,
    next_weights,
    opened,
    rollout_rows,
    run_config,
    take_part,
)
from tests.unit.test_cli_folder import without_locks
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.files import metrics
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, WeightsSubscriber
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.launcher.start import judged
from zerobeast.launcher.supervisor import Ending
from zerobeast.services.learner.beginning import resumed
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast.services.learner.update import Trainer


def test_a_restarted_learner_goes_on_as_if_nothing_had_happened(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    states = {}
    for name, parts in {"whole": [range(1, 7)], "halves": [range(1, 4), range(4, 7)]}.items():
        config = run_config(tmp_path, endpoint=endpoint).model_copy(update={"name": name})
        for part in parts:
            learned(config, actor_of(config), part)
        state = load_checkpoint(config.folder / "checkpoint.pt")
        states[name] = state
    for key in ("model", "statistics"):
        assert str(states["whole"][key]) == str(states["halves"][key])
    for name, value in states["whole"]["model"].items():
        assert torch.equal(value, states["halves"]["model"][name]), name
    for entry, other in zip(
        states["whole"]["learning"]["optimizer"]["state"]["state"].values(),
        states["halves"]["learning"]["optimizer"]["state"]["state"].values(),
        strict=True,
    ):
        assert all(torch.equal(torch.as_tensor(entry[key]), torch.as_tensor(other[key])) for key in entry)
    whole, halves = ({**state["counters"], "elapsed_s": 0} for state in states.values())
    assert whole == halves
    assert whole["agent_steps"] == 6 * B * T


def test_a_run_begins_where_its_parent_was_and_goes_on_from_its_own_checkpoint(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    old = run_config(tmp_path, endpoint=endpoint)
    learned(old, actor_of(old), range(1, 4))
    parent = RunConfig.model_validate({"parent": {"run": "run", "agent_steps": 60}}).parent
    new = old.model_copy(update={"name": "new", "parent": parent})
    new.folder.mkdir()
    (old.folder / "checkpoint.pt").rename(new.folder / "parent.pt")
    before = load_checkpoint(new.folder / "parent.pt")
    with opened(new) as learner:
        greet(learner, actor := actor_of(new))
        state = learner.training.trainer.net.state_dict()
        assert all(torch.equal(state[name], value) for name, value in before["model"].items() if name != "agent_steps")
        assert learner.report()["agent_steps"] == learner.report()["episodes"] == int(state["agent_steps"]) == 0
        feed(learner, actor, range(1, 3))
        learner.drain()
    (new.folder / "parent.pt").unlink()
    learned(new, actor_of(new), range(3, 4))
    assert load_checkpoint(new.folder / "checkpoint.pt")["counters"]["agent_steps"] == 60


def test_without_locks_a_learner_stops_when_a_later_one_has_taken_the_folder(
    ipc: str, tmp_path: Path, actor_of: Callable[..., FakeActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", without_locks(errno.ENOSYS))
    config = run_config(tmp_path, endpoint=ipc)
    with opened(config) as first:
        feed(first, actor_of(config), range(1, 3))
        first.tick(first.clock() + 2000)
        files = [config.folder / name for name in ("checkpoint.pt", "metrics.csv")]
        with opened(run_config(tmp_path, endpoint=f"{ipc}2")):
            before = [file.read_bytes() for file in files]
            for write in (lambda: first.tick(first.clock() + 4000), first.drain):
                with pytest.raises(ConfigError, match="a later start trains this run now"):
                    write()
            assert [file.read_bytes() for file in files] == before


def test_a_resumed_learner_publishes_at_once_and_holds_actors_to_its_environment(
    tmp_path: Path, context: Context, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    learned(config, actor_of(config), range(1, 4))
    with opened(config) as learner:
        subscriber = WeightsSubscriber(context, config.learner.endpoint)
        try:
            assert next_weights(learner, subscriber)[0].body[0] == 3
        finally:
            subscriber.close()
        assert learner.report()["agent_steps"] == 60
        assert learner.report()["mean_return_100"] == pytest.approx(2.0)
        other = EnvSpec("Test-v0", ArraySpace.box((5,)), ArraySpace.discrete(2), frame_skip=4)
        with pytest.raises(ConfigError, match=r"env.obs.shape is \[5\], this run has \[4\]"):
            greet(learner, actor_of(config, env=other.to_wire()))


def test_a_finished_run_ends_at_once_when_started_again(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> None:
    config = run_config(tmp_path, total_steps=20, endpoint=f"ipc://{tmp_path}/l")
    first, again = learner_for(config), learner_for(config)
    take_part(actor_of(config), first)
    assert [Loop([first]).run(), Loop([again]).run()] == [0, 0]
    assert [first.page["agent_steps"], again.page["agent_steps"]] == [20, 20]


def test_a_run_that_ends_before_it_learns_again_has_a_last_row_and_counts_as_finished(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, total_steps=2 * B * T, endpoint=endpoint)
    learned(config, actor_of(config), range(1, 2))
    with opened(config) as learner:
        feed(learner, actor_of(config), range(2, 3))
        learner.meters.last = None  # as with a replay that holds too few rows
        learner.drain()
    assert metrics.last(config.folder)["agent_steps"] == 2 * B * T
    assert judged(Ending(0, finished=True), config).finished


def test_a_run_ends_with_the_update_that_reaches_its_return_and_ends_at_once_when_started_again(
    tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    given = run_config(tmp_path, total_steps=10**6, endpoint=f"ipc://{tmp_path}/l", window=4)
    config = given.model_copy(update={"stop_at_return": 90.0})
    with opened(config) as learner:
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
    with opened(higher) as learner:
        assert not learner.training.finished
        assert not (config.folder / "reached").exists()


def test_periodic_checkpoints_and_rows_are_written_when_due(open_run: Opener) -> None:
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
    with (folder / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["agent_steps"] == "40"
    assert float(row["pg_loss"]) == float(row["pg_loss"])
    assert (folder / "tensorboard").is_dir()


def test_a_periodic_checkpoint_that_fails_does_not_end_the_run_but_the_last_one_does(
    open_run: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    run = open_run(checkpoint_every_s=1.0)
    learner = run.learner
    feed(learner, run.actor(), range(1, 2))
    (learner.config.folder / ".checkpoint.pt.new").mkdir()
    learner.tick(learner.deadline())
    learner.tick(learner.deadline())
    assert caplog.text.count("the checkpoint cannot be written") == 1
    with pytest.raises(CheckpointError, match="cannot be written"):
        learner.drain()


def unmade(_env: EnvSpec) -> Trainer:
    raise NotImplementedError("a network")


def test_a_checkpoint_of_another_environment_is_refused_before_anything_starts(
    tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    learned(config, actor_of(config), range(1, 2))
    other = RunConfig.model_validate({**config.model_dump(), "env": {"id": "Other-v0"}})
    with pytest.raises(CheckpointError, match=r"made with env\.id Test-v0, this run has Other-v0"):
        Loop([learner_for(other)]).run()
    wider = RunConfig.model_validate({**config.model_dump(), "net": {"torso": "mlp", "hidden_size": 32}})
    with pytest.raises(CheckpointError, match="of another architecture: parameter"):
        Loop([learner_for(wider)]).run()
    bent = RunConfig.model_validate({**config.model_dump(), "net": {**config.net.model_dump(), "activation": "elu"}})
    with pytest.raises(CheckpointError, match=r"made with net\.activation auto, this run has elu"):
        Loop([learner_for(bent)]).run()
    before = torch.load(config.folder / "checkpoint.pt")
    before["config"]["net"]["last_action_reward"] = "always"
    torch.save(before, config.folder / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"made with net\.last_action_reward always, this run has never"):
        Loop([learner_for(config)]).run()
    settings = config.model_dump()
    of_bytes = before["env"] | {"obs": before["env"]["obs"] | {"dtype": "|u1"}}
    of_then = settings | {"net": settings["net"] | {"pixels": "all"}}
    torch.save(before | {"env": of_bytes, "config": of_then}, config.folder / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"made with net\.pixels all, this run has auto"):
        Loop([learner_for(config)]).run()
    torch.save(before | {"config": before["config"] | {"algo": "sac", "sac": {}}}, config.folder / "checkpoint.pt")
    settings.pop("impala")
    sac = RunConfig.model_validate(settings | {"algo": "sac"})
    path = config.folder / "checkpoint.pt"
    with pytest.raises(NotImplementedError, match="a network"):  # it never sees such inputs
        resumed(sac, path, load_checkpoint(path), learner_for(sac).meters, unmade)
    by_reference = of_then | {"algo": "absent:SPEC"}  # which is not imported, since a checkpoint is data
    torch.save(before | {"config": by_reference}, config.folder / "checkpoint.pt")
    learned(config, actor_of(config), range(2, 3))


def test_the_log_of_a_learner_that_continues_reports_what_its_schedule_does(
    tmp_path: Path, actor_of: Callable[..., FakeActor], caplog: pytest.LogCaptureFixture
) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l", total_steps=2 * B * T)
    learned(config, actor_of(config), range(1, 2))
    caplog.set_level("INFO")
    for total, note in ((2, ""), (4, "the learning rate, 0.0003 before, continues at 0.00045 and falls to 0 at")):
        caplog.clear()
        with opened(config.model_copy(update={"total_steps": total * B * T})):
            [line] = [record.message for record in caplog.records if "continuing" in record.message]
        assert note in line if note else line.endswith(f"at agent step {B * T}")


def test_two_learners_cannot_share_a_run_or_an_endpoint(tmp_path: Path) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config):
        elsewhere = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/m")
        with pytest.raises(ConfigError, match="another process trains this run"):
            Loop([learner_for(elsewhere)]).run()
        other = config.model_copy(update={"name": "other"})
        with pytest.raises(ConfigError, match="in use by another process"):
            Loop([learner_for(other)]).run()
    with opened(config):
        pass
