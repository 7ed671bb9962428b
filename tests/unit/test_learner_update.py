"""One update: what it is made of, what it counts, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.build.batches import weights
from tests.build.learners import CPU, ENV, POLICY, B, Scripted, T, answer, learn, rollout_rows, run_config
from zerobeast.common.errors import TrainingDiverged
from zerobeast.common.wire.records import rollout_record
from zerobeast.rl.data.rollouts import Rollouts
from zerobeast.rl.ops import optim
from zerobeast.services.learner.update import MAX_NONFINITE_IN_A_ROW, Trainer
from zerobeast.testing.small_run import are_same

RECORD = rollout_record(ENV, POLICY, T)


def test_arithmetic_has_the_threads_that_the_settings_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    for threads in (3, 0):
        given.clear()
        Trainer(run_config(tmp_path, threads=threads), CPU, ENV)
        assert given[0] == (threads or 1)


def test_a_batch_is_time_major_and_holds_what_the_rows_hold() -> None:
    rows = rollout_rows(B)
    batch = Rollouts(rows, RECORD, ENV, CPU).batch
    for name, entry in {**batch.extras, **batch._asdict()}.items():
        if name in RECORD.dtype.names and name != "core_state":
            assert entry.dtype in (torch.float32, torch.bool, torch.int64)
            np.testing.assert_array_equal(entry, rows[name].swapaxes(0, 1))
    assert (batch.obs.shape, batch.core_state.shape) == ((T + 1, B, 4), (B, 0))


def test_an_update_moves_the_weights_by_the_algorithm(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    trainer, reference = Trainer(config, CPU, ENV), Trainer(config, CPU, ENV)
    rows = rollout_rows(B)
    learned = learn(trainer, rows)

    net, settings = reference.net, config.algorithm
    optimizer = optim.RMSprop(net.parameters(), lr=settings.learning_rate, alpha=settings.alpha, eps=0.01)
    loss, _ = reference.algorithm.loss(net, Rollouts(rows, reference.record, ENV, CPU).batch)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), settings.max_grad_norm)
    optimizer.step()

    assert (learned.steps, learned.skipped, learned.changed) == (1, 0, True)
    assert learned.loss == pytest.approx(loss.item())
    assert learned.grad_norm == pytest.approx(norm.item())
    assert learned.learning_rate == settings.learning_rate
    assert trainer.counters.updates == 1
    torch.testing.assert_close(dict(trainer.net.named_parameters()), dict(net.named_parameters()), rtol=0, atol=0)


def test_an_update_is_a_batch_and_a_version_a_change_of_the_policy_however_many_steps_they_take(tmp_path: Path) -> None:
    trainer = Trainer(run_config(tmp_path), CPU, ENV)
    trainer.learning = Scripted(
        answer(3, changed=True),  # several steps on one batch
        answer(2),  # only something besides the policy was trained
        answer(0),  # the batch was put aside
        answer(1, skipped=1, changed=True),  # one of two steps was not finite
    )
    for seed in range(4):
        learn(trainer, rollout_rows(B, seed))
    counters = trainer.counters
    assert trainer.learning.asked == [0, 20, 40, 60]
    assert (counters.updates, counters.optimizer_steps, counters.policy_version) == (3, 6, 2)
    assert (counters.agent_steps, counters.nonfinite_updates) == (80, 0)


def test_versions_come_from_valid_transitions_only(tmp_path: Path) -> None:
    trainer = Trainer(run_config(tmp_path), CPU, ENV)
    rows = rollout_rows(B, seams=False)
    rows["policy_version"] = 3
    rows["first"][0, 1] = True
    rows["policy_version"][0, 0] = 99
    assert trainer.add(rows).behaviour_versions.tolist() == [3] * (B * T - 1)


@pytest.fixture
def bad() -> NDArray[np.void]:
    """A batch from which nothing can be learned."""
    rows = rollout_rows(B, seams=False)
    rows["logits"] = np.nan
    return rows


def test_a_loss_that_is_not_finite_is_skipped_counted_and_at_last_fatal(tmp_path: Path, bad: NDArray[np.void]) -> None:
    trainer = Trainer(run_config(tmp_path, total_steps=10**6), CPU, ENV)
    before = weights(trainer.net)
    for _ in range(MAX_NONFINITE_IN_A_ROW - 1):
        assert learn(trainer, bad)[:3] == (0, 1, False)
    assert learn(trainer, rollout_rows(B)).steps, "a good batch between forgives"
    after = weights(trainer.net)
    for _ in range(MAX_NONFINITE_IN_A_ROW - 1):
        learn(trainer, bad)
    with pytest.raises(TrainingDiverged):
        learn(trainer, bad)
    assert trainer.counters.updates == 1
    assert trainer.counters.nonfinite_updates == 2 * MAX_NONFINITE_IN_A_ROW - 1
    assert trainer.counters.agent_steps == B * T * 2 * MAX_NONFINITE_IN_A_ROW
    assert not are_same(after, before)
    assert are_same(weights(trainer.net), after)


def test_training_stops_at_the_first_bad_loss_if_configured(tmp_path: Path, bad: NDArray[np.void]) -> None:
    trainer = Trainer(run_config(tmp_path, total_steps=10**6, on_nonfinite="stop"), CPU, ENV)
    with pytest.raises(TrainingDiverged):
        learn(trainer, bad)
    trainer.learning = Scripted(answer(1, skipped=1, changed=True))
    with pytest.raises(TrainingDiverged):
        learn(trainer, rollout_rows(B))
