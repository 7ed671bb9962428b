"""Google Research Football through EnvPool, by the ids football/<scenario>: one player, rewards for goals alone.

Observations are the paper's "super mini map" (Kurach et al. 2019, section 3.1): planes of the own team, the other
one, the ball and the active player, each with points at their positions, and `env.frame_stack` of these. EnvPool rounds
positions to points before anything else could, so that the paper's checkpoint rewards cannot be had from it.
"""

from typing import Any

import numpy as np

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig
from zerobeast.services.envserver.backend import Backend, unknown_id_error
from zerobeast.services.envserver.envpool import FOOTBALL, PoolEnvs
from zerobeast.services.envserver.spaces import Adapter

PREFIX, VERSION, ACADEMY = "football/", "-v1", "academy_"
MATCHES = (
    *(f"11_vs_11_{kind}" for kind in ("easy_stochastic", "stochastic", "hard_stochastic", "competition", "kaggle")),
    *("5_vs_5", "1_vs_1_easy"),
)
LESSONS = (
    *("empty_goal_close", "empty_goal", "run_to_score", "run_to_score_with_keeper", "pass_and_shoot_with_keeper"),
    *("run_pass_and_shoot_with_keeper", "3_vs_1_with_keeper", "corner", "counterattack_easy", "counterattack_hard"),
    "single_goal_versus_lazy",
)
SCENARIOS = sorted((*MATCHES, *(f"{ACADEMY}{lesson}" for lesson in LESSONS)))
#: arguments of the source package's `create_environment`
SOURCE = {
    *("rewards", "representation", "stacked", "channel_dimensions", "extra_players", "other_config_options"),
    *("number_of_left_players_agent_controls", "number_of_right_players_agent_controls"),
}


class Football(PoolEnvs):
    """A pool of matches. Args and errors: see `PoolEnvs`.

    The info of a step has the goals of both sides so far, their difference, and `is_success`: in the Academy a goal,
    elsewhere more goals than the other side.
    """

    stacked = True

    def __init__(self, config: EnvConfig, num_envs: int, seed: int | None, **more: Any) -> None:
        if asked := sorted(SOURCE & config.kwargs.keys()):
            raise EnvError(
                f"env.kwargs: {asked[0]!r} is not an argument of {config.id}; expected g{config.id}, which takes more"
            )
        super().__init__(config, num_envs, seed, **more)

    def task_of(self, env_id: str) -> str:
        """EnvPool's id. Raises EnvError if it has no such scenario."""
        if env_id not in (known := ids()):
            raise unknown_id_error(env_id, f"expected {', '.join(known)}")
        return f"{FOOTBALL}{env_id.removeprefix(PREFIX)}{VERSION}"

    def adapt_space(self, space: Any) -> tuple[Any, Adapter]:
        """Planes of 0 and 255 as booleans."""
        from gymnasium import spaces

        return spaces.Box(0, 1, space.shape, np.bool_), lambda planes: planes > 0

    def select_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """The score."""
        return score(self.spec.env_id.removeprefix(PREFIX), *infos["score"].T)


def score(scenario: str, goals: Any, conceded: Any) -> dict[str, Any]:
    """The numbers of one match or of several, from the goals of both sides so far."""
    return {
        "goals": goals,
        "goals_conceded": conceded,
        "goal_difference": goals - conceded,
        "is_success": goals > (0 if scenario.startswith(ACADEMY) else conceded),
    }


def _refuse_pictures(config: EnvConfig, _seed: int) -> PoolEnvs:
    raise EnvError(f"env.id {config.id!r} cannot be rendered: EnvPool's football has no images, but g{config.id} has")


def ids() -> list[str]:
    return [f"{PREFIX}{scenario}" for scenario in SCENARIOS]


BACKEND = Backend(make_part=Football, make_rendered=_refuse_pictures, ids=ids)
