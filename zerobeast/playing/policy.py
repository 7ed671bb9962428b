"""A saved policy as a function of observations, for a loop of one's own. `zerobeast.load` makes it."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from zerobeast.common.config.layers import GivenValue
from zerobeast.common.errors import CheckpointError, ConfigError, RemoteProtocolError, raise_as
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, Space, nest_values
from zerobeast.common.wire.checks import find_forbidden
from zerobeast.playing import tensors
from zerobeast.playing.tensors import FLAG, NUMBER, Sizes, State
from zerobeast.rl.acting.inference import LATE_STEP
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets import Network, StepInput, pick_device, use_float32
from zerobeast.rl.nets.checkpoint import UNREADABLE_ERRORS, load_model
from zerobeast.rl.ops.distributions import Distribution
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import HasActionValues, HasDistribution, HasUnit, HasValue, Sampling
from zerobeast.rl.settings import LearnerSettings


class _Step(NamedTuple):
    """One step of N environments."""

    inputs: StepInput  #: [1, N, ...], as the network takes it
    core: Tensor  #: [N, core_size]
    single: bool  #: whether the observation has no N
    env: str  #: of which of the run's environments it is, if that is known
    action: Space  #: as that environment counts its choices


class Policy:
    """The policy of a checkpoint.

    Its methods take the observation of one environment, or of N as arrays [N, ...]. The state that `predict` returns
    has the frame stack, the recurrent state and the last action of each; observations are normalised as in training.
    Values are those of the environment's own spaces: of a Dict or Tuple dicts or tuples, and choices count from where
    the space does. In a run of several environments, which one an observation is of follows from its shape, or is
    given: `env="CartPole-v1"`. Smaller ones are padded, and choices that an environment does not have forbidden.

    Args:
      config: the settings of the run.
      saved: what its checkpoint holds.
      checkpoint: the path of that file, for errors.
      in_files: the settings that files alone give (`common.config.trust`).

    Attributes:
      module: the network in float32, or as set by `broker.precision`, on `broker.device`.
      env: what the environment looks like.
      config: the settings.
      agent_steps: after how many the policy was saved.
      unit: of the values that the algorithm learns, in units of the environment's rewards.

    Raises:
      CheckpointError: the checkpoint is damaged or of another architecture.
      ConfigError: the device is missing, or the algorithm cannot handle the environment.

    Examples:
      >>> import numpy as np
      >>> import zerobeast as zb
      >>> policy = zb.load("cart")
      >>> observations = np.zeros((5, 4), np.float32)  # of five environments
      >>> actions, state = policy.predict(observations)
      >>> actions.shape, policy.distribution(observations).probs.shape, policy.value(observations).shape
      ((5,), torch.Size([5, 2]), torch.Size([5]))
    """

    def __init__(
        self, config: RunConfig, saved: dict[str, Any], checkpoint: Path, in_files: Sequence[GivenValue] = ()
    ) -> None:
        self.config, self.checkpoint, self.in_files = config, checkpoint, in_files
        with raise_as(CheckpointError, str(checkpoint), RemoteProtocolError):
            self.env = EnvSpec.from_wire(saved["env"])
        self.agent_steps = int(saved["counters"]["agent_steps"])
        self._sizes = self.config.env.sizes
        self.algorithm = make_algorithm(self.config, self.env)
        with use_float32():
            net = self.algorithm.network()
        load_model(checkpoint, net, saved["model"])
        net.agent_steps.fill_(LATE_STEP)
        self.unit = self._unit(saved)
        self.module: Network = net.to(pick_device(self.config.broker.device, "broker.device")).eval()
        if self.config.broker.precision == "bfloat16":
            self.module.lower(torch.bfloat16)
        self._generator = torch.Generator(self.module.device)

    def __repr__(self) -> str:
        return f"<Policy of {self.env.env_id}, {self.config.section}, after {self.agent_steps:,} agent steps>"

    def of_rows(self) -> Self:
        """The same policy for rows of env-servers, as of `EnvClient`: all are padded, and choices count from 0."""
        same = copy(self)
        same.env, same._sizes = self.env.of_rows(), {}
        return same

    def predict(
        self,
        obs: Any,
        state: State | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool | None = None,  # noqa: FBT001 - as in Stable-Baselines3
        **given: Any,
    ) -> tuple[Any, State]:
        """Choose the action of one environment, or those of N.

        Args:
          obs: [*shape] or [N, *shape]: of a frame stack the newest frame alone.
          state: as the previous call returned it; None: episodes begin.
          episode_start: [] or [N] bool: where an episode begins and `state` is reset; None: nowhere.
          deterministic: take the likeliest or best action; False: draw one, as in training after its first steps; None:
            as evaluations of the run do (`evaluate.actions`), which is the former unless asked otherwise.
          **given: `last_reward` [N], only if the network takes it (`config.net.sees_last_step`); `last_action`
            [N, *shape], if another action was taken than the one chosen here; `action_mask` [N, choices] bool: which
            choices are legal, if it was trained with masks and `obs` does not hold them; `env`: of a run of several
            environments, which of them.

        Returns:
          Actions within their bounds, [*shape] or [N, *shape], and the state after this step.

        Raises:
          ConfigError: a value has another shape, type or number of environments than expected.
        """
        greedy = self.config.evaluate.greedy if deterministic is None else deterministic
        with use_float32():
            step = self._step(obs, state, episode_start, **given)
            slots = torch.arange(len(step.core), device=step.core.device)
            sampling = Sampling(slots, self._generator, greedy)
            act, core = self.algorithm.act(self.module, step.inputs, step.core, sampling)
        frames = tree_map(lambda stacks: stacks[0], step.inputs.obs) if self.env.stack else None
        return tensors.to_actions(step.action, act.action, single=step.single), State(frames, act.action, core.float())

    def distribution(self, obs: Any, state: State | None = None, **given: Any) -> Distribution:
        """The distribution [N] that actions are drawn from, with gradient; arguments are those of `predict`.

        It has `logits` and `probs` [N, choices], counted from 0, of components one after the other; or `mean` and
        `stddev` [N, *shape]; or of an action of several arrays `parts` that have them.

        Raises:
          ConfigError: as `predict`, or the algorithm has no distribution, such as DQN and TD3.
        """
        if not isinstance(self.algorithm, HasDistribution):
            raise self._lacks("distribution")
        with use_float32():
            step = self._step(obs, state, **given)
            return self.algorithm.distribution(self.module, step.inputs, step.core)

    def value(self, obs: Any, state: State | None = None, **given: Any) -> Tensor:
        """The expected discounted return, [] or [N], with gradient; arguments are those of `predict`.

        It is in the units of the environment's rewards: scales of rewards and values are undone. What was clipped
        (`reward_clipping`, and with `ppo.normalize_returns` beyond ten deviations) is lost, and counts as clipped. If
        several environments could be meant, it is the value in the first.

        Raises:
          ConfigError: as `predict`, or the algorithm has no value in its policy, such as DDPG, TD3 and SAC.
        """
        if not isinstance(self.algorithm, HasValue):
            raise self._lacks("value")
        with use_float32():
            step, tasks = self._step(obs, state, **given), self.config.env.tasks
            task = {"task": tasks.index(step.env)} if step.env in tasks[1:] else {}
            return self._of_unit(self.algorithm.value(self.module, step.inputs, step.core, **task), step)

    def action_values(self, obs: Any, state: State | None = None, **given: Any) -> Tensor:
        """The expected discounted return of each choice, [A] or [N, A], in the units of `value`.

        Raises:
          ConfigError: as `predict`, or the algorithm learns no such values: those of DQN and its kin do.
        """
        if not isinstance(self.algorithm, HasActionValues):
            raise self._lacks("action_values")
        with use_float32():
            step = self._step(obs, state, **given)
            return self._of_unit(self.algorithm.action_values(self.module, step.inputs, step.core), step)

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
        settings, unit = self.config.algorithm, 1.0
        scale = settings.reward_scale if isinstance(settings, LearnerSettings) else 1.0
        with raise_as(CheckpointError, f"{self.checkpoint}: no unit of values", *UNREADABLE_ERRORS):
            if isinstance(self.algorithm, HasUnit) and "unit" not in saved:
                unit = self.algorithm.unit(saved["learning"])
            found = float(saved.get("unit", unit / scale))
        if not 0 < found < math.inf:
            raise CheckpointError(f"{self.checkpoint}: unit of values {found}, expected a finite number above 0")
        return found

    def _of_unit(self, values: Tensor, step: _Step) -> Tensor:
        found: Tensor = self.unit * values
        return found[0] if step.single else found

    def _lacks(self, name: str) -> ConfigError:
        return ConfigError(f"algo {self.config.section}: its policy has no {name}, expected an algorithm that has one")

    def _step(
        self,
        obs: Any,
        state: State | None,
        episode_start: ArrayLike | None = None,
        *,
        last_action: Any = None,
        last_reward: ArrayLike | None = None,
        action_mask: ArrayLike | None = None,
        env: str = "",
    ) -> _Step:
        if env and env not in (tasks := self.config.env.tasks):
            raise ConfigError(argument="env", value=env, expected=f"one of the run's environments: {', '.join(tasks)}")
        env, own = Sizes.of(self._sizes, self.env.obs, obs, env)
        space = self.env.action
        if own and isinstance(space, ArraySpace) and isinstance(self.env.obs, ArraySpace):
            obs, space = own.pad(obs, self.env.obs), replace(space, start=(own.start,) if own.start else ())
        n, single = tensors.count_envs(self.env.obs, obs)
        read = partial(tensors.to_tensors, n=n, single=single, device=self.module.device)
        before = tensors.check_state(state, self._blank(n))
        first = read("episode_start", FLAG, np.full(n, state is None) if episode_start is None else episode_start)
        first = first | (state is None)
        if last_reward is None and self.config.net.sees_last_step and not first.all():
            raise ConfigError("last_reward is None, expected [N] numbers for the network (net.last_action_reward)")
        reward = read("last_reward", NUMBER, np.zeros(n) if last_reward is None else last_reward)
        action = before.action if last_action is None else read("last_action", space, last_action)
        action, core = (tree_map(partial(tensors.zero_at_starts, first), entry) for entry in (action, before.core))
        if action_mask is None and isinstance(obs, Mapping):
            action_mask = obs.get(self.config.env.action_mask)
        mask = self._mask(read, action_mask, n, (own and own.choices) or self.env.mask_size)
        seen = read("obs", self.env.obs, obs)
        if self.env.stack:
            seen = tensors.push_frames(first, seen, before.frames)
        step = StepInput(seen, action, reward, first, mask)
        return _Step(tree_map(lambda entry: entry[None], step), core, single, env, space)

    def _mask(self, read: Callable[..., Any], given: Any, n: int, choices: int) -> Tensor | None:
        """Which choices are legal, [N, choices of the network]; `choices` are those of the environment itself."""
        if given is not None and not self.env.action_mask:
            raise ConfigError(argument="action_mask", value=given, expected=f"None: {self.env.env_id} has no masks")
        if not (most := self.env.mask_size):
            return None
        if given is None and self.config.env.action_mask:
            raise ConfigError(f"action_mask is None, expected [N, {choices}] bool: the policy was trained with masks")
        mask = np.ones((n, choices), np.bool_) if given is None else np.asarray(given)
        if mask.shape[-1:] == (choices,):
            mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, max(0, most - choices))])
        found: Tensor = read("action_mask", ArraySpace("multi_binary", "|b1", (most,)), mask)
        if sentence := find_forbidden(found.cpu().numpy(), self.env.action):
            raise ConfigError(f"action_mask {sentence}")
        return found

    def _blank(self, n: int) -> State:
        """The state of N environments before their first step: zeros."""

        def zeros(space: Space, *lead: int) -> Any:
            blank = (np.zeros((*lead, *array.shape), array.dtype) for array in space.arrays)
            return nest_values(space, (torch.from_numpy(array).to(self.module.device) for array in blank))

        frames = zeros(self.env.obs, n, *self.env.stack) if self.env.stack else None
        return State(frames, zeros(self.env.action, n), self.module.initial_state(n))
