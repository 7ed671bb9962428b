"""Q-learning together with its replay: the targets that rollouts give, and that a restart changes nothing."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.build.batches import same, weights
from tests.build.learners import ENV
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.records import Origin
from zerobeast.rl.ops.tree import leaves
from zerobeast.services.learner.update import Trainer

CPU, T, B = torch.device("cpu"), 4, 3
SMALL = {"replay_size": 120, "replay_min_size": 24, "batch_size": 5, "samples_per_insert": 1.0, "updates_per_step": 2}


def trainer(root: Path, algo: str, **settings: Any) -> Trainer:
    learner = {"unroll_length": T, "batch_size": B, "device": "cpu", "precision": "float32"}
    run = {"name": "run", "root": str(root), "algo": algo, "learner": learner, "net": {"hidden_size": 8}}
    return Trainer(RunConfig.model_validate(run | {algo: SMALL | settings}), CPU, ENV)


def rollouts(of: Trainer, seed: int) -> NDArray[np.void]:
    """[B] rows of random steps; in each row an episode ends."""
    g, rows = np.random.default_rng(seed), np.zeros(B, of.record.dtype)
    for name in ("obs", "reward", *(extra.name for extra in of.policy.extras)):
        rows[name] = g.normal(size=rows[name].shape)
    rows["last_action"] = g.integers(0, 2, rows["last_action"].shape)
    rows["terminated"][:, 2], rows["first"][:, 3] = g.random(B) < 0.5, True
    rows["truncated"][:, 2] = ~rows["terminated"][:, 2]
    return rows


def add(to: Trainer, rows: NDArray[np.void], seq: int) -> None:
    to.add(rows, origins=np.array([Origin(7, 0, seq, row, B) for row in range(B)]))


def learn(of: Trainer, seqs: range) -> None:
    for seq in seqs:
        add(of, rollouts(of, seq), seq)
        while of.learning.due:
            of.step()


def test_targets_are_made_of_shaped_rewards_as_written_out_by_hand(tmp_path: Path) -> None:
    """Nine steps of a stream in two rollouts; an episode terminates at observation 5, another begins at 6."""
    dqn = trainer(tmp_path, "dqn", n_step=2, discount=0.5, reward_scale=0.5, reward_clipping="abs_one")
    first, second = np.zeros(1, dqn.record.dtype), np.zeros(1, dqn.record.dtype)
    for at, rows in ((0, first), (4, second)):
        rows["obs"] = np.arange(at, at + 5)[:, None]
        rows["reward"] = [0, 1, -1, 9, 0.5, 2, 0, 0.25, 1][at : at + 5]
        rows["last_action"] = (np.arange(at, at + 5) - 1) % 2
    second["terminated"][0, 1] = second["first"][0, 2] = True
    for seq, rows in enumerate((first, second)):
        dqn.add(rows, origins=np.array([Origin(7, 0, seq, 0, 1)]))
    batch = dqn.learning._replay.draw(300, 1.0).batch  # type: ignore[attr-defined]
    columns = (batch.inputs.obs[0, :, 0], batch.action, batch.reward, batch.discount, batch.next_inputs.obs[0, :, 0])
    assert set(zip(*(column.tolist() for column in columns), strict=True)) == {
        (0.0, 0, 0.5 + 0.5 * -0.5, 0.25, 2.0),
        (1.0, 1, -0.5 + 0.5 * 1.0, 0.25, 3.0),  # 9 is scaled to 4.5 and clipped to 1
        (2.0, 0, 1.0 + 0.5 * 0.25, 0.25, 4.0),
        (3.0, 1, 0.25 + 0.5 * 1.0, 0.0, 5.0),  # spans both rollouts
        (4.0, 0, 1.0, 0.0, 5.0),
    }, "nothing was done from 5, the end; what the policy says to 8 is in the next rollout"


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("dqn", {"priority_exponent": 0.6, "n_step": 3, "target_period": 3}),
        ("dqn", {"target_period": 1, "target_rate": 0.1}),
        ("c51", {"target_period": 4}),
        ("rainbow", {"target_period": 5}),
    ],
)
def test_a_restart_from_a_checkpoint_continues_bit_for_bit(tmp_path: Path, algo: str, settings: dict[str, Any]) -> None:
    one = trainer(tmp_path / "one", algo, **settings)
    learn(one, range(14))  # 168 steps, more than the replay holds
    assert one.counters.optimizer_steps > 10
    state = torch.load(_saved(tmp_path, one), weights_only=True)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    two = trainer(tmp_path / "two", algo, **settings)
    two.load(tmp_path / "checkpoint", state)
    assert list(two.recovered()) == []
    before = weights(one.net)
    for each in (one, two):
        learn(each, range(14, 20))
    assert not same(before, weights(one.net))
    assert same(weights(one.net), weights(two.net))
    entries = [leaves(_tensors(each.learning.state())) for each in (one, two)]
    assert same(*entries)
    assert one.counters.optimizer_steps == two.counters.optimizer_steps


def _saved(tmp_path: Path, of: Trainer) -> Path:
    torch.save(of.state(), tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def _tensors(state: Any) -> Any:
    """The state of a target and an optimiser."""
    return {"target": state["target"]["weights"], "optimizer": state["optimizer"]["state"]["state"]}


def test_new_items_are_drawn_by_the_errors_of_the_policy_that_acted(tmp_path: Path) -> None:
    dqn = trainer(tmp_path, "dqn", priority_exponent=1.0, discount=0.5)
    rows = np.zeros(1, dqn.record.dtype)
    rows["obs"] = np.arange(5)[:, None]
    rows["reward"], rows["q"], rows["q_max"] = [0, 1, 1, 1, 1], [1, 2, 3, 4], [9, 2, 4, 4]
    dqn.add(rows, origins=np.array([Origin(7, 0, 0, 0, 1)]))
    drawn = dqn.learning._replay.draw(3000, 0.0).batch.inputs.obs[0, :, 0]  # type: ignore[attr-defined]
    counts = np.bincount(drawn.int().numpy(), minlength=4)
    errors = np.array([1.0, 1.0, 0.0])  # |1 + 0.5 2 - 1|, |1 + 0.5 4 - 2|, |1 + 0.5 4 - 3|; the last is not known yet
    assert counts[:3] / 3000 == pytest.approx(errors / errors.sum(), abs=0.05)
