"""All environments of a run start from different seeds; groups take turns at a run's environment ids."""

from tests.build.groups import Play
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.messages import Plane
from zerobeast.services.actor.service import Actor


def seeds(index: int | None, run_seed: int = 1, start: int = 0) -> list[int]:
    """Seeds of all environments of an actor with 2 groups of 3."""
    config = RunConfig.model_validate({"seed": run_seed, "actor": {"env_groups": 2, "envs_per_group": 3}})
    firsts = [
        group.steps.stream.hello_terms["seed"] for group in Actor(config, Instance(index=index, start=start)).groups
    ]
    return [first + i for first in firsts for i in range(3)]


def test_the_groups_of_all_actors_take_turns_at_the_environments_of_a_run() -> None:
    played = []
    for index in range(3):
        config = RunConfig.model_validate({"env": {"id": "A-v0,B-v0,C-v0", "noop_max": 7}, "actor": {"env_groups": 2}})
        for group in Actor(config, Instance(index=index)).groups:
            asked = group.steps.stream.hello_terms["env"]
            assert asked["noop_max"] == 7
            played.append(asked["id"])
    assert played == ["A-v0", "B-v0", "C-v0"] * 2


def test_numbered_actors_repeat_their_seeds_and_share_none_whatever_the_run_continues_from() -> None:
    assert seeds(1, run_seed=2) == [2_000_006 + 6 + i for i in range(6)]
    assert seeds(1, start=5000) == seeds(1, start=5000)
    starts = [0, 1, 2, 160, 5000, 5160, 10**6, 10**12]
    everything = [seed for start in starts for index in range(50) for seed in seeds(index, start=start)]
    assert len(set(everything)) == len(starts) * 50 * 6


def test_actors_without_a_number_share_no_seeds_either() -> None:
    everyone = [seed for _ in range(10) for seed in seeds(None)]
    assert len(set(everyone)) == 10 * 6
    assert all(0 <= seed < 2**31 + 3 for seed in everyone)


def test_recreated_environments_get_other_seeds() -> None:
    play = Play()
    asked = [play.group.steps.stream.hello_terms["seed"]]
    for _ in range(3):
        for _ in range(40):
            play.turn()
        asked.append(play.group.steps.stream.hello_terms["seed"])
        play.end(Plane.STEPS, politely=True)
        play.start(Plane.STEPS)
    assert asked[:2] == [0, 0], "a session that begins says what it was given"
    assert len(set(asked)) == 3
    assert all(0 <= seed < 2**31 for seed in asked)
