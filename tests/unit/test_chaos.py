"""What decides whether a run under faults was in order: a witness of each rollout, and the accounts of all."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.protocol import Sampling
from zerobeast_tools.chaos import verdict
from zerobeast_tools.chaos.balance import Balance, RolloutAudit
from zerobeast_tools.chaos.witness.algorithm import MixedUp, Witness, check, logits_of
from zerobeast_tools.chaos.witness.env import ACTIONS, reward_of, right_action

T, WHO = 8, (5, 1234567)
ENV = EnvSpec("Witness", ArraySpace.box((3,)), ArraySpace.discrete(ACTIONS))
CONFIG = RunConfig.model_validate({"net": {"torso": "mlp", "hidden_size": 4}})


def rollouts(memory: bool = True) -> Batch:
    """Two environments, each in the middle of an episode that ends after five steps."""
    steps = [(3, 10 + t) if t < 5 else (4, t - 5) for t in range(T + 1)]
    obs = torch.tensor([[[who, *step] for who in WHO] for step in steps], dtype=torch.float32)
    first = torch.zeros(T + 1, len(WHO), dtype=torch.bool)
    first[5] = True
    first[0] = not memory
    reward = reward_of(obs[..., 0], obs[..., 2]).masked_fill(first, 0.0)
    last_action = torch.zeros(T + 1, len(WHO), dtype=torch.int64)
    last_action[1:] = right_action(*obs[:-1].long().unbind(-1))
    core = obs[0] - torch.tensor([0.0, 0.0, 1.0]) if memory else torch.zeros(len(WHO), 3)
    never = torch.zeros_like(first)
    versions = torch.zeros(T, len(WHO), dtype=torch.int64)
    extras = {"logits": logits_of(obs[:-1]), "value": obs[:-1, :, 2].clone()}
    rest = ~first[1:], torch.zeros(len(WHO), dtype=torch.int64), torch.zeros(len(WHO), 5, dtype=torch.int64)
    return Batch(obs, first, reward, never, never, last_action, extras, versions, core, *rest)


WRONG = {
    "obs": (3, 1, 0),
    "first": (3, 1),
    "last_action": (4, 0),
    "reward": (4, 1),
    "logits": (6, 0, 0),
    "value": (0, 1),
    "core_state": (1, 0),
}


@pytest.mark.parametrize(("name", "place"), WRONG.items())
def test_rollouts_in_order_are_taken_and_a_single_wrong_entry_is_noticed(name: str, place: tuple[int, ...]) -> None:
    check(batch := rollouts())
    check(rollouts(memory=False))  # after the broker forgot
    entries: Tensor = (batch.extras | batch._asdict())[name]
    entries[place] = ~entries[place] if entries.dtype is torch.bool else entries[place] + 1
    with pytest.raises(MixedUp):
        check(batch)


def test_the_policy_notices_the_memory_of_another_environment_episode_or_step() -> None:
    witness = Witness(CONFIG, ENV)
    obs, never = torch.tensor([[[5.0, 3.0, 10.0]]]), torch.tensor([[False]])
    inputs = StepInput(obs, torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1), never)
    sampling = Sampling(torch.arange(1), torch.Generator(), greedy=False)
    answer, after = witness.act(witness.network(), inputs, torch.tensor([[5.0, 3.0, 9.0]]), sampling)
    assert (answer.action.tolist(), after.tolist()) == ([right_action(5, 3, 10)], obs[0].tolist())
    for other in ([6.0, 3.0, 9.0], [5.0, 2.0, 9.0], [5.0, 3.0, 10.0]):
        with pytest.raises(MixedUp):
            witness.act(witness.network(), inputs, torch.tensor([other]), sampling)


ROWS = 3  #: rollouts in a message


def actor(sender: int, *seqs: int, cut: int = 0) -> dict[str, Any]:
    return {
        "role": "actor",
        "sender": sender,
        "envs": ROWS * len(seqs),
        "streams": [[slot, ROWS, seq, 0] for slot, seq in enumerate(seqs)],
        "rollouts_cut_by_peer": {"envserver": 0, "broker": cut},
    }


def learner(epoch: int, streams: dict[tuple[int, int], tuple[int, int, int]], **fates: int) -> dict[str, Any]:
    """streams: (received, consumed, begun) by (sender, slot)."""
    queued = fates.pop("queued", 0)
    return {
        "role": "learner",
        "epoch": epoch,
        "streams": [[*stream, ROWS, *entry] for stream, entry in streams.items()],
        "rollouts_by_fate": {"used": 0, "skipped": 0, "refused": 0, "undone": 0} | fates,
        "queue_rows": queued,
        "agent_steps": 0,
    }


def audit_of(*pages: tuple[str, dict[str, Any]]) -> RolloutAudit:
    audit = RolloutAudit()
    for name, page in pages:
        audit.note(name, page)
    return audit


def test_rollouts_without_deaths_are_used_queued_on_their_way_skipped_or_refused_and_any_others_are_a_gap() -> None:
    streams = {(7, 0): (5, 4, 0), (7, 1): (3, 3, 0)}
    pages = [("actor 0", actor(7, 5, 4)), ("learner 0", learner(1, streams, used=21, queued=3))]
    assert audit_of(*pages).balance() == Balance(27, 21, 3, 3, {}, 0, {"envserver": 0, "broker": 0, "actor": 0}, 1)
    for used, gap in ((18, 3), (24, -3)):
        pages[1] = ("learner 0", learner(1, streams, used=used, queued=3))
        assert audit_of(*pages).balance().gap == gap
    fates = learner(1, {(7, 0): (9, 9, 0)}, used=12, skipped=12, refused=3)
    found = audit_of(("actor 0", actor(7, 9, cut=6)), ("learner 0", fates)).balance()
    assert (found.gap, found.dropped) == (0, {"update was not finite": 12, "refused": 3})
    assert found.cut["broker"] == 6


CLOSED = Balance(100, 90, 4, 0, {"actor died": 6}, 0, {}, 1)


@pytest.mark.parametrize("change", [{}, {"gap": 3}, {"waiting": 3}, {"most_waiting": 3}, {"used": 91}])
def test_accounts_that_close_are_in_order_and_all_others_are_not(change: dict[str, int]) -> None:
    assert len(list(verdict.accounts(replace(CLOSED, **change), window=2, steps=450, unroll_length=5))) == len(change)
