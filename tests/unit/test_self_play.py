"""Two sides in an environment: which rows are learned from, who acts for the others, and who wins."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.build.batches import VECTORS
from tests.build.brokers import ECHO_ENV, EchoAlgorithm, ask, serving
from tests.build.errors import refuses
from zerobeast.common.config.relations import find_broken_relations
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.settings.evaluate import EvaluateConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, act_record, step_record
from zerobeast.common.wire.episodes import MAX_NAMES, Episode, are_infos
from zerobeast.playing.play import count_agents
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.acting.opponents import MAX_PAST_VERSIONS, RENEW_S, Games, Opponents
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.checkpoint import CHECKPOINT_FORMAT
from zerobeast.services.actor.sides import Sides

STACKED = EnvSpec("Frames-v0", ArraySpace.box((2, 2), "|u1"), ArraySpace.discrete(6), frame_stack=3)


def make(env: EnvSpec = ECHO_ENV, max_rows: int = 8) -> Inference:
    return serving(EchoAlgorithm(env), max_rows)


def infer(inference: Inference, slots: list[int], **fields: object) -> Any:
    """Fill the batch with rows, compute them, and return the act records."""
    rows = np.zeros(len(slots), step_record(inference.algorithm.env).dtype)
    for name, values in fields.items():
        rows[name] = values
    return ask(inference, rows, slots)


def env(agents: int = 2, opponent: str = "past", opponents: Any = ()) -> EnvConfig:
    return EnvConfig(id="x", agents=agents, opponent=opponent, opponents=opponents)


def test_the_other_side_is_half_of_the_agents_or_those_named() -> None:
    for config, opposed in (
        (env(2, opponents="0"), [1, 0, 1, 0]),
        (env(4), [0, 0, 1, 1, 1, 1, 0, 0]),
        (env(3), [0, 0, 1, 1, 1, 0]),
        (env(3, opponents=[0, 2]), [1, 0, 1]),
    ):
        found = config.opponent_rows(len(opposed))
        assert found is not None
        assert found.astype(int).tolist() == opposed
    assert env(opponent="").opponent_rows(4) is None
    seats = [env(2).opponent_rows(2, group) for group in range(3)]
    assert [each.tolist() for each in seats if each is not None] == [[False, True], [True, False], [False, True]]


def test_sides_that_there_cannot_be_are_refused() -> None:
    for config, rows, path in (
        (env(0), 2, "env.opponent"),
        (env(2, opponents="2"), 2, "env.opponents"),
        (env(2, opponents="0,1"), 2, "env.opponents"),
        (env(2), 3, "env.agents"),
    ):
        with refuses(path):
            config.opponent_rows(rows)
    past = RunConfig.model_validate({"env": {"opponent": "past"}, "deterministic": True})
    found = {relation.paths for relation in find_broken_relations(past, None)}
    assert found >= {("learner.checkpoint_every_steps", "env.opponent"), ("env.opponent", "deterministic")}
    (relation,) = find_broken_relations(RunConfig.model_validate({"env": {"opponents": "0"}}), None)
    assert relation.paths == ("env.opponents", "env.opponent")


class Seats:
    """The sides of an actor, of whose environments new episodes have begun."""

    def __init__(self, config: EnvConfig, count: int) -> None:
        opposed = config.opponent_rows(count)
        assert opposed is not None
        self.sides, self.rows = Sides(opposed, config), np.zeros(count, step_record(ECHO_ENV).dtype)
        assert self.judged(first=True) == []
        self.rows["first"] = False

    def judged(self, *ended: Episode, **changes: Any) -> list[Episode]:
        """What is reported of rows in which this is different from the ones before."""
        for name, values in changes.items():
            self.rows[name] = values
        return self.sides.judge_ends(self.rows, ended)


def test_agents_that_have_left_still_count_for_their_side_until_the_game_is_over() -> None:
    seats = Seats(env(3, opponents="1,2"), 3)
    assert seats.judged(Episode(5.0, 1, {}), reward=[0, 5, 0], terminated=[False, True, False]) == []
    many = {f"x{number}": 1.0 for number in range(MAX_NAMES)}
    over = {"first": [False, True, False], "reward": [1, 0, 0], "terminated": [True, False, False]}
    (episode,) = seats.judged(Episode(1.0, 2, many), **over)
    assert episode.infos["win"] == 0.0
    assert are_infos(episode.infos)


def test_an_episode_reports_who_has_won_against_whom() -> None:
    seats = Seats(env(), 4)
    seats.sides.face([500, 0])
    assert seats.judged(reward=[1, 2, 3, 3]) == []
    ended = tuple(Episode(float(number), 2, {"x": 1.0}) for number in (1, 0, 3, 3))
    assert seats.judged(*ended, terminated=True, reward=[0, -2, 0, 0]) == [
        Episode(1.0, 2, {"x": 1.0, "win": 1.0, "opponent": 500.0, "win.quarter4": 1.0}),
        Episode(3.0, 2, {"x": 1.0, "win": 0.5}),
    ]
    assert seats.judged(*ended[:3]) == [], "an env-server that reports others"


@pytest.mark.parametrize(("episodes", "opponents", "expected"), [(1, "", 4), (10, "", 8), (100, "", 16), (10, "1", 10)])
def test_both_seats_play_as_many_games_of_an_evaluation(episodes: int, opponents: str, expected: int) -> None:
    config = RunConfig(env=env(opponents=opponents), evaluate=EvaluateConfig(episodes=episodes))
    assert count_agents(config, opposed=True) == expected
    assert count_agents(config, opposed=False) == max(1, min(episodes, 16) // 2) * 2
    opposed = config.env.opponent_rows(expected)
    assert opposed is not None
    assert opponents or opposed.reshape(-1, 2).sum(0).tolist() == [expected / 4] * 2


@pytest.mark.parametrize(
    ("faced", "infos"),
    [
        ([[600, 0], [600, 0]], {"win": 1.0, "opponent": 600.0, "win.quarter3": 1.0}),
        ([[600, 0], [7, 0], [600, 0]], {}),
        *(([*before, [600, last]], {}) for before, last in (([None], 0), ([], -1))),
        ([[600]], {}),
    ],
)
def test_a_game_counts_if_one_opponent_played_all_of_it(faced: list[Any], infos: dict[str, float]) -> None:
    seats = Seats(env(), 4)
    seats.sides.face([1000, 1000])
    seats.judged(first=True)
    seats.rows["first"] = False
    for versions in faced:
        seats.sides.face(versions)
        assert seats.judged(reward=[1, 0, 0, 0]) == []
    assert seats.judged(*(Episode(1.0, 2),) * 4, terminated=True)[0].infos == infos


@pytest.mark.parametrize("spec", [ECHO_ENV, STACKED])
def test_each_row_is_acted_for_by_the_network_of_its_side(spec: Any) -> None:
    plain, mixed = make(spec), make(spec)
    mixed.oppose(1, Path(), mixed.algorithm.network().state_dict() | {"weight": torch.tensor([7.0])}, greedy=False)
    for step in range(4):
        obs = np.arange(4).reshape(4, *[1] * len(spec.obs.shape)) + step
        mixed.batch.sides[:4] = [0, 1, 1, 0]
        given = {"obs": obs, "reward": step, "first": [not step, not step, step == 2, not step]}
        expected, acts = infer(plain, [2, 0, 3, 1], **given), infer(mixed, [2, 0, 3, 1], **given)
        assert acts["value"].tolist() == [0, 7, 7, 0]
        for name in ("action", "logits"):
            assert acts[name].tolist() == expected[name].tolist(), "what is kept of each row is its own"
        assert mixed.cores[:4].tolist() == plain.cores[:4].tolist()


@pytest.mark.parametrize(("algo", "actions", "varies"), [("r2d2", "sampled", False), ("ppo", "greedy", True)])
def test_an_opponent_draws_actions_unless_it_explores(tmp_path: Path, algo: str, actions: str, *, varies: bool) -> None:
    config = settings(tmp_path, "other", algo=algo, evaluate={"actions": actions})
    algorithm = make_algorithm(config, VECTORS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").touch()
    checkpoint(tmp_path / "other" / "checkpoint.pt", 3, model=algorithm.network().state_dict(), env=VECTORS.to_wire())
    policy = serving(algorithm, 64)
    policy.reserve(64 * 8)
    policy.batch.sides[:] = Opponents(config, policy, 0.0).draw()
    policy.batch.slots[:] = np.arange(64) * 8  # of R2D2's ladder the first place, which explores most
    policy.submit(64, with_cores=False)
    acts = policy.acts.view(act_record(VECTORS, algorithm.policy).dtype)["action"]
    assert (len(np.unique(acts)) > 1) == varies


def checkpoint(path: Path, steps: int, **changed: Any) -> None:
    """A checkpoint of a network that has this number as its weight."""
    path.parent.mkdir(parents=True, exist_ok=True)
    net = EchoAlgorithm().network()
    empty: dict[str, Any] = {name: {} for name in ("learning", "config", "policy", "rng", "statistics", "rollouts")}
    state = {"format": CHECKPOINT_FORMAT, "model": net.state_dict() | {"weight": torch.full((1,), float(steps))}}
    state |= {"counters": {"agent_steps": steps}, "env": ECHO_ENV.to_wire(), **empty, **changed}
    torch.save(state, path)


def settings(root: Path, opponent: str, **more: Any) -> RunConfig:
    given = {"name": "run", "root": str(root), "env": {"opponent": opponent, "agents": 2}, **more}
    return RunConfig.model_validate(given)


def test_past_versions_replace_each_other_once_no_game_needs_them(tmp_path: Path) -> None:
    opponents, now, game = Opponents(settings(tmp_path, "past"), make(), 0.0), 0.0, Games(np.array([False, True]), 2)
    opponents.renew(now, [game])
    assert game.begin(np.ones(2), opponents).tolist() == [0, 0], "there is none: the newest policy acts"
    for steps in range(1, MAX_PAST_VERSIONS + 2):
        checkpoint(tmp_path / "run" / "checkpoints" / f"{steps}.pt", steps)
    for _ in range(MAX_PAST_VERSIONS + 1):
        opponents.renew(now, [game])
        now += RENEW_S + 1
    assert len(opponents.steps) == MAX_PAST_VERSIONS + 1
    seen = set()
    for _ in range(30):
        versions = {*opponents.steps.values()} - {0}
        mine, theirs = game.begin(np.ones(2), opponents).tolist()
        assert (mine, opponents.steps[theirs] in versions) == (0, True)
        before = opponents.steps[theirs]
        for _ in range(3):
            opponents.renew(now, [game])
            now += RENEW_S + 1
        assert opponents.steps[theirs] == before, "this game is played against it"
        assert game.begin(np.array([1, 0]), opponents).tolist() == [0, theirs], "not all agents begin anew"
        seen.add(before)
    assert seen == set(range(1, MAX_PAST_VERSIONS + 2))


def test_a_past_version_that_cannot_be_read_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opponents = Opponents(settings(tmp_path, "past"), make(), 0.0)
    assert "no run in" in caplog.text
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "5.pt").write_bytes(b"damaged")
    for now in range(3):
        opponents.renew(now, [])
    assert caplog.text.count("no opponent from 5 agent steps") == 1
    (tmp_path / "run" / "config.yaml").touch()
    caplog.clear()
    Opponents(settings(tmp_path, "past"), make(), 0.0)
    assert not caplog.text


def test_a_saved_run_is_the_opponent_if_it_fits(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").touch()
    policy, saved = make(), tmp_path / "other" / "checkpoint.pt"

    def opponents(name: str = "other") -> Opponents:
        return Opponents(settings(tmp_path, name), policy, 0.0)

    with refuses("env.opponent", value="other"):
        opponents()
    checkpoint(saved, 3)
    found = opponents()
    assert found.steps[found.draw()] == 3
    policy.batch.sides[0] = found.draw()
    assert infer(policy, [0], obs=0)["value"].tolist() == [3.0]
    with refuses("run", value="other:7"):
        opponents("other:7")
    changes: list[dict[str, Any]] = [{"env": STACKED.to_wire()}, {"model": {"weight": torch.zeros(2)}}]
    for changed in changes:
        checkpoint(saved, 3, **changed)
        with pytest.raises(ConfigError):
            opponents()
