"""Google Research Football by the package gfootball, built from source, by the ids gfootball/<scenario>.

It has what EnvPool's build of the engine (`football`) lacks: vectors, pixels, several players, both teams, and the
checkpoint rewards of Kurach et al. 2019 (arXiv:1907.11180, section 3.2): 0.1 for each of ten distances from the goal at
which a player has had the ball, once an episode, and what remains of them with the first goal.
"""

import contextlib
import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError
from zerobeast.services.envserver import football
from zerobeast.services.envserver.backend import Backend, refuse_arguments, unknown_id_error

PREFIX = "gfootball/"
VECTORS, PLANES, PIXELS = "simple115v2", "extracted", ("pixels", "pixels_gray")
CHOICES = {"representation": (PLANES, VECTORS, *PIXELS), "rewards": ("scoring", "scoring,checkpoints")}
FILE_ARGUMENTS = ("extra_players", "other_config_options")  #: arguments that may name files
CONTROL_ARGUMENT = "number_of_{}_players_agent_controls"


class Match:
    """A match, with the interface of PettingZoo's parallel environments: agents are the controlled players.

    Those on the right get the pitch turned, as if they were on the left. An episode that ends by time is truncated, as
    in `football`: no observation holds the time that is left. Infos are those of `football`, of each side.

    Args:
      scenario: of the package.
      agents: how many players of the left team and of the right one.
      options: arguments of the package's `create_environment`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # gymnasium's declaration

    def __init__(self, scenario: str, agents: dict[str, int], options: dict[str, Any]) -> None:
        from gfootball.env import create_environment
        from gymnasium import spaces

        self._scenario, self._rng = scenario, np.random.default_rng()
        self.possible_agents = [f"{team}_{n}" for team, count in agents.items() for n in range(count)]
        self.agents: list[str] = []
        self._env = create_environment(scenario, **options)
        self._game = self._env.unwrapped
        space = self._env.observation_space
        shape = space.shape[-3:] if len(space.shape) > 2 else space.shape[-1:]  # that of several agents has one more
        is_bits = options["representation"] == PLANES
        limits: Any = (0, 1, shape, np.bool_) if is_bits else (space.low.min(), space.high.max(), shape, space.dtype)
        self._space, self._choices = spaces.Box(*limits), spaces.Discrete(self._game._num_actions)

    def observation_space(self, _agent: str) -> Any:
        return self._space

    def action_space(self, _agent: str) -> Any:
        return self._choices

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        del options  # there are none
        config = self._game._config
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            config["episode_number"] = 0  # which team some scenarios make first depends on it
        drawn = int(self._rng.integers(2**31))
        config.update({"game_engine_random_seed": drawn, "reverse_team_processing": bool(drawn % 2)})
        self.agents = list(self.possible_agents)
        return self._by_agent(self._env.reset()), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        names = self.agents
        obs, rewards, done, _ = self._env.step([actions[name] for name in names])
        raw = self._game.observation()
        late = bool(done and raw[0]["steps_left"] <= 0)
        if done:
            self.agents = []
        return (
            self._by_agent(obs),
            dict(zip(names, np.atleast_1d(rewards).tolist(), strict=True)),
            dict.fromkeys(names, bool(done and not late)),
            dict.fromkeys(names, late),
            {name: football.score(self._scenario, *one["score"]) for name, one in zip(names, raw, strict=True)},
        )

    def render(self) -> Any:
        return self._game.render(mode="rgb_array")

    def close(self) -> None:
        self._env.close()

    def _by_agent(self, obs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        rows = obs.reshape(-1, *self._space.shape).astype(self._space.dtype)  # points of planes are 255
        return dict(zip(self.possible_agents, rows, strict=True))


def make(env_id: str, kwargs: dict[str, Any]) -> Match:
    """Make one match.

    Raises:
      EnvError: the package is not installed, or has no such scenario, argument or player.
    """
    scenario = env_id.removeprefix(PREFIX)
    if scenario not in football.SCENARIOS:
        raise unknown_id_error(env_id, f"expected {', '.join(ids())}")
    options = dict(kwargs)
    is_drawn = options.pop("render_mode", None) is not None
    refuse_arguments(options, football.SOURCE, env_id)
    for name, known in CHOICES.items():
        options.setdefault(name, known[0])
        if options[name] not in known:
            raise EnvError(f"env.kwargs: {name} is {options[name]!r}, expected {' or '.join(known)}")
    in_pixels = options["representation"] in PIXELS
    options.setdefault("stacked", options["representation"] != VECTORS)
    agents = _agents(env_id, scenario, options)
    if in_pixels and agents["right"]:
        raise EnvError(
            f"env.kwargs: representation is {options['representation']!r}, which right-side players do not have"
        )
    with warnings.catch_warnings(action="ignore"):  # of gym's bounds and interface
        return Match(scenario, agents, options | {"render": is_drawn or in_pixels})


def _agents(env_id: str, scenario: str, options: dict[str, Any]) -> dict[str, int]:
    """How many players of each team are controlled. Raises EnvError if the package or that many are missing."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # gym's remark that it is out of date
            from gfootball.env.config import Config
    except ImportError as error:
        other = f"{football.PREFIX}{scenario} is EnvPool's, for one player"
        why = f"gfootball, which is built from source, cannot be imported ({error})"
        raise EnvError(f"env.id {env_id!r} cannot be made: {why}; {other}") from error
    scene, agents = Config({"level": scenario}).ScenarioConfig(), {}
    for team, usual in {"left": 1, "right": 0}.items():
        name, most = CONTROL_ARGUMENT.format(team), getattr(scene, f"controllable_{team}_players")
        agents[team] = options.setdefault(name, usual)
        if type(agents[team]) is not int or not 0 <= agents[team] <= most:
            raise EnvError(f"env.kwargs: {name} is {agents[team]!r}, expected 0 to {most} in {env_id}")
    if not any(agents.values()):
        raise EnvError(f"env.kwargs: no player of {env_id} is controlled, expected at least one")
    return agents


def ids() -> list[str]:
    return [f"{PREFIX}{scenario}" for scenario in football.SCENARIOS]


BACKEND = Backend(make, ids=ids, choices=CHOICES | dict.fromkeys(FILE_ARGUMENTS, ()))
