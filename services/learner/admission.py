"""Admission: which actors fit the run, and which rollouts can be trained on. Pure.

An actor whose rows would differ from the run's is refused with the reason. A rollout of the right size can still hold
values that would crash an update or spoil the weights (an action that does not exist, a NaN); it is refused whole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.text import split_ids
from zerobeast.common.wire import EnvSpec, PolicySpec, checks, flatten
from zerobeast.common.wire.messages import MAX_EPISODES, MAX_INTEGER, Header


@dataclass(frozen=True)
class Terms:
    """What a HELLO on the rollout plane offers, and what the learner compares it with."""

    env: EnvSpec
    policy: PolicySpec | None  #: None in a HELLO: the actor takes the run's
    unroll_length: int | None  #: likewise
    num_envs: int  #: rows per message; of the run: the maximum
    first: int | None = None  #: number of the oldest rollout that the actor still has, or of its next; None: any

    @classmethod
    def from_wire(cls, terms: dict[str, Any]) -> Self:
        """Read the terms of a HELLO.

        Raises:
          RemoteProtocolError: they are incomplete or impossible.
        """
        env = EnvSpec.from_wire(terms.get("env"))
        theirs = terms.get("policy")
        absent = theirs is None or (isinstance(theirs, dict) and not theirs)
        policy = None if absent else PolicySpec.from_wire(theirs)
        for name, given in (("unroll_length", terms.get("unroll_length") is not None), ("num_envs", True)):
            value = terms.get(name)
            if given and (type(value) is not int or not 0 < value <= 1 << 20):
                raise RemoteProtocolError(f"{name} is {str(value)[:40]}, expected a positive number", "terms")
        first = terms.get("first")
        if first is not None and (type(first) is not int or not 0 < first <= MAX_INTEGER):
            raise RemoteProtocolError(f"first is {str(first)[:40]}, expected the number of a ROLLOUT", "terms")
        return cls(env, policy, terms.get("unroll_length"), terms["num_envs"], first)


def mismatch(theirs: Terms, ours: Terms) -> str | None:
    """The first difference that keeps an actor out of a run, as a sentence."""
    task, tasks = theirs.env.env_id, ours.env.env_id
    if task not in split_ids(tasks):
        return f"env.env_id is {task}, this run has {tasks}"
    whose, of = ("", "") if task == tasks else (f" of {task}", f" of {tasks}")
    expected = _flatten(ours)
    for name, value in _flatten(theirs).items():
        if value != expected.get(name) and name != "env.env_id":
            return f"{name}{whose} is {value}, this run{of} has {expected.get(name, 'none')}"
    if theirs.num_envs > ours.num_envs:
        advice = "give the learner the same actor.envs_per_group or a larger learner.batch_size"
        return f"num_envs is {theirs.num_envs}, expected at most {ours.num_envs}: {advice}"
    return None


def read_rollouts(
    header: Header, into: Callable[[NDArray[Any]], bool], terms: Terms, allocate: Callable[[int], NDArray[np.void]]
) -> NDArray[np.void]:
    """The rows of a ROLLOUT in memory of their own.

    Args:
      header: of the message.
      into: fills a buffer with its payload; returns whether that was one frame of exactly this size.
      terms: of the run.
      allocate: allocates memory for a number of rows.

    Raises:
      RemoteProtocolError: the rollouts cannot be trained on.
    """
    n_rows, entries, _acting = header.body
    if not 0 < n_rows <= terms.num_envs:
        raise RemoteProtocolError(f"a ROLLOUT of {n_rows} rows, expected 1 to {terms.num_envs}", "payload")
    if len(entries) > MAX_EPISODES:
        raise RemoteProtocolError(f"{len(entries)} episodes, expected at most {MAX_EPISODES}", "episodes")
    rows = allocate(n_rows)
    if not into(rows.view(np.uint8)):
        raise RemoteProtocolError(f"a ROLLOUT of {n_rows} rows, expected {rows.nbytes} bytes of them", "payload")
    if sentence := checks.find_rollout_flaw(rows, terms.env):
        raise RemoteProtocolError(f"a ROLLOUT cannot be trained on: {sentence}", "values")
    return rows


def _flatten(terms: Terms) -> dict[str, Any]:
    """The terms that must be equal: {"env.action.kind": "discrete", ...}."""
    tree: dict[str, Any] = {"env": terms.env.to_wire()}
    if terms.unroll_length is not None:
        tree["unroll_length"] = terms.unroll_length
    if terms.policy is not None:
        tree["policy"] = terms.policy.to_wire()
    return flatten(tree)
