"""What an environment and a policy look like from outside, as peers describe them to each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from zerobeast.common.text import split_ids
from zerobeast.common.wire.codec import DTYPES
from zerobeast.common.wire.description import SHAPE, Description, Rule, flatten, is_shape
from zerobeast.common.wire.layout import MAX_ROW_BYTES, Field, item_bytes
from zerobeast.common.wire.spaces import (
    MAX_CHOICES,
    MAX_NAME,
    Space,
    count_from_zero,
    drop_bounds,
    field_of,
    map_arrays,
)

MAX_CORE_SIZE = 1 << 20
MAX_EXTRAS = 32  #: of a policy
#: fields of every rollout; no extra may have one of these names
ROLLOUT_FIELDS = (
    "obs",
    "action_mask",
    "first",
    "reward",
    "terminated",
    "truncated",
    "action",
    "last_action",
    "policy_version",
    "core_state",
)


@dataclass(frozen=True)
class EnvSpec(Description):
    """What a policy depends on in an environment.

    One frame travels per step; if `frame_stack` is k > 1, policies get stacks of the newest k
    (`zerobeast.common.wire.stacks`).

    Examples:
      >>> import zerobeast as zb
      >>> spec = zb.EnvSpec("Catch-v0", zb.ArraySpace.box((50,)), zb.ArraySpace.discrete(3), frame_stack=4)
      >>> spec.stack, spec.action.choices
      ((4,), (3,))
    """

    env_id: str  #: for a run with several environments: all of them, separated by commas
    obs: Space  #: of one frame
    action: Space
    frame_stack: int = 1
    frame_skip: int = 1  #: env_frames per agent_step
    action_mask: bool = False  #: whether each observation comes with a mask of the legal choices

    @property
    def stack(self) -> tuple[int, ...]:
        """The dimension in front of a frame as policies get it: (k,), or none for single frames."""
        return (self.frame_stack,) if self.frame_stack > 1 else ()

    @property
    def mask_size(self) -> int:
        """Entries of an action mask: the choices of all components; 0 if there is none."""
        return sum(self.action.choices) if self.action_mask else 0

    def for_policies(self) -> EnvSpec:
        """This spec as policies see it, without the bounds of observations."""
        return replace(self, obs=map_arrays(self.obs, drop_bounds))

    def of_rows(self) -> EnvSpec:
        """This spec as rows are: choices count from 0."""
        return replace(self, obs=count_from_zero(self.obs), action=count_from_zero(self.action))

    def difference(self, other: EnvSpec) -> tuple[str, Any, Any]:
        """The first entry in which two unequal descriptions differ, and its value here and there."""
        here, there = flatten(self.to_wire()), flatten(other.to_wire())
        entries = ((name, here.get(name, "none"), there.get(name, "none")) for name in there | here)
        return next(entry for entry in entries if entry[1] != entry[2] and not entry[0].endswith(".start"))

    def among(self, ids: str) -> EnvSpec:
        """This spec under the names of all environments of a run (`env.id`), if it is one of them: they are alike."""
        return replace(self, env_id=ids) if self.env_id in split_ids(ids) else self

    def rules(self) -> Iterator[Rule]:
        """Rules that it must satisfy."""
        yield self.frame_stack >= 1, "frame_stack", self.frame_stack, "1 or more"
        yield self.frame_skip >= 1, "frame_skip", self.frame_skip, "1 or more"
        yield from self.obs.rules("obs")
        size = math.prod((frame := field_of("obs", self.obs)).shape) * item_bytes(frame) * self.frame_stack
        limit = f"at most {MAX_ROW_BYTES} bytes, with frame_stack {self.frame_stack}"
        yield size <= MAX_ROW_BYTES, "obs", f"of {size} bytes", limit
        yield from self.action.rules("action")
        for array in self.action.arrays:
            yield array.kind != "box" or array.dtype == "<f4", "action.dtype", array.dtype, "<f4 for a box"
            yield math.prod(array.shape) <= MAX_CHOICES, "action.shape", array.shape, f"at most {MAX_CHOICES} numbers"
        masked = bool(self.action.choices) or not self.action_mask
        yield masked, "action_mask", self.action_mask, "false, since there are no choices to forbid"


@dataclass(frozen=True)
class PolicySpec(Description):
    """What an actor depends on in a policy: what it answers besides an action, and the size of its recurrent state."""

    extras: tuple[Field, ...]  #: in an answer, per environment: logits, a value, or whatever its algorithm learns from
    core_size: int  #: floats of recurrent state per environment, 0 for feed-forward

    def rules(self) -> Iterator[Rule]:
        yield len(self.extras) <= MAX_EXTRAS, "extras", len(self.extras), f"at most {MAX_EXTRAS} of them"
        names = [extra.name for extra in self.extras]
        for name, dtype, shape in self.extras:
            field = f"extras.{name}"[:100]
            fits = name.isidentifier() and len(name) <= MAX_NAME and name not in ROLLOUT_FIELDS
            yield fits, "extras", name, f"a name of at most {MAX_NAME} letters, none of {', '.join(ROLLOUT_FIELDS)}"
            yield names.count(name) == 1, "extras", name, "each name once"
            yield dtype in DTYPES, field, dtype, " or ".join(DTYPES)
            yield is_shape(shape), field, shape, SHAPE
            yield math.prod(shape) <= 2 * MAX_CHOICES, field, shape, f"at most {2 * MAX_CHOICES} entries"
        yield 0 <= self.core_size <= MAX_CORE_SIZE, "core_size", self.core_size, f"0 to {MAX_CORE_SIZE}"
