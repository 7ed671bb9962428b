"""How an algorithm learns: the rules of `zerobeast.rl.protocol.Learning`."""

import multiprocessing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from zerobeast.common.settings import spec_of
from zerobeast.common.wire import EnvSpec, iterate_arrays
from zerobeast.rl.ops import meeting, ranks
from zerobeast.rl.protocol import Learned
from zerobeast.services.actor.rollout import Rows
from zerobeast.services.learner.checkpoint import pack_state, unpack_state
from zerobeast.testing.rules import rule, rules_in
from zerobeast.testing.scenes import Scene
from zerobeast.testing.small_run import (
    B,
    Pays,
    SmallRun,
    Subject,
    T,
    are_same,
    copy_numbers,
    find_envs,
    first_env,
    is_refused,
    is_replaying,
    reference,
)
from zerobeast.testing.twins import end, twins

MOST_BATCHES = 60  #: in which one step has to be learned


@rule
def memory_works_or_is_refused(subject: Subject, **settings: Any) -> None:
    """An LSTM that is silently left out, or that learning ignores, is found only after long runs."""
    env = first_env(subject)
    if not spec_of(reference(subject)).settings.memory:
        assert is_refused(subject, env, settings, net={"core": "lstm"}), "its settings say that it has no memory"
        return
    with SmallRun(subject, env, settings, net={"core": "lstm"}) as run:
        scene = Scene.of(run.trainer.algorithm)
        assert scene.core.shape[1], "policy.core_size is 0"
        _, after = scene.act()
        assert not torch.equal(after, scene.core), "a step leaves the state as it was"
        before = run.learned_numbers()
        assert not are_same(run.learn_from(run.rollouts(4)), before), "nothing is learned"


@rule
def credit_never_changes(subject: Subject, **settings: Any) -> None:
    """Whether a batch is sent again after a crash depends on it, for all batches of a run alike."""
    with SmallRun(subject, first_env(subject), settings) as run:
        learning = run.trainer.learning
        found = [learning.credit]
        for rows in run.rollouts(3):
            run.add(rows)
            found.append(learning.credit)
            found += [learning.credit for _ in run.steps()]
        assert found[0] in ("after_step", "after_store"), f"{found[0]!r} is none"
        assert len(set(found)) == 1, f"it was {found}"


@rule
def steps_come_due_and_end(subject: Subject, **settings: Any) -> None:
    """While a step is due no batch is taken, and a learner that never takes one stops every actor."""
    with SmallRun(subject, first_env(subject), settings) as run:
        assert not run.trainer.learning.due, "a step is due before the first batch"
        stage, learned = run.stage(), list[list[Learned]]()
        while len(learned) < 4 or not any(each.steps for steps in learned for each in steps):
            assert len(learned) < 8, "eight batches, and nothing is learned"
            learned.append(run.feed(stage.rollout(run.trainer.net)))
        if run.trainer.learning.credit == "after_step":
            assert all(learned), "a batch that is acknowledged after its step needs one"


@rule
def void_transitions_are_not_learned_from(subject: Subject, **settings: Any) -> None:
    """From an episode's last observation the next one follows whatever was done: learned from, it is a lie."""

    def soil(batches: list[Rows]) -> None:
        for rows in batches:
            void = rows["first"][:, 1:]
            rows["reward"][:, 1:][void] += 9.0
            for space, taken in iterate_arrays(first_env(subject).action, rows["last_action"]):
                other = (taken + 1) % np.reshape(space.choices, space.shape) if space.choices else -taken
                taken[:, 1:][void] = other[:, 1:][void]

    clean, soiled = twins(subject, settings, lambda _: None, soil)
    assert are_same(clean, soiled), "it matters what was done, or paid, at the seam between two episodes"


@rule
def steps_beyond_the_budget_are_not_learned_from(subject: Subject, **settings: Any) -> None:
    """A run has exactly `total_steps`, whatever the size of its last batch."""
    last = 2 * T + 2  # steps of the last batch: two rollouts, and the beginning of a third

    def soil(batches: list[Rows]) -> None:
        batches[-1]["reward"][2, 3:] += 9.0
        for name in ("obs", "reward"):
            batches[-1][name][3] += 9.0

    clean, soiled = twins(subject, settings, lambda _: None, soil, total_steps=2 * B * T + last)
    assert is_replaying(subject) or are_same(clean, soiled), "the rest of the last batch matters"


@rule
def only_a_truncated_end_has_a_future(subject: Subject, **settings: Any) -> None:
    """A time limit says nothing about the value of a state, and an episode that is over has none."""
    cases = ((2, True, False), (2, False, True), (2, True, True), (T - 1, False, True))
    ends = [partial(end, at, died=died, cut=cut, shift=shift) for at, died, cut in cases for shift in (0.0, 1.0)]
    found = iter(twins(subject, settings, *ends, ends=0.0))
    for (at, died, cut), clean, changed in zip(cases, found, found, strict=True):
        what = f"terminated {died}, truncated {cut} after step {at} of {T}"
        apart = max(
            float((one.double() - two.double()).abs().max())
            for one, two in zip(clean, changed, strict=True)
            if one.numel()
        )
        assert (apart < 1e-5) == died, f"{what}: the final observation moves weights by {apart:.2g}"


@rule
def training_continues_bit_for_bit(subject: Subject, **settings: Any) -> None:
    """A run that was interrupted must not be told from one that was not."""
    nets: list[dict[str, Any]] = [{"normalize_obs": True}]
    if spec_of(reference(subject)).settings.memory:
        nets.append({"core": "lstm"})
    for net in nets:
        with TemporaryDirectory() as folder, SmallRun(subject, first_env(subject), settings, net=net) as whole:
            batches = whole.rollouts(5)
            whole.learn_from(batches[:3])
            state = unpack_state(pack_state(whole.trainer.state()))
            whole.copy_folder(Path(folder))
            with SmallRun(subject, first_env(subject), settings, Path(folder), net=net) as resumed:
                resumed.seq = whole.seq
                torch.rand(17)  # what a new process has drawn before must not matter
                resumed.trainer.load(Path(folder), state)
                assert not resumed.trainer.recover_rows(), "rows that the checkpoint has are found again"
                random = torch.get_rng_state()
                expected = whole.learn_from(batches[3:])
                torch.set_rng_state(random)
                assert are_same(resumed.learn_from(batches[3:]), expected), f"with {net} the rest is learned otherwise"
            assert are_same(*(copy_numbers(each.trainer.learning.state()) for each in (resumed, whole))), (
                "its own state is not the same afterwards"
            )


@rule
def stored_rows_outlive_the_process(subject: Subject, **settings: Any) -> None:
    """An acknowledged rollout is never sent again, so a learner that is killed must find it in its store."""
    with SmallRun(subject, first_env(subject), settings) as run:
        batches, origins = run.rollouts(3), list[Any]()
        for number, rows in enumerate(batches):
            if number == 2:
                state = unpack_state(pack_state(run.trainer.state()))
            origins.append(run.origins().tolist())
            run.feed(rows)
        stored = run.trainer.learning.credit == "after_store"
        with SmallRun(subject, first_env(subject), settings, run.root) as again:
            again.trainer.load(run.root, state)
            found = [list(origin) for origin in again.trainer.recover_rows()]
            assert found == (origins[2] if stored else []), "not the rows since the checkpoint"
            again.seq = run.seq
            again.feed(batches[2])


@rule
def the_memory_of_rollouts_may_be_used_again(subject: Subject, **settings: Any) -> None:
    """The learner receives the next rollouts where the last ones were, once it has acknowledged these."""
    found, played = [], list[Rows]()
    for rewritten in (False, True):
        with SmallRun(subject, first_env(subject), settings) as run:
            played = played or run.rollouts(5)
            for rows in played:
                mine = rows.copy()
                run.trainer.add(mine, None, run.origins())
                if rewritten and run.trainer.learning.credit == "after_store":
                    mine.view(np.uint8)[:] = 77
                list(run.steps())
                if rewritten:
                    mine.view(np.uint8)[:] = 77
            found.append(run.learned_numbers())
    assert are_same(*found), "rows are read after they were acknowledged"


@rule
def what_is_not_finite_is_skipped(subject: Subject, **settings: Any) -> None:
    """One broken reward must not destroy weights that took days; the run ends if it happens again and again."""
    with SmallRun(subject, first_env(subject), settings) as run:
        before, [rows] = run.policy(), run.rollouts(1)
        rows["reward"][:, 1:] = np.nan
        steps: list[Any] = []
        for _ in range(4):
            run.add(rows)
            while run.trainer.learning.due and len(steps) < 2:
                steps.append(run.trainer.learning.step(0))
            if steps:
                break
        assert steps, "no step is due"
        assert all(each.skipped and not each.steps and not each.changed for each in steps), f"{steps[0]}"
        assert are_same(run.policy(), before), "the weights have changed"


@rule
def changed_says_whether_the_policy_that_acts_has_changed(subject: Subject, **settings: Any) -> None:
    """Only what has changed is published, and whatever was published is what acts."""
    with SmallRun(subject, first_env(subject), settings) as run:
        told = []
        for rows in run.rollouts(6):
            run.add(rows)
            while run.trainer.learning.due:
                before = run.policy()
                told.append(run.trainer.step().changed)
                assert told[-1] != are_same(run.policy(), before), f"changed is {told[-1]}"
        assert any(told), "it never changes"


@rule
def metrics_keep_their_names(subject: Subject, **settings: Any) -> None:
    """They are columns of a table, whose header is written once."""
    with SmallRun(subject, first_env(subject), settings) as run:
        learned = [each for rows in run.rollouts(5) for each in run.feed(rows) if each.steps]
        for each in learned:
            assert each.metrics.keys() == learned[0].metrics.keys()
            assert all(metric.shape == () and not metric.requires_grad for metric in each.metrics.values())
        assert learned[0].metrics, "there is nothing to plot"


@rule
def ranks_keep_the_same_weights(subject: Subject, **settings: Any) -> None:
    """Rank 0 publishes and saves for all: another rank would learn from what its own weights did not do."""
    fork = multiprocessing.get_context("fork")
    with TemporaryDirectory() as folder:
        processes = [fork.Process(target=learn_as_rank, args=(rank, folder, subject, settings)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300.0)
            process.kill()
        assert [process.exitcode for process in processes] == [0, 0], "they cannot learn together"
        one, two = (torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(2))
    assert are_same(one["before"], two["before"]), "they begin with other weights"
    assert not are_same(one["after"], one["before"]), "nothing was learned"
    assert are_same(one["after"], two["after"]), "after the same steps they have other weights"


@rule
def it_learns(subject: Subject, **settings: Any) -> None:
    """One that does not learn which action pays in a single step will not learn anything else."""
    name, env = next(iter(find_envs(subject).items()))
    size = 32 if env.action.arrays[0].choices else 16  # real actions need more steps
    many = {"batch_size": size, "samples_per_insert": 2.0} if is_replaying(subject) else {}
    with SmallRun(subject, env, {**many, **settings}, learner={"batch_size": 32}, net={"hidden_size": 32}) as run:
        stage, earned = run.stage(ends=1.0, pays=pay_for_sign(env)), list[float]()
        while len(earned) < MOST_BATCHES:
            rows = stage.rollout(run.trainer.net)
            run.feed(rows)
            earned.append(float(rows["reward"][:, 1:][~rows["first"][:, 1:]].mean()))
            if len(earned) > 5 and np.mean(earned[-3:]) > 1 - 0.4 * (1 - np.mean(earned[:2])):
                return
    raise AssertionError(f"in {name} it earns {earned[0]:.2f} of 1.00 at first, and {earned[-1]:.2f} in the end")


RULES = rules_in(globals())


def pay_for_sign(env: EnvSpec) -> Pays:
    """Rewards of at most 1 for what the sign of the first observation asks for: the one or the other end of actions."""

    def pays(obs: Any, actions: Any) -> Any:
        right = obs[:, :1] > 0
        [space] = env.action.arrays
        if space.choices:
            return np.mean(actions.reshape(len(obs), -1) == right, -1)
        low, high = space.bounds
        return 1 - np.mean(np.abs((actions - low) / (high - low) - right), -1)

    return pays


def learn_as_rank(rank: int, folder: str, subject: Subject, settings: dict[str, Any]) -> None:
    """What one of two ranks does: it learns from rollouts of its own."""
    torch.set_num_threads(1)
    meeting.join(rank, 2, f"file://{folder}/meeting", 250.0, {})
    with SmallRun(subject, first_env(subject), settings, Path(folder)) as run:
        before = run.policy()
        for rows in run.rollouts(3, seed=rank):
            run.add(rows)
            while ranks.sum_over_ranks(torch.tensor(float(run.trainer.learning.due)), "due") == 2:
                run.trainer.step()
        torch.save({"before": before, "after": run.policy()}, f"{folder}/{rank}.pt")
    meeting.leave()
