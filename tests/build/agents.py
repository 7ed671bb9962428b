"""Tiny environments of three agents, as PettingZoo's parallel ones: one leaves early, one joins late."""

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

Maps = dict[str, Any]
HOME = __name__
RELAY = f"{HOME}:Relay"


class Relay:
    """Ends after its 4th step: a leaves in the 1st, c joins in the 2nd, b is truncated and c terminated in the 4th.

    The observation of an agent is the step and the seed, and its reward its action. `fault` is what goes wrong; with
    `lingers`, a is still listed after its last step, and that it has ended, as in some games with turns.
    """

    metadata: ClassVar[Maps] = {}
    possible_agents: ClassVar[list[Any]] = ["a", "b", "c"]

    def __init__(self, fault: str = "", sizes: tuple[int, int, int] = (2, 2, 2), choices: int = 5) -> None:
        self._fault, self._sizes, self._choices, self._seed = fault, sizes, choices, -1

    def observation_space(self, agent: str) -> Space[Any]:
        size = self._sizes[self.possible_agents.index(agent)]
        return Box(0, 9, (size,), np.uint8 if (self._fault, agent) == ("dtype", "c") else np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(self._choices if agent == "a" else 5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Maps, Maps]:
        self._t, self._seed, self.agents = 0, self._seed if seed is None else seed, self.possible_agents[:2]
        self.agents = {"none": [], "unknown": ["a", "d"]}.get(self._fault, self.agents)
        return self._of(self._seen), {}

    def step(self, actions: dict[str, int]) -> tuple[Maps, ...]:
        acting = [agent for agent in self.agents if self._t == 0 or agent != self.possible_agents[0]]
        assert list(actions) == acting, "those that act, and no others"
        assert all(isinstance(action, int) for action in actions.values())
        self._t, lives, (a, b, c) = self._t + 1, self.agents, self.possible_agents
        self.agents = {1: [b], 2: [b, c], 4: []}.get(self._t, self.agents)
        lingers = self._fault == "lingers" and self._t < 3
        self.agents = [a] * lingers + [agent for agent in self.agents if agent != a]
        if self._fault == "leaves":
            self.agents = ["a"]
        everyone = list(dict.fromkeys([*lives, *self.agents]))
        seen = {agent: self._seen(agent) for agent in everyone if self._fault != "silent"}
        rewards = {agent: float(actions.get(agent, 7)) for agent in everyone}
        terminated = {agent: (self._t, agent) in ((1, a), (4, c)) or (lingers and agent == a) for agent in everyone}
        truncated = {agent: (self._t, agent) == (4, b) for agent in everyone}
        return seen, rewards, terminated, truncated, {agent: {"success": self._t > 2} for agent in everyone}

    def close(self) -> None: ...

    def _seen(self, agent: str) -> Any:
        size = self._sizes[self.possible_agents.index(agent)]
        return np.array([self._t, self._seed, 9][:size], self.observation_space(agent).dtype)

    def _of(self, values: Any) -> dict[str, Any]:
        return {agent: values(agent) for agent in self.agents if agent in self.possible_agents}


class Turns(Relay):
    """Masks as games with turns have them: a alone may choose, and has two choices."""

    def observation_space(self, agent: str) -> Space[Any]:
        from gymnasium.spaces import Dict

        return Dict({"observation": super().observation_space(agent), "action_mask": Box(0, 1, (5,), np.int8)})

    def _seen(self, agent: str) -> Any:
        return {
            "observation": np.zeros(2, np.float32),
            "action_mask": np.array([0, 1, 0, 1, 0], np.int8) * (agent == "a"),
        }


class Teams(Relay):
    """With agents of two roles."""

    possible_agents: ClassVar[list[Any]] = ["red_0", "red_1", "blue_0"]


class Numbered(Relay):
    """With agents whose names are no text, as PettingZoo allows."""

    possible_agents: ClassVar[list[Any]] = [1, 2, 3]


class Unnamed(Relay):
    possible_agents: ClassVar[list[Any]] = []
