"""The four row layouts of the data planes, derived from an environment and a policy.

Time index. Entry t of a rollout is what arrived *with* obs[t]: the reward, terminated and truncated of the action
before it, and that action as last_action[t]. The policy's answer to obs[t] (its extras at t, and
policy_version[t]) belongs to the action recorded as last_action[t + 1]. So transition t of 0..T-1 is

    obs[t], last_action[t+1], reward[t+1], terminated[t+1], truncated[t+1], obs[t+1]

and it is void where first[t+1]: an episode's last observation is followed by the first of the next whatever the
action was (gymnasium's NEXT_STEP autoreset). The true final observation of every episode therefore stands in the
sequence, where a truncated step bootstraps from it with the right recurrent state.
"""

from bisect import bisect_left
from contextlib import suppress
from typing import NamedTuple

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.layout import MAX_ROW_BYTES, Block, Field, RecordSpec
from zerobeast.common.wire.spaces import Space, field_of
from zerobeast.common.wire.specs import EnvSpec, PolicySpec


class Origin(NamedTuple):
    """Where a row came from: which rollout of the run it is. No two rollouts share one."""

    sender: int  #: random id of the actor
    slot: int  #: of the actor's stream
    seq: int  #: of the message
    row: int  #: index in the message
    rows: int  #: number of rows in the message


def step_record(env: EnvSpec, *, packed: bool = True) -> RecordSpec:
    """One environment's row from env-server to actor, and on to the broker unchanged.

    first: obs opens an episode (or the broker must drop what came before); reward, terminated and truncated are
    zero in such a row. action_mask: True for each choice that is legal now. Not `packed`, observations are as their
    space has them, and not as they travel (`zerobeast.common.wire.bits`).
    """
    return RecordSpec.of(
        field_of("obs", env.obs, packed=packed),
        *_mask(env),
        reward=("<f4", ()),
        terminated=("|b1", ()),
        truncated=("|b1", ()),
        first=("|b1", ()),
    )


def action_record(action: Space) -> RecordSpec:
    """One environment's row from actor to env-server."""
    return RecordSpec.of(field_of("action", action))


def act_record(env: EnvSpec, policy: PolicySpec) -> RecordSpec:
    """One environment's row from broker to actor."""
    return RecordSpec.of(field_of("action", env.action), *policy.extras)


def rollout_record(env: EnvSpec, policy: PolicySpec, unroll_length: int) -> RecordSpec:
    """One environment's unroll of T steps and the observation after them.

    obs holds T + k frames for a stack of k: the k - 1 that precede obs[0] in the stack that the policy got (first
    frame repeated if the episode is younger), then the T + 1 of the unroll. core_state is the recurrent state before
    obs[0].
    """
    steps = unroll_length
    return RecordSpec.of(
        field_of("obs", env.obs, steps + env.frame_stack, packed=True),
        *_mask(env, steps + 1),
        Field("first", "|b1", (steps + 1,)),
        Field("reward", "<f4", (steps + 1,)),
        Field("terminated", "|b1", (steps + 1,)),
        Field("truncated", "|b1", (steps + 1,)),
        field_of("last_action", env.action, steps + 1),
        *(Field(name, dtype, (steps, *shape)) for name, dtype, shape in policy.extras),
        Field("policy_version", "<i8", (steps,)),
        Field("core_state", "<f4", (policy.core_size,)),
    )


def explain_oversize(env: EnvSpec, policy: PolicySpec | None, unroll_length: int, num_envs: int) -> str | None:
    """Why a message of N rollouts is too large for a frame, as a sentence with what would fit; None if it is not."""

    def too_large(envs: int, length: int) -> bool:
        with suppress(RemoteProtocolError):
            return envs * rollout_record(env, policy or PolicySpec((), 0), length).row_bytes > MAX_ROW_BYTES
        return True

    if not too_large(num_envs, unroll_length):
        return None
    envs = bisect_left(range(1, num_envs), 1, key=lambda envs: too_large(envs, unroll_length))
    length = bisect_left(range(1, unroll_length), 1, key=lambda length: too_large(num_envs, length))
    ways = [f"{path} {n}" for path, n in (("actor.envs_per_group", envs), ("learner.unroll_length", length)) if n]
    expected = f"at most {' or '.join(ways) or 'smaller observations'}"
    given = f"actor.envs_per_group {num_envs} and learner.unroll_length {unroll_length}"
    return f"{given} make messages of more than {MAX_ROW_BYTES >> 20} MiB: expected {expected}"


def _mask(env: EnvSpec, *lead: int) -> list[Field | Block]:
    return [Field("action_mask", "|b1", (*lead, env.mask_size))] if env.action_mask else []
