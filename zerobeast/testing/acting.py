"""How an algorithm acts: the rules of `zerobeast.rl.protocol.Algorithm`, but for what it learns."""

from typing import Any

import torch
from torch import Tensor

from zerobeast.common.wire import iterate_arrays
from zerobeast.rl.ops.tree import leaves
from zerobeast.testing.rules import rule, rules_in
from zerobeast.testing.scenes import Scene, answer_tensors, batch_of, is_close, make_scenes, perturb
from zerobeast.testing.small_run import (
    ENVS,
    B,
    SmallRun,
    Subject,
    T,
    are_same,
    config_of,
    find_envs,
    first_env,
    is_refused,
)

DRAWS = 20  #: times that an action is drawn to see that it is legal


@rule
def what_it_cannot_learn_is_refused(subject: Subject, **settings: Any) -> None:
    """A user who combines an algorithm with the wrong environment has to read which setting to change."""
    for name in ENVS.keys() - find_envs(subject).keys():
        assert is_refused(subject, ENVS[name], settings), f"{name}: it is no environment that it takes"


@rule
def the_network_is_the_same_on_every_call(subject: Subject, **settings: Any) -> None:
    """Brokers make it themselves and load weights by their places: they need the learner's, from the seed alone."""
    found: list[list[dict[str, Tensor]]] = []
    for seed, others in ((1, 1), (1, 2), (2, 1)):
        config = config_of(subject, settings, seed=seed)
        algorithm = config.spec.build(config, first_env(subject))
        torch.manual_seed(others)
        found.append([algorithm.network().state_dict() for _ in range(2)])
    (one, again), (other, _), (reseeded, _) = found
    for made in (again, other):
        assert made.keys() == one.keys()
        assert all(torch.equal(made[name], one[name]) for name in one), "two with one seed differ"
    assert any(not torch.equal(reseeded[name], one[name]) for name in one), "another seed makes the same network"


@rule
def acting_answers_what_the_policy_declares(subject: Subject, **settings: Any) -> None:
    """Actors allocate rows by `policy` before the first answer, and whatever does not fit is lost or misread."""
    for scene in make_scenes(subject, settings):
        act, after = scene.act()
        arrays = list(iterate_arrays(scene.env.action, act.action))
        for space, chosen in arrays:
            assert chosen.shape == (B, *space.shape), f"an action of shape {tuple(chosen.shape)}"
            assert chosen.is_floating_point() == (space.kind == "box"), f"an action of {chosen.dtype}"
            assert chosen.isfinite().all()
            if sizes := space.choices:
                each = chosen.reshape(B, -1)
                assert ((each >= 0) & (each < torch.tensor(sizes))).all(), "an action that there is not"
        declared = {name: (dtype, (B, *shape)) for name, dtype, shape in scene.algorithm.policy.extras}
        found = {name: (extra.numpy().dtype.str, tuple(extra.shape)) for name, extra in act.extras.items()}
        assert found == declared
        assert after.shape == (B, scene.algorithm.policy.core_size)


@rule
def acting_has_no_gradient(subject: Subject, **settings: Any) -> None:
    """A broker keeps the state of each environment: with its gradient it would keep every step since the start."""
    for scene in make_scenes(subject, settings):
        act, after = scene.act()
        assert not any(entry.requires_grad for entry in (*leaves(act.action), *act.extras.values(), after))


@rule
def acting_draws_from_its_generator_alone(subject: Subject, **settings: Any) -> None:
    """A broker's seed decides what it draws, also when others draw in the same process."""
    for scene in make_scenes(subject, settings):
        found = []
        for others in (1, 2):
            torch.manual_seed(others)
            state = torch.get_rng_state()
            found.append(answer_tensors(*scene.act(seed=5)))
            assert torch.equal(torch.get_rng_state(), state), "acting draws from torch's own generator"
        assert are_same(*found), "two equal generators give two answers"


@rule
def greedy_acting_is_deterministic(subject: Subject, **settings: Any) -> None:
    """Evaluations, exports and opponents act greedily and are compared with each other."""
    for scene in make_scenes(subject, settings):
        one, two = (answer_tensors(*scene.act(seed=seed, greedy=True)) for seed in (1, 2))
        assert are_same(one, two), "it depends on the generator"


@rule
def illegal_actions_are_never_chosen(subject: Subject, **settings: Any) -> None:
    """An environment may end, or do anything, on an action that its mask forbids."""
    for scene in make_scenes(subject, settings):
        for draw in range(DRAWS if scene.env.action_mask else 0):
            (action, _), _ = scene.act(seed=draw, greedy=draw == 0)
            choices = [(space, chosen) for space, chosen in iterate_arrays(scene.env.action, action) if space.choices]
            sizes = [size for space, _ in choices for size in space.choices]
            taken = torch.cat([chosen.reshape(B, -1) for _, chosen in choices], -1)
            at = taken + torch.tensor([0, *sizes[:-1]]).cumsum(0)
            assert scene.inputs.action_mask is not None
            assert scene.inputs.action_mask[0].gather(1, at).all(), "the mask forbids it"


@rule
def rows_are_acted_for_on_their_own(subject: Subject, **settings: Any) -> None:
    """Which environments share a batch is chance: an answer that depends on the others cannot be repeated."""
    for scene in make_scenes(subject, settings):
        together = answer_tensors(*scene.act(greedy=True))
        for row in (0, B - 1):
            alone = answer_tensors(*scene.only(row).act(greedy=True))
            assert all(map(is_close, alone, [entry[row : row + 1] for entry in together])), (
                "alone the answer is another"
            )


@rule
def an_episode_begins_without_memory(subject: Subject, **settings: Any) -> None:
    """What an environment did in the last episode, or another client in its place, must not decide in this one."""
    for scene in make_scenes(subject, settings):
        scene.inputs.first[:] = True
        clean = Scene(scene.algorithm, scene.net, scene.inputs, torch.zeros_like(scene.core))
        assert are_same(answer_tensors(*scene.act()), answer_tensors(*clean.act())), (
            "the state before a first step counts"
        )


@rule
def divergence_is_zero_for_the_policy_that_acted(subject: Subject, **settings: Any) -> None:
    """By `sync.rule adaptive`, processes whose weights are still as good as the newest keep them."""
    for env in find_envs(subject).values():
        with SmallRun(subject, env, settings, sync={"rule": "adaptive 0.1"}) as run:
            net, algorithm = perturb(run.trainer.net), run.trainer.algorithm
            batch = batch_of(run.trainer, run.rollouts(1)[0])
            found = algorithm.divergence(net, batch)
            assert not found.requires_grad
            assert found.shape == (T, B)
            valid = found[batch.mask].nan_to_num()
            assert is_close(valid, torch.zeros_like(valid)), f"it is {valid.max():.3g}"
            changed = algorithm.divergence(perturb(net, 1.0), batch)[batch.mask].nan_to_num()
            assert (changed >= 0).all()
            assert changed.mean() > 1e-3, "another policy is as near"


RULES = rules_in(globals())
