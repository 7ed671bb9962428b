"""The contract of a backend of environments: what a session with environments of an id does.

    import pytest
    from zerobeast.testing import backend

    @pytest.mark.parametrize("rule", backend.RULES, ids=str)
    def test_contract(rule):
        rule("my_package/Game-v0", kwargs={"size": 5})

Settings beside the id are those of `env`. Episodes of some tens of steps keep it fast.
"""

from contextlib import suppress
from typing import Any
from unittest import SkipTest

import numpy as np

from zerobeast.common.errors import EnvError
from zerobeast.common.wire import EnvSpec, step_record
from zerobeast.common.wire.checks import find_flaw, find_forbidden, find_illegal
from zerobeast.common.wire.episodes import ends_of, read_lost
from zerobeast.services.envserver.backend import backend_of
from zerobeast.services.envserver.padding import refuse_unlike
from zerobeast.testing.rules import rule, rules_in
from zerobeast.testing.sessions import (
    ENVS,
    NUM_BESIDE,
    SEED,
    STEPS,
    SecondFails,
    Session,
    check_same,
    check_same_but_padding,
    count_resources,
    expect_refusal,
    larger_sizes,
    open_independent,
    session,
)


@rule
def rows_have_the_described_layout(env_id: str, **env: Any) -> None:
    """Peers read the bytes of rows by the description alone, which is that of every environment of a session."""
    with session(env_id, env) as several, session(env_id, env, envs=1) as one:
        spec = several.env.spec
        assert spec == EnvSpec.from_wire(spec.to_wire()), "the description changes on its way to a peer"
        assert spec == one.env.spec, "one environment is described in another way than several"
        assert several.env.rows.dtype == step_record(spec).dtype, f"rows are {several.env.rows.dtype}"
        assert several.env.rows.shape == (ENVS * several.block,), f"there are {several.env.rows.shape} rows"


@rule
def values_are_numbers_of_their_spaces(env_id: str, **env: Any) -> None:
    """One value that is not finite, or a choice out of range, spoils the weights for every environment."""
    with session(env_id, env) as played:
        for rows in (played.reset(), *played.play(ends=2)):
            assert (sentence := find_flaw(rows)) is None, sentence
            assert (sentence := find_illegal("obs", rows["obs"], played.env.spec.obs)) is None, sentence


@rule
def a_reset_begins_episodes(env_id: str, **env: Any) -> None:
    """The first row of an episode answers no action: it has no reward and ends nothing."""
    with session(env_id, env) as played:
        for _ in range(2):
            rows = played.reset()
            assert rows["first"].all(), "a row after a reset is not first"
            assert not any(rows[name].any() for name in ("reward", "terminated", "truncated")), (
                "a first row has a reward or an end"
            )
            assert played.episodes == [], "a reset reports episodes"
            assert len(list(played.play(2))) == 2


@rule
def the_row_after_an_end_is_first(env_id: str, **env: Any) -> None:
    """Learners take the row after an episode's last for the first observation of the next, whose reward is 0."""
    with session(env_id, env) as played:
        over = np.zeros(len(played.reset()), np.bool_)
        for rows in played.play(ends=4):
            assert rows["first"][over].all(), "the row after an end is not first"
            away = ~over & rows["first"]
            assert played.block > 1 or not away.any(), "a row is first in the middle of an episode"
            over = rows["terminated"] | rows["truncated"]
            assert not (over & rows["first"]).any(), "a first row ends an episode"
            assert not rows["reward"][rows["first"]].any(), "a first row has a reward"


@rule
def the_action_after_an_end_is_ignored(env_id: str, **env: Any) -> None:
    """The policy answers a last observation too, and its answer must change nothing."""
    with session(env_id, env) as one, session(env_id, env) as other:
        over = np.zeros(len(one.reset()), np.bool_)
        other.reset()
        count = ends = 0
        while count < STEPS or (ends < 4 * ENVS and count < 4 * STEPS):
            actions = one.draw()
            different = actions.copy()
            if one.block == 1:  # of several agents, one that is away may be waited for
                different[over] = np.roll(actions, 1, 0)[over]
            rows = one.step(actions)
            check_same(rows, other.step(different), "an action after an end")
            over = rows["terminated"] | rows["truncated"]
            count, ends = count + 1, ends + int(over.sum())


@rule
def returns_and_lengths_are_those_of_the_rows(env_id: str, **env: Any) -> None:
    """What is reported of an episode is its sum of rewards and its number of actions, whatever came before."""
    wrong: list[Any] = []
    with session(env_id, env) as played:
        for _ in range(2):  # the second reset cuts episodes off
            total, length = np.zeros((2, len(played.reset())))
            for rows in played.play(ends=3):
                total, length = total + rows["reward"], length + ~rows["first"]
                over = np.flatnonzero(rows["terminated"] | rows["truncated"])
                found = ends_of(played.episodes, wrong.append)
                assert not wrong, wrong[0]
                assert len(found) == len(over), f"{len(over)} rows end episodes, {len(found)} are reported"
                for row, episode in zip(over, found, strict=True):
                    if episode:  # of a whole one, and not of a lost life
                        assert np.isclose(episode.value, total[row], rtol=1e-4), f"{episode.value} is not {total[row]}"
                        assert episode.length == length[row], f"{episode.length} steps are not {length[row]:g}"
                        total[row] = length[row] = 0


@rule
def the_same_seed_gives_the_same_episodes(env_id: str, **env: Any) -> None:
    """A run can be repeated, and two algorithms compared in the same episodes."""
    with session(env_id, env) as one, session(env_id, env) as other:
        check_same(one.reset(), other.reset(), "the same seed")
        for rows, others in zip(one.play(ends=2), other.play(ends=2), strict=True):
            check_same(rows, others, "the same seed")


@rule
def a_later_seed_begins_again(env_id: str, **env: Any) -> None:
    """A reset with a seed begins the episodes that a new session of that seed has, whatever was played before."""
    other = {"seed": SEED + 100}
    with session(env_id, env) as new, session(env_id, env, **other) as late, session(env_id, env, **other) as first:
        begun, _ = new.reset(), late.reset()
        assert len([late.step() for _ in range(5)]) == 5
        check_same(begun, late.reset(SEED), "a later reset with a seed")
        check_same(begun, first.reset(SEED), "a first reset with a seed")
        for _ in range(STEPS):
            actions = new.draw()
            rows = new.step(actions)
            for each in (late, first):
                check_same(rows, each.step(actions), "a reset with a seed")


@rule
def environments_have_consecutive_seeds(env_id: str, **env: Any) -> None:
    """Environment i has seed + i, so that no two play the same, and how many a session has changes none of them."""
    with open_independent(env_id, env) as several, open_independent(env_id, env, envs=1, seed=SEED + 1) as one:
        part = several.part(1)
        check_same(several.reset()[part], one.reset(), "seed + 1")
        for _ in range(STEPS):
            actions = several.draw()
            check_same(several.step(actions)[part], one.step(actions[part]), "seed + 1")


@rule
def a_reset_of_some_leaves_the_others(env_id: str, **env: Any) -> None:
    """Clients reset each environment when its own episode has ended, while others play on."""
    with open_independent(env_id, env, envs=NUM_BESIDE) as one, open_independent(env_id, env, envs=NUM_BESIDE) as other:
        chosen = np.arange(NUM_BESIDE) == 1
        for each in (one, other):
            each.reset()
        for count in range(STEPS):
            if count % 8 == 5:
                before, rows = one.env.rows.copy(), one.reset(only=chosen)
                assert rows["first"][chosen].all(), "what was reset has no first row"
                check_same(one.env.rows[~chosen], before[~chosen], "a reset of others")
            actions = one.draw()
            check_same(one.step(actions)[~chosen], other.step(actions)[~chosen], "a reset of others")


@rule
def an_action_is_always_legal(env_id: str, **env: Any) -> None:
    """A policy has to answer each row, so that of each component one choice at least is legal."""
    with session(env_id, env, envs=1) as played:
        for rows in (played.reset(), *played.play(ends=2)) if played.env.spec.action_mask else ():
            sentence = find_forbidden(rows["action_mask"], played.env.spec.action)
            assert sentence is None, f"a mask {sentence}"


@rule
def infos_have_an_entry_for_each_row(env_id: str, **env: Any) -> None:
    """Clients look up the info of row i in entry i of each array, if the mask of its name is true there."""
    with session(env_id, env) as played:
        for rows in (played.reset(), *played.play(ends=2)):
            for name, values in played.infos():
                assert len(values) == len(rows), f"info {name!r} has {len(values)} entries"
                assert name[0] != "_" or values.dtype == np.bool_, f"{name} is no mask"


@rule
def options_reach_a_reset_or_are_refused(env_id: str, **env: Any) -> None:
    """Whoever sets `env.options` or gives options to a reset must not train without them in silence."""
    with session(env_id, env, envs=1) as played:
        played.reset()
        if played.env.takes_options:
            assert played.reset(options={})["first"].all(), "a row after a reset with options is not first"
            return
    with suppress(EnvError), session(env_id, {**env, "options": {"level": 1}}, envs=1) as played:
        assert played.env.takes_options, "options of a session are accepted by environments that take none"


@rule
def a_strange_id_is_refused(env_id: str, **env: Any) -> None:
    """A slip in an id must not train in another environment."""
    with expect_refusal(f"the id {env_id}-x"), session(f"{env_id}-x", env):
        pass


@rule
def a_strange_argument_is_refused(env_id: str, **env: Any) -> None:
    """A slip in the name of an argument must not train in another environment than is meant."""
    given = {**env.get("kwargs", {}), "no_such_argument": 1}
    with expect_refusal("no_such_argument"), session(env_id, {**env, "kwargs": given}):
        pass


@rule
def one_that_raises_costs_its_own_episode_alone(env_id: str, **env: Any) -> None:
    """An environment that fails is made anew and counted, and its neighbours do not notice."""
    watch, alike = SecondFails(), {"envs": NUM_BESIDE, "masks": False}
    with suppress(SkipTest), open_independent(env_id, env, envs=1):
        alike["masks"] = True
    with session(env_id, env, watch=watch, **alike) as failing:
        if not watch.made:
            raise SkipTest("they step together")
        with session(env_id, env, **alike) as sound:
            part = failing.part(1)
            others = np.delete(np.arange(NUM_BESIDE * failing.block), part)
            failing.reset()
            sound.reset()
            for count in range(10):
                actions, own = sound.draw(), failing.draw()
                own[others] = actions[others]
                rows, lost = failing.step(own), read_lost(failing.episodes)
                check_same(rows[others], sound.step(actions)[others], "the failure of another")
                assert bool(lost) == (count == watch.AT), f"{len(lost)} episodes are lost in step {count}"
                assert {one.row for one in lost} <= {*range(part.start, part.stop)}, "another's episode is lost"
                assert count != watch.AT or rows["first"][part].all(), "a new episode has no first row"
        assert failing.env.errors == 1, f"{failing.env.errors} failures are counted"


@rule
def padded_rows_are_those_without_padding_and_zeros(env_id: str, **env: Any) -> None:
    """Environments of several sizes share a policy, so that padding adds zeros and forbids what it adds."""
    with session(env_id, env) as plain, session(env_id, env | larger_sizes(plain.env.spec, env)) as padded:
        for begin in (Session.reset, *[Session.step] * STEPS):
            given = (plain.draw(),) if begin is Session.step else ()
            check_same_but_padding(begin(padded, *given), begin(plain, *given))
            assert padded.episodes == plain.episodes, "padding changes episodes"


@rule
def worker_processes_give_the_same_rows(env_id: str, **env: Any) -> None:
    """What steps in processes of its own, so that a crash costs little, plays as it does in this one."""
    with session(env_id, env, apart=True) as apart:
        if apart.env.inline:
            raise SkipTest("it steps in this process alone")
        with session(env_id, env) as here:
            assert apart.env.spec == here.env.spec, "they are described in another way"
            check_same(apart.reset(), here.reset(), "another process")
            for _ in range(STEPS):
                actions = here.draw()
                check_same(apart.step(actions), here.step(actions), "another process")
                assert apart.episodes == here.episodes, "another process changes episodes"


@rule
def levels_are_alike(env_id: str, **env: Any) -> None:
    """A policy that was trained in one level is evaluated in each, of which its own is one."""
    backend = backend_of(env_id)
    levels = backend.levels(env_id) if backend else {}
    if not levels:
        raise SkipTest("it has no levels")
    assert env_id in levels.values(), f"{env_id} is none of its own levels"
    with session(env_id, env, envs=1) as own:
        for level in levels.values():
            with session(level, env, envs=1) as other:
                refuse_unlike(own.env.spec, other.env.spec)


@rule
def closing_leaves_nothing_behind(env_id: str, **env: Any) -> None:
    """An env-server serves many sessions, each of which must give back its processes and its files."""
    found = list[tuple[int, int]]()
    for count in range(3):
        with session(env_id, env, envs=1) as played:
            played.reset()
            played.step()
        del played
        if count:  # what a package opens once it may keep
            found.append(count_resources())
    (processes, files), (more_processes, more_files) = found
    assert more_processes <= processes, f"{more_processes - processes} processes are left"
    assert more_files <= files, f"{more_files - files} files are left open"


RULES = rules_in(globals())
