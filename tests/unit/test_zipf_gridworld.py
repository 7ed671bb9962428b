"""Zipf's Gridworld against the description of Chan et al. 2022."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zerobeast.common.settings import NetConfig, Reading
from zerobeast.services.envserver import gridworld
from zerobeast.services.envserver.gridworld import DIRECTIONS, NO_OBJECT, Gridworlds, Maps, Size, maps_of, shapes
from zerobeast.services.envserver.odds import odds
from zerobeast.services.envserver.zipf import SIZES, TASKS
from zerobeast.testing.sessions import session

SMALL, PUBLISHED = SIZES["zipf/Gridworld-small"], SIZES["zipf/Gridworld"]
ROOM = """
#####
#  1#
#   #
#0  #
#####"""


@pytest.fixture(params=[True, False], ids=["planes", "pixels"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gridworlds:
    """An agent in the second square of the second row of ROOM; its cue is object 1, of colour 0 and shape 1."""
    squares = np.array([list(line) for line in ROOM.splitlines()[1:]])
    objects = np.full((1, 5, 5), NO_OBJECT)
    objects[0, 3, 1], objects[0, 1, 3] = 0, 1
    hand_written = Maps(
        (squares == "#")[None], objects, np.array([[[1, 0], [0, 1]]]), np.array([[[1, 1]]]), np.array([1])
    )
    monkeypatch.setattr(gridworld, "maps_of", lambda _: hand_written)
    worlds = Gridworlds(Size(1, 1, 2, 2, 3, request.param), "rare", 2.0, 1)
    worlds.begin(np.zeros(1, np.int64))
    return worlds


def after(worlds: Gridworlds, *moves: str) -> tuple[bool, bool, bool]:
    """Reward, terminated and truncated of the last of these moves."""
    for move in moves:
        answer = worlds.step(np.array([DIRECTIONS.index(move)]))
    return tuple(bool(values[0]) for values in answer)  # type: ignore[return-value]


@pytest.mark.parametrize("env_id", ["zipf/Gridworld", "zipf/Gridworld-small-uniform", "zipf/Gridworld-small-rare"])
def test_maps_and_objects_are_drawn_as_often_as_by_the_level(env_id: str) -> None:
    base, level = TASKS[env_id]
    size = SIZES[base]
    worlds, seen = Gridworlds(size, level, 2.0, 50), np.zeros((size.maps, size.objects))
    worlds.seed(range(50))
    for _ in range(200):
        worlds.begin(np.arange(50))
        np.add.at(seen, (worlds.map, worlds.target), 1)
    expected = seen.sum() * np.outer(odds(size.maps, level, 2.0), odds(size.objects, level, 2.0))
    assert not seen[expected == 0].any()
    often = expected >= 5
    observed = np.append(seen[often], seen[~often].sum())
    from scipy.stats import chisquare  # every worker would load it, to collect this file

    assert chisquare(observed, np.append(expected[often], max(expected[~often].sum(), 1e-9))).pvalue > 0.01


@pytest.mark.parametrize("size", [SMALL, PUBLISHED], ids=["small", "published"])
def test_maps_are_those_of_the_description(size: Size) -> None:
    maps = maps_of(size)
    again = maps_of.__wrapped__(size)
    assert all(np.array_equal(one, other) for one, other in zip(maps, again, strict=True)), "the same for everybody"
    pairs = zip(maps.walls, maps.objects, strict=True)
    assert len({walls.tobytes() + objects.tobytes() for walls, objects in pairs}) == size.maps
    lines = np.arange(size.side) % 4 == 0
    for number, (walls, objects) in enumerate(zip(maps.walls, maps.objects, strict=True)):
        assert walls[[0, -1]].all()
        assert walls[:, [0, -1]].all()
        assert walls[np.ix_(lines, lines)].all()
        assert not walls[np.ix_(~lines, ~lines)].any(), "rooms of 3 x 3 squares"
        assert sorted(objects[objects != NO_OBJECT]) == list(range(size.objects))
        assert len({tuple(look) for look in maps.looks[number]}) == size.objects, "no two look alike"
        starts = {tuple(start) for start in maps.starts[number, : maps.num_starts[number]].tolist()}
        assert starts == {tuple(square) for square in np.argwhere(~walls & (objects == NO_OBJECT)).tolist()}
        assert reached(walls, objects) == {tuple(square) for square in np.argwhere(~walls).tolist()}
        doors = np.argwhere(~walls & (lines[:, None] | lines))
        for y, x in np.argwhere(objects != NO_OBJECT):
            assert not (y % 4 == x % 4 == 2), "against a wall"
            assert (abs(doors - (y, x)).sum(axis=1) > 1).all(), "beside no door"


def reached(walls: NDArray[np.bool_], objects: NDArray[np.int64]) -> set[tuple[int, int]]:
    """All squares that an agent can reach from one that is free, if objects end its way."""
    y, x = np.argwhere(~walls & (objects == NO_OBJECT))[0].tolist()
    found, edge = {(y, x)}, [(y, x)]
    while edge:
        square = edge.pop()
        if objects[square] == NO_OBJECT:
            around = {(square[0] + dy, square[1] + dx) for dy, dx in gridworld.MOVES.tolist()}
            new = {each for each in around if not walls[each]} - found
            found, edge = found | new, [*edge, *new]
    return found


def test_a_move_goes_to_any_of_8_neighbours_and_a_wall_stops_it(room: Gridworlds) -> None:
    for move, square in [("SE", (2, 2)), ("NW", (1, 1)), ("N", (1, 1)), ("E", (1, 2)), ("SW", (2, 1)), ("NE", (1, 2))]:
        after(room, move)
        assert tuple(room.at[0]) == square, move


@pytest.mark.parametrize(
    ("moves", "ends"),
    [
        (["S", "S"], (False, True, False)),
        (["SE", "NE"], (True, True, False)),
        (["N", "N"], (False, False, False)),
        (["N", "N", "N"], (False, False, True)),
        (["N", "E", "E"], (True, True, False)),
    ],
)
def test_an_episode_ends_on_any_object_with_a_reward_for_the_target_or_at_the_limit(
    room: Gridworlds, moves: list[str], ends: tuple[bool, bool, bool]
) -> None:
    assert after(room, *moves) == ends


def test_the_view_is_centred_on_the_agent_and_has_the_cue(room: Gridworlds) -> None:
    seen = room.observe()[0]
    walls = ["       ", "       ", "  #####", "  #   #", "  #   #", "  #   #", "  #####"]
    is_wall = np.array([list(line) for line in walls]) == "#"
    if not room.size.planes:
        squares = seen.reshape(7, 9, 7, 9, 3).swapaxes(1, 2)
        assert (squares[is_wall] == 40).all()
        assert (squares[3, 3] == 255).all(), "the agent"
        frame, triangle = shapes()[[1, 0]][..., None]
        assert (squares[3, 5] == np.where(frame, (255, 0, 0), 0)).all()
        assert (squares[5, 3] == np.where(triangle, (0, 255, 0), 0)).all()
        assert (squares[0, 0] == np.where(frame, (255, 0, 0), 180)).all(), "the cue"
        shown = squares.any(axis=(2, 3, 4))
        assert (shown == is_wall | np.isin(np.arange(49).reshape(7, 7), [0, 3 * 7 + 3, 3 * 7 + 5, 5 * 7 + 3])).all()
        assert room.picture(0).shape == (45, 45, 3)
        return
    wall, red, green, triangle, frame, *cue = np.moveaxis(seen, -1, 0)
    assert (wall == is_wall).all()
    assert [[tuple(at) for at in np.argwhere(plane).tolist()] for plane in (red, green, triangle, frame)] == [
        *([(3, 5)], [(5, 3)], [(5, 3)], [(3, 5)])
    ]
    assert [np.unique(plane).tolist() for plane in cue] == [[1], [0], [0], [1]]


@pytest.mark.parametrize(("env_id", "shape"), [("zipf/Gridworld", (63, 63, 3)), ("zipf/Gridworld-small", (7, 7, 25))])
def test_policies_read_pictures_and_an_episode_names_its_map_and_object(env_id: str, shape: tuple[int, ...]) -> None:
    infos = set[str]()
    with session(env_id, {}) as envs:
        obs: Any = envs.env.spec.obs
        assert (obs.shape, obs.image_size) == (shape, shape[:2])
        assert Reading.of(obs, NetConfig()) == (True, 1.0 if SIZES[env_id].planes else 1 / 255)
        envs.reset()
        for _ in range(150):
            envs.step(envs.draw())
            infos |= {name for episode in envs.episodes for name in episode[2]}
    assert infos == {"map", "object", "is_success"}
