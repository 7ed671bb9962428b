"""A saved policy as a function of observations, for a loop of one's own. `zerobeast.load` makes it."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from zerobeast.common.config.load import Loaded
from zerobeast.common.errors import CheckpointError, ConfigError, EnvError, RemoteProtocolError
from zerobeast.common.wire import ArraySpace, EnvSpec, Space, by_array, nested, short
from zerobeast.common.wire.checks import forbidden
from zerobeast.rl.acting.inference import LATE
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets import Network, StepInput, pick_device
from zerobeast.rl.ops.distributions import Distribution
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Sampling
from zerobeast.services.envserver.spaces import arrays, fitted
from zerobeast.services.learner.checkpoint import load_model

FLAG, NUMBER = ArraySpace("multi_binary", "|b1"), ArraySpace.box(())


class State(NamedTuple):
    """What a policy keeps of N environments from one step to the next."""

    frames: Any  #: [N, k, *frame], the newest k frames, or a tree of such; None without a frame stack
    action: Any  #: [N, *action shape], or a tree of such
    core: Tensor  #: [N, core_size], recurrent state


class Policy:
    """The policy of a checkpoint.

    Its methods take the observation of one environment, or of N as arrays [N, ...]. The state that `predict` returns
    has the frame stack, the recurrent state and the last action of each; observations are normalised as in training.
    Values of a Dict or Tuple space are dicts or tuples; choices count from 0, whatever a gymnasium space counts from.

    Args:
      loaded: the settings of the run.
      saved: what its checkpoint holds.
      checkpoint: the path of that file, for errors.

    Attributes:
      module: the network in float32, or as set by `broker.precision`, on `broker.device`.
      env: what the environment looks like.
      config: the settings.
      agent_steps: after how many the policy was saved.
      unit: of the values that the algorithm learns, in units of the environment's rewards.

    Raises:
      CheckpointError: the checkpoint is damaged or of another architecture.
      ConfigError: the device is missing, or the algorithm cannot handle the environment.
    """

    def __init__(self, loaded: Loaded, saved: dict[str, Any], checkpoint: Path) -> None:
        self.loaded, self.config, self.checkpoint = loaded, loaded.config, checkpoint
        try:
            self.env = EnvSpec.from_wire(saved["env"])
        except RemoteProtocolError as error:
            raise CheckpointError(f"{checkpoint}: {error}") from error
        self.agent_steps = int(saved["counters"]["agent_steps"])
        self.algorithm = make_algorithm(self.config, self.env)
        net = self.algorithm.network()
        load_model(checkpoint, net, saved["model"])
        net.agent_steps.fill_(LATE)
        self.unit = self._unit(saved)
        self.module: Network = net.to(pick_device(self.config.broker.device, "broker.device")).eval()
        if self.config.broker.precision == "bfloat16":
            self.module.lower(torch.bfloat16)
        self._generator = torch.Generator(self.module.device)

    def predict(
        self,
        obs: Any,
        state: State | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,  # noqa: FBT001, FBT002 - as in Stable-Baselines3
        **given: Any,
    ) -> tuple[Any, State]:
        """Choose the action of one environment, or those of N.

        Args:
          obs: [*shape] or [N, *shape]: of a frame stack the newest frame alone.
          state: as the previous call returned it; None: episodes begin.
          episode_start: [] or [N] bool: where an episode begins and `state` is reset; None: nowhere.
          deterministic: take the likeliest or best action; False: draw one, as in training after its first steps.
          **given: `last_reward` [N], only if the network takes it (`config.net.sees_last_step`); `last_action`
            [N, *shape], if another action was taken than the one chosen here; `action_mask` [N, choices] bool: which
            choices are legal, if not all are.

        Returns:
          Actions within their bounds, [*shape] or [N, *shape], and the state after this step.

        Raises:
          ConfigError: a value has another shape, type or number of environments than expected.
        """
        inputs, core, single = self._inputs(obs, state, episode_start, **given)
        slots = torch.arange(len(core), device=core.device)
        act, core = self.algorithm.act(self.module, inputs, core, Sampling(slots, self._generator, deterministic))
        frames = tree_map(lambda stacks: stacks[0], inputs.obs) if self.env.frame_stack > 1 else None
        return _actions(self.env.action, act.action, single=single), State(frames, act.action, core.float())

    def distribution(self, obs: Any, state: State | None = None, **given: Any) -> Distribution:
        """The distribution [N] that actions are drawn from, with gradient; arguments are those of `predict`.

        Raises:
          ConfigError: as `predict`, or the algorithm has no distribution, such as DQN and TD3.
        """
        inputs, core, _ = self._inputs(obs, state, **given)
        found: Distribution = self._answer("distribution")(self.module, inputs, core)
        return found

    def value(self, obs: Any, state: State | None = None, *, env: str = "", **given: Any) -> Tensor:
        """The expected discounted return, [] or [N], with gradient; arguments are those of `predict`.

        It is in the units of the environment's rewards: scales of rewards and values are undone. What was clipped
        (`reward_clipping`, and with `ppo.normalize_returns` beyond ten deviations) is lost, and counts as clipped.

        Args:
          env: of a run of several environments, which of them; by default the first.

        Raises:
          ConfigError: as `predict`, or the algorithm has no value in its policy, such as DDPG, TD3 and SAC; or the run
            has no such environment.
        """
        inputs, core, single = self._inputs(obs, state, **given)
        tasks = self.config.env.tasks
        if env and env not in tasks:
            raise ConfigError(f"env is {short(env)}, expected one of the run's environments: {', '.join(tasks)}")
        task = {"task": tasks.index(env)} if env in tasks[1:] else {}
        values: Tensor = self.unit * self._answer("value")(self.module, inputs, core, **task)
        return values[0] if single else values

    def action_values(self, obs: Any, state: State | None = None, **given: Any) -> Tensor:
        """The expected discounted return of each choice, [A] or [N, A], in the units of `value`.

        Raises:
          ConfigError: as `predict`, or the algorithm learns no such values: those of DQN and its kin do.
        """
        inputs, core, single = self._inputs(obs, state, **given)
        values: Tensor = self.unit * self._answer("action_values")(self.module, inputs, core)
        return values[0] if single else values

    def state_dict(self) -> dict[str, Tensor]:
        """The parameters of `module` by name, as checkpoints have them."""
        return {**self.module.state_dict(), "agent_steps": torch.tensor(self.agent_steps)}

    def seed(self, seed: int) -> None:
        """Draw actions from here on like every policy with this seed."""
        self._generator.manual_seed(seed)

    def refuse_unlike(self, env: EnvSpec) -> None:
        """Raise CheckpointError if an environment, as an env-server describes it, is unlike the one of the training."""
        names = ("obs", "action", "action_mask", "frame_stack")
        like = replace(self.env, **{name: getattr(env.for_policies(), name) for name in names})
        if like != self.env:
            name, theirs, ours = self.env.difference(like)
            raise CheckpointError(f"{self.checkpoint}: was trained with {name} {theirs}, {env.env_id} has {ours}")

    def _unit(self, saved: dict[str, Any]) -> float:
        """That of an export, or what settings and training state of a checkpoint say."""
        unit, scale = getattr(self.algorithm, "unit", None), getattr(self.config.algorithm, "reward_scale", 1.0)
        try:
            found = float(saved["unit"] if "unit" in saved else (unit(saved["learning"]) if unit else 1.0) / scale)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{self.checkpoint}: no unit of values: {error}") from error
        if not 0 < found < math.inf:
            raise CheckpointError(f"{self.checkpoint}: unit of values {found}, expected a finite number above 0")
        return found

    def _answer(self, name: str) -> Any:
        if answer := getattr(self.algorithm, name, None):
            return answer
        raise ConfigError(f"algo {self.config.section}: its policy has no {name}, expected an algorithm that has one")

    def _inputs(
        self,
        obs: Any,
        state: State | None,
        episode_start: ArrayLike | None = None,
        *,
        last_action: Any = None,
        last_reward: ArrayLike | None = None,
        action_mask: ArrayLike | None = None,
    ) -> tuple[StepInput, Tensor, bool]:
        """A step [1, N, ...] as the network takes it, the state [N, core_size], and whether `obs` has no N."""
        n, single = _count(self.env.obs, obs)
        read = partial(_read, n=n, single=single, device=self.module.device)
        before = _checked(state, self._blank(n))
        first = read("episode_start", FLAG, np.full(n, state is None) if episode_start is None else episode_start)
        first = first | (state is None)
        if last_reward is None and self.config.net.sees_last_step and not first.all():
            raise ConfigError(
                "last_reward is None, expected [N] numbers: the network takes it (net.last_action_reward)"
            )
        reward = read("last_reward", NUMBER, np.zeros(n) if last_reward is None else last_reward)
        action = before.action if last_action is None else read("last_action", self.env.action, last_action)
        action, core = (tree_map(partial(_zeroed, first), entry) for entry in (action, before.core))
        mask = None
        if action_mask is not None and not self.env.action_mask:
            raise ConfigError(f"action_mask is {short(action_mask)}, expected None: {self.env.env_id} has no masks")
        if self.env.action_mask:
            allowed = np.ones((n, self.env.mask_size), np.bool_) if action_mask is None else action_mask
            mask = read("action_mask", ArraySpace("multi_binary", "|b1", (self.env.mask_size,)), allowed)
            if sentence := forbidden(mask.cpu().numpy(), self.env.action):
                raise ConfigError(f"action_mask {sentence}")
        seen = read("obs", self.env.obs, obs)
        if self.env.frame_stack > 1:
            seen = tree_map(partial(_stacked, first), seen, before.frames)
        step = StepInput(seen, action, reward, first, mask)
        return tree_map(lambda entry: entry[None], step), core, single

    def _blank(self, n: int) -> State:
        """The state of N environments before their first step: zeros."""

        def zeros(space: Space, *lead: int) -> Any:
            blank = (np.zeros((*lead, *array.shape), array.dtype) for array in space.arrays)
            return nested(space, (torch.from_numpy(array).to(self.module.device) for array in blank))

        frames = zeros(self.env.obs, n, self.env.frame_stack) if self.env.frame_stack > 1 else None
        return State(frames, zeros(self.env.action, n), self.module.initial_state(n))


def _parts(name: str, space: Space, value: Any) -> list[tuple[str, ArraySpace, NDArray[Any]]]:
    """Each array of a value: what error messages call it, its space, and its numbers, unchecked."""
    try:
        return [(path, array, np.asarray(part)) for path, array, part in arrays(name, space, value)]
    except EnvError as error:
        raise ConfigError(str(error)) from error
    except (TypeError, ValueError, RuntimeError) as error:  # lists of different lengths, tensors with gradient
        raise ConfigError(f"{name} is {short(value)}, expected numbers") from error


def _count(space: Space, obs: Any) -> tuple[int, bool]:
    """How many environments an observation is of, and whether it is of one, without N."""
    path, array, value = _parts("obs", space, obs)[0]
    if value.shape == array.shape:
        return 1, True
    if value.shape[1:] == array.shape and len(value):
        return len(value), False
    own = ", ".join(map(str, array.shape))
    raise ConfigError(f"{path} has shape {list(value.shape)}, expected [{own}], or [{f'N, {own}' if own else 'N'}]")


def _read(name: str, space: Space, value: Any, *, n: int, single: bool, device: torch.device) -> Any:
    """A value of N environments, or of the single one, as a tree of tensors [N, *shape] on the device.

    Raises:
      ConfigError: it is not of the space.
    """
    found = []
    for path, array, numbers in _parts(name, space, value):
        batch = numbers[None] if single and numbers.shape == array.shape else numbers
        try:
            found.append(torch.tensor(fitted(path, batch, array, lead=(n,)), device=device))
        except EnvError as error:
            raise ConfigError(str(error)) from error
    return nested(space, iter(found))


def _checked(state: Any, blank: State) -> State:
    if state is None:
        return blank
    if not isinstance(state, State):
        found = short(state)
    elif state.core.shape == blank.core.shape and (state.frames is None) == (blank.frames is None):
        return state
    else:
        found = f"that of {len(state.core)}"
    raise ConfigError(f"state is {found}, expected what predict of this policy returned for {len(blank.core)}, or None")


def _zeroed(first: Tensor, entries: Tensor) -> Tensor:
    """[N, ...], with zeros where an episode begins."""
    return entries.masked_fill(first.view(-1, *[1] * (entries.ndim - 1)), 0)


def _stacked(first: Tensor, frame: Tensor, before: Tensor) -> Tensor:
    """The stacks [N, k, *frame] that end with a frame [N, *frame], which fills those that an episode begins with."""
    begun = first.view(-1, *[1] * frame.ndim)
    return torch.where(begun, frame.unsqueeze(1), torch.cat([before[:, 1:], frame.unsqueeze(1)], 1))


def _actions(space: Space, chosen: Any, *, single: bool) -> Any:
    """Actions of the space, numpy arrays within their bounds, from a tree of tensors [N, *shape]."""

    def within(array: ArraySpace, tensor: Tensor) -> Any:
        found = tensor.cpu().numpy()
        found = np.clip(found, *array.bounds).astype(array.dtype) if array.kind == "box" else found
        return found[0] if single else found

    return nested(space, (within(*part) for part in by_array(space, chosen)), tuples=True)
