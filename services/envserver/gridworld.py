"""Zipf's Gridworld (Chan et al. 2022, "Zipfian environments for reinforcement learning", arXiv:2203.08222) as arrays.

An agent looks for the object that its cue shows, in one of some maps of rooms with doors. Which map and which of its
objects follows a power law: few are frequent and most are rare. The maps are the same for everybody.

    worlds = Gridworlds(size, "zipf", exponent=2.0, num_envs=8)
    worlds.seed(range(8))
    worlds.begin(np.arange(8))                          # new episodes
    reward, terminated, truncated = worlds.step(actions)
    obs = worlds.observe()
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from zerobeast.services.envserver.odds import odds

Array = NDArray[np.int64]
Picture = NDArray[np.uint8]

ROOM = 3  #: squares a side
VIEW = 7  #: squares a side of the view of an agent, itself in the middle
PIXELS = 9  #: of a square, a side
MAP_SEED = 1234  #: of the first map; map i has this seed + i
MOVES = np.array([(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)])
DIRECTIONS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")  #: of these moves
NO_OBJECT = -1

WALL, CUE_GROUND, AGENT = 40, 180, 255  #: greys
COLOURS = np.array(
    [
        *[(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 64, 255), (255, 165, 0)],
        *[(128, 0, 128), (128, 64, 0), (0, 100, 100), (100, 0, 0), (0, 100, 0), (0, 0, 100), (215, 200, 255)],
        (255, 205, 230),
    ],
    np.uint8,
)


class Size(NamedTuple):
    """One size of the task."""

    maps: int
    rooms: int  #: a side
    objects: int  #: of each map, no two alike
    looks: int  #: colours, and as many shapes, of which objects are made
    limit: int  #: steps after which an episode is truncated
    planes: bool  #: whether observations are planes of 0 and 1, not pixels

    @property
    def side(self) -> int:
        """Squares of a map, a side, walls included."""
        return self.rooms * (ROOM + 1) + 1


class Maps(NamedTuple):
    """All maps of a size, S squares a side."""

    walls: NDArray[np.bool_]  #: [maps, S, S]
    objects: Array  #: [maps, S, S] the number of the object in a square, or NO_OBJECT
    looks: Array  #: [maps, objects, 2] colour and shape of each object
    starts: Array  #: [maps, *, 2] the free squares, of which a map has `num_starts`
    num_starts: Array  #: [maps]


class Tiles(NamedTuple):
    """What a view has of a square, p x p numbers in C channels, and of the cue."""

    wall: Picture  #: [p, p, C]
    objects: Picture  #: [maps, objects, p, p, C]
    cues: Picture  #: [maps, objects, p, p, C], or the last channels of them


class Gridworlds:
    """N agents, each in a map of its own, with a generator of its own.

    Args:
      size: of the task.
      level: how maps and objects are drawn: `zipf`, `uniform`, or `rare`, uniformly among the rarest of both.
      exponent: of Zipf's law; 0: uniformly.
      num_envs: N.

    Attributes:
      map: [N] number of the map, by frequency.
      target: [N] number of the object that the cue shows, likewise.
    """

    def __init__(self, size: Size, level: str, exponent: float, num_envs: int) -> None:
        self.size, self._maps = size, maps_of(size)
        self._map_odds = np.cumsum(odds(size.maps, level, exponent))
        self._target_odds = np.cumsum(odds(size.objects, level, exponent))
        self._generators = [np.random.default_rng() for _ in range(num_envs)]
        self.map, self.target, self._steps = (np.zeros(num_envs, np.int64) for _ in range(3))
        self.at = np.zeros((num_envs, 2), np.int64)

    def seed(self, seeds: Iterable[int | None]) -> None:
        """Seed the generator of each agent, unless its seed is None."""
        for i, seed in enumerate(seeds):
            if seed is not None:
                self._generators[i] = np.random.default_rng(seed)

    def begin(self, envs: Array) -> None:
        """Begin episodes of the agents `envs`, each in a free square."""
        if not envs.size:
            return
        draws = np.array([self._generators[i].random(3) for i in envs.tolist()])
        maps = _draw_ranks(self._map_odds, draws[:, 0])
        self.map[envs], self.target[envs] = maps, _draw_ranks(self._target_odds, draws[:, 1])
        self.at[envs] = self._maps.starts[maps, (draws[:, 2] * self._maps.num_starts[maps]).astype(np.int64)]
        self._steps[envs] = 0

    def step(self, actions: NDArray[np.integer]) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Move all agents, which stay if there is a wall. Stepping on any object ends an episode.

        Args:
          actions: [N] numbers of moves.

        Returns:
          [N] each: the reward (whether the object is the target), terminated, truncated.
        """
        ahead = self.at + MOVES[actions]
        blocked = self._maps.walls[self.map, ahead[:, 0], ahead[:, 1]]
        self.at = np.where(blocked[:, None], self.at, ahead)
        self._steps += 1
        found = self._maps.objects[self.map, self.at[:, 0], self.at[:, 1]]
        terminated = found != NO_OBJECT
        return found == self.target, terminated, ~terminated & (self._steps >= self.size.limit)

    def outcome(self, reward: NDArray[np.bool_]) -> dict[str, Array]:
        """The infos of episodes that end with this reward, [N] each."""
        return {"map": self.map.copy(), "object": self.target.copy(), "is_success": reward.astype(np.int64)}

    def observe(self) -> Picture:
        """The observations: [N, 63, 63, 3] pixels, or [N, 7, 7, planes]."""
        seen: Picture = views_of(self.size)[self.map, self.at[:, 0], self.at[:, 1]]
        cues = tiles_of(self.size, planes=self.size.planes).cues[self.map, self.target]
        if self.size.planes:
            seen[..., -cues.shape[-1] :] = cues
        else:
            middle = slice(VIEW // 2 * PIXELS, (VIEW // 2 + 1) * PIXELS)
            seen[:, middle, middle] = AGENT
            seen[:, :PIXELS, :PIXELS] = cues
        return seen

    def picture(self, env: int) -> Picture:
        """The whole map of an agent in pixels, with the cue in a corner of the walls."""
        tiles, number = tiles_of(self.size, planes=False), self.map[env]
        squares = _squares(self._maps.walls[number], self._maps.objects[number], tiles.wall, tiles.objects[number])
        squares[tuple(self.at[env])] = AGENT
        squares[0, 0] = tiles.cues[number, self.target[env]]
        return _join_squares(squares)


def _draw_ranks(cumulated: NDArray[np.float64], uniform: NDArray[np.float64]) -> Array:
    """The ranks that numbers from 0 to 1 stand for."""
    return np.minimum(np.searchsorted(cumulated, uniform, side="right"), len(cumulated) - 1)


@lru_cache
def maps_of(size: Size) -> Maps:
    """The maps of a size, each from a seed of its own.

    The description is that of the paper; the generators' draws, and so the maps, are not those of its code.
    """
    walls, objects, looks = map(np.array, zip(*(_map(size, MAP_SEED + i) for i in range(size.maps)), strict=True))
    free = [np.argwhere(~wall & (held == NO_OBJECT)) for wall, held in zip(walls, objects, strict=True)]
    counts = [len(squares) for squares in free]
    starts = np.zeros((size.maps, max(counts), 2), np.int64)
    for into, squares in zip(starts, free, strict=True):
        into[: len(squares)] = squares
    return Maps(walls, objects, looks, starts, np.array(counts))


def _map(size: Size, seed: int) -> tuple[NDArray[np.bool_], Array, Array]:
    """The walls [S, S], objects [S, S] and looks [objects, 2] of a map.

    Objects lie against the walls of the rooms, but not beside a door, so that none blocks a way.
    """
    generator, pitch = np.random.default_rng(seed), ROOM + 1
    lines = np.arange(size.side) % pitch == 0
    walls = lines[:, None] | lines
    doors = [_door(pair, generator) for pair in _doorways(size.rooms, generator)]
    for door in doors:
        walls[door] = False
    beside = {(y + dy, x + dx) for y, x in doors for dy, dx in MOVES[::2]}
    edge = {1, ROOM}
    places = [
        (y, x)
        for y, x in product(range(size.side), repeat=2)
        if not lines[y] and not lines[x] and {y % pitch, x % pitch} & edge and (y, x) not in beside
    ]
    objects = np.full(walls.shape, NO_OBJECT)
    for number, place in enumerate(generator.permutation(places)[: size.objects]):
        objects[tuple(place)] = number
    looks = generator.choice(size.looks**2, size.objects, replace=False)
    return walls, objects, np.stack(np.divmod(looks, size.looks), axis=1)


Room = tuple[int, int]
Pair = tuple[Room, Room]


def _doorways(rooms: int, generator: np.random.Generator) -> Sequence[Pair]:
    """Pairs of neighbouring rooms with a door: one for each room that has none yet, then until all are connected."""
    every = [(y, x) for y in range(rooms) for x in range(rooms)]
    pairs = [(a, b) for a, b in product(every, repeat=2) if abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 and a < b]
    doors: list[Pair] = []
    for room in every:
        if not any(room in pair for pair in doors):
            doors.append(_one_of([pair for pair in pairs if room in pair], generator))
    while len(connected := _reachable_rooms(every[0], doors)) < len(every):
        doors.append(_one_of([(a, b) for a, b in pairs if (a in connected) != (b in connected)], generator))
    return doors


def _one_of(pairs: Sequence[Pair], generator: np.random.Generator) -> Pair:
    return pairs[int(generator.integers(len(pairs)))]


def _reachable_rooms(room: Room, doors: Sequence[Pair]) -> set[Room]:
    """The rooms that can be reached from one."""
    reached: set[Room] = {room}
    for _ in doors:
        reached |= {each for pair in doors if reached & set(pair) for each in pair}
    return reached


def _door(pair: Pair, generator: np.random.Generator) -> tuple[int, int]:
    """A square of the wall between a room and the one below or to the right of it."""
    (y, x), (below, _) = pair
    along, pitch = int(generator.integers(1, ROOM + 1)), ROOM + 1
    return (below * pitch, x * pitch + along) if below > y else (y * pitch + along, (x + 1) * pitch)


@lru_cache
def views_of(size: Size) -> Picture:
    """[maps, S, S, *observation] what is seen from each square but for cue and agent: windows into pictures."""
    maps, tiles, margin = maps_of(size), tiles_of(size, planes=size.planes), VIEW // 2
    around = [(0, 0), (margin, margin), (margin, margin)]
    walls = np.pad(maps.walls, around)
    objects = np.pad(maps.objects, around, constant_values=NO_OBJECT)
    rows = zip(walls, objects, tiles.objects, strict=True)
    pictures = np.array([_join_squares(_squares(wall, held, tiles.wall, shown)) for wall, held, shown in rows])
    step, _, channels = tiles.wall.shape
    windows = sliding_window_view(pictures, (VIEW * step, VIEW * step, channels), axis=(1, 2, 3))
    return windows[:, ::step, ::step, 0]


def _squares(walls: NDArray[np.bool_], objects: Array, wall: Picture, shown: Picture) -> Picture:
    """[S, S, p, p, C] the squares of a map; `shown` [objects, p, p, C] are those of its objects."""
    squares = walls[:, :, None, None, None] * wall
    lying = objects != NO_OBJECT
    squares[lying] = shown[objects[lying]]
    return squares


def _join_squares(squares: Picture) -> Picture:
    """[S, S, p, p, C] -> [S * p, S * p, C]."""
    side, pixels, channels = squares.shape[1], squares.shape[2], squares.shape[4]
    return squares.swapaxes(1, 2).reshape(side * pixels, side * pixels, channels)


@lru_cache
def tiles_of(size: Size, *, planes: bool) -> Tiles:
    """How squares look in pixels, p = 9, or in planes, p = 1: wall, colours and shapes, then those of the cue."""
    colour, shape = np.moveaxis(maps_of(size).looks, -1, 0)
    if planes:
        one_hot = np.eye(size.looks, dtype=np.uint8)
        looks = np.concatenate([one_hot[colour], one_hot[shape]], axis=-1)[:, :, None, None]
        wall = np.eye(1, 1 + 2 * looks.shape[-1], dtype=np.uint8)[None]
        before, after = (np.zeros((*looks.shape[:-1], channels), np.uint8) for channels in (1, looks.shape[-1]))
        return Tiles(wall, np.concatenate([before, looks, after], axis=-1), looks)
    drawn, painted = shapes()[shape][..., None], COLOURS[colour][:, :, None, None]
    wall = np.full((PIXELS, PIXELS, 3), WALL, np.uint8)
    return Tiles(wall, drawn * painted, np.where(drawn, painted, np.uint8(CUE_GROUND)))


def shapes() -> NDArray[np.bool_]:
    """[15, 9, 9] the pixels of each shape."""
    half = PIXELS // 2
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    across, down = abs(x), abs(y)
    plus, cross, round_ = np.minimum(across, down) <= 1, abs(across - down) <= 1, x**2 + y**2 - half**2
    bar, sides = across <= 1, across >= 2
    return np.array(
        [
            *[2 * across <= y + half, np.maximum(across, down) >= 3, plus, ~plus, cross, ~cross],  # triangle, frame
            *[round_ <= 0, abs(round_) < 6, bar | (y <= -2), bar | (y >= 2)],  # disc, ring, tee, the same upside down
            *[sides | (down <= 1), sides | (y >= 2), sides | (y <= -2), x % 2 == 0, y % 2 == 0],  # H, U, arch, stripes
        ]
    )
