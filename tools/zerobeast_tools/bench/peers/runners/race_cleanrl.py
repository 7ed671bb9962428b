"""A script of CleanRL as it is: it runs unchanged, and its environments report to the referee when they are stepped.

The script's arguments follow `--` on the command line; its agent is found among its global variables.
"""

from __future__ import annotations

import contextlib
import copy
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import torch
from referee import Referee, parse_terms, play_whole  # beside this script

AGENTS = ("agent", "q_network")  #: names of the script's variables


class RaceOver(BaseException):
    """Ends the script."""


class Judge:
    """Counts the steps of the script's environments, and plays with its agent."""

    def __init__(self, referee: Referee) -> None:
        self.referee, self.agent_steps = referee, 0
        self.make_env: Callable[[], Any] | None = None  #: as the script makes each of its own
        self.train_envs: Any = None

    def count_steps(self, number: int) -> None:
        """Environments were stepped. Raises RaceOver at the end of the race."""
        self.agent_steps += number
        if self.referee.saw(self.agent_steps, self._play):
            raise RaceOver

    def _play(self) -> float:
        act = make_greedy(find_agent(sys._getframe()))
        assert self.make_env is not None, "the script has made its environments"
        env = self.make_env()
        try:
            freeze_statistics(env, self.train_envs)
            with torch.no_grad():
                return float(play_whole(env, act, self.referee.terms))
        finally:
            env.close()


def find_agent(frame: FrameType | None) -> Any:
    """The agent among the global variables of the script, which is up the stack."""
    while frame is not None:
        if found := [frame.f_globals[name] for name in AGENTS if name in frame.f_globals]:
            return found[0]
        frame = frame.f_back
    raise LookupError(f"the script has no variable {' or '.join(AGENTS)}")


def make_greedy(agent: Any) -> Callable[[Any], Any]:
    """An observation -> the most likely or best action, or the mean one."""

    def act(observation: Any) -> Any:
        rows = torch.as_tensor(np.asarray(observation), dtype=torch.float32)[None]
        if hasattr(agent, "actor_mean"):
            return agent.actor_mean(rows)[0].numpy()
        if not hasattr(agent, "get_action_and_value"):
            return int(agent(rows).argmax())
        logits: list[Any] = []  # of the actor, wherever it stands in the network
        hook = agent.actor.register_forward_hook(lambda _module, _inputs, output: logits.append(output))
        agent.get_action_and_value(rows, torch.zeros(1))
        hook.remove()
        return int(logits[0].argmax())

    return act


def freeze_statistics(env: Any, train_envs: Any) -> None:
    """Normalise observations as the first training environment does, without counting those of evaluations."""
    for ours, theirs in zip(layers(env), layers(train_envs.envs[0] if train_envs else env), strict=True):
        if hasattr(ours, "normalize") and hasattr(ours, "obs_rms"):
            ours.obs_rms = copy.deepcopy(theirs.obs_rms)
            ours.obs_rms.update = lambda _batch: None


def layers(env: Any) -> list[Any]:
    """The wrappers of an environment, outermost first."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(env)
        env = env.env
    return found


def watch_gymnasium(judge: Judge) -> None:
    """Have the environments report that the script makes by gymnasium."""

    class Watched(gymnasium.vector.SyncVectorEnv):
        def __init__(self, env_fns: Any, *args: Any, **named: Any) -> None:
            super().__init__(env_fns, *args, **named)
            judge.make_env, judge.train_envs = next(iter(env_fns)), self

        def step(self, actions: Any) -> Any:
            found = super().step(actions)
            judge.count_steps(self.num_envs)
            return found

    setattr(gymnasium.vector, "SyncVectorEnv", Watched)  # noqa: B010 - a type checker refuses another class


def watch_envpool(judge: Judge) -> None:
    """Have the environments report that the script makes by EnvPool."""
    import envpool

    make = envpool.make
    whole = {"num_envs": 1, "episodic_life": False, "reward_clip": False, "seed": judge.referee.terms.eval_seed}

    def make_watched(env_id: str, **named: Any) -> Any:
        envs = make(env_id, **named)
        step = envs.step

        def step_and_count(*args: Any) -> Any:
            found = step(*args)
            judge.count_steps(named["num_envs"])
            return found

        envs.step = step_and_count
        judge.make_env = lambda: One(make(env_id, **{**named, **whole}))
        return envs

    setattr(envpool, "make", make_watched)  # noqa: B010 - likewise


class One:
    """The single environment of an EnvPool with gym's old interface, as a gymnasium environment."""

    def __init__(self, envs: Any) -> None:
        self._envs, self._score = envs, 0.0

    def reset(self, **_seed: int) -> tuple[Any, dict[str, Any]]:
        """The first observation; the seed was given when it was made."""
        self._score = 0.0
        return self._envs.reset()[0], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        observations, rewards, dones, _ = self._envs.step(np.array([action]))
        self._score += float(rewards[0])
        return observations[0], float(rewards[0]), bool(dones[0]), False, {"episode": {"r": self._score}}

    def close(self) -> None:
        """Close it."""
        self._envs.close()


def main() -> None:
    """Run the script until the race is over."""
    at = sys.argv.index("--")
    sys.argv, theirs = sys.argv[:at], sys.argv[at + 1 :]
    referee = Referee(parse_terms())
    script = Path(referee.terms.script).resolve()
    root, judge = script.parents[1], Judge(referee)
    (watch_envpool if "envpool" in script.name else watch_gymnasium)(judge)
    sys.path.insert(0, str(root))
    sys.argv = [str(script), *theirs, f"--seed={referee.terms.seed}"]
    with contextlib.suppress(RaceOver):
        runpy.run_path(str(script), run_name="__main__")
    git = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    referee.report(subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown")


if __name__ == "__main__":
    main()
