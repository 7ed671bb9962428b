"""Every torso keeps the rules of one, every signal of rarity those of one, and a fault in one breaks a rule by name."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import MINATAR, NESTED, REACH, VECTORS
from tests.build.nets import FOOTBALL, GRU, SMALL
from tests.build.parts import newest, too_few  # noqa: F401 - found by name
from tests.helpers import ROOT, bring, entries_of
from zerobeast.common.settings.net import NETWORKS, NetConfig
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.memory.rarity import Familiar
from zerobeast.rl.nets.body import Body
from zerobeast.testing import memory, network
from zerobeast.testing.rules import BrokenRule, Rule

pytestmark = pytest.mark.slow
HERE = "tests.unit.test_network_contract"
DOUBLES = EnvSpec("Stacked-v0", ArraySpace.box((4,), "<f8"), REACH.action, frame_stack=3)
POINTS = CompositeSpace(
    "dict",
    (
        Part("goal", ArraySpace.box((2,))),
        Part("others", ArraySpace.box((6, 2))),
        Part("present", ArraySpace("multi_binary", "|i1", (6,))),
    ),
)
CASES: dict[str, tuple[str, EnvSpec, dict[str, Any]]] = {
    "shallow": ("shallow", SMALL, {}),
    "deep": ("deep", SMALL, {"normalize_obs": True}),
    "football": ("football", FOOTBALL, {}),
    "minatar": ("minatar", MINATAR, {"activation": "gelu"}),
    "mlp": ("mlp", VECTORS, {"hidden_sizes": (9, 8, 7), "normalize_obs": True}),
    "joined": ("auto", replace(NESTED, frame_stack=2), {}),
    "doubles": ("auto", DOUBLES, {"action_std": "state"}),
    "gru": ("mlp", SMALL, {"core": GRU}),
    "tokens": ("tests.build.parts:Tokens", SMALL, {}),
    "entities": ("entities", EnvSpec("point/reach", POINTS, REACH.action), {}),
}


@pytest.fixture(scope="module", autouse=True)
def _brought(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder, example = tmp_path_factory.mktemp("packages"), ROOT / "docs" / "examples" / "own_everything"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.syspath_prepend(example)
        with bring(folder, NETWORKS, {"own-1.0": entries_of(example)}):
            yield


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rule", network.RULES, ids=str)
def test_every_torso_keeps_the_rules(rule: Rule, case: str) -> None:
    torso, env, net = CASES[case]
    rule(torso, env, **net)


class Sound(nn.Module):
    """A torso without a fault."""

    def __init__(self, _net: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        self.out_size = 6
        self.layer = nn.Linear(env.obs.arrays[0].shape[0], 6)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.layer(obs)
        return features.tanh()


def torso(forward: Any = Sound.forward, made: Any = lambda _self: None) -> Any:
    """One with this `forward`, which is changed by `made` once it is made."""

    def init(self: Sound, net: NetConfig, env: EnvSpec) -> None:
        Sound.__init__(self, net, env)
        made(self)

    return type("Faulty", (Sound,), {"__module__": __name__, "__init__": init, "forward": forward})


def counted(self: Any, obs: Tensor) -> Tensor:
    self.mean += 0.1 * obs.mean()
    return Sound.forward(self, obs)


def rounded(self: Any, obs: Tensor) -> Tensor:
    return Sound.forward(self, obs).round() if torch.is_autocast_enabled("cpu") else Sound.forward(self, obs)


Short = torso(lambda self, obs: Sound.forward(self, obs)[:, 1:])
Mixing = torso(lambda self, obs: Sound.forward(self, obs - obs.mean(0)))
Noisy = torso(lambda self, obs: nn.functional.dropout(Sound.forward(self, obs)))
Counting = torso(counted, lambda self: self.register_buffer("mean", torch.zeros(())))
InPlace = torso(lambda self, obs: Sound.forward(self, obs.clamp_(-0.1, 0.1)))
Unseeded = torso(made=lambda self: self.layer.weight.data.add_(np.random.default_rng().random()))
Hidden = torso(
    lambda self, obs: Sound.forward(self, obs) * self.scale, lambda self: setattr(self, "scale", torch.rand(6))
)
Shared = torso(made=lambda self: setattr(type(self), "__deepcopy__", lambda itself, _memo: itself))
Coarse = torso(rounded)
Unused = torso(made=lambda self: self.register_module("other", nn.Linear(2, 2)))


class Late(Body):
    """Its features are those of the step before, even of another episode."""

    def __init__(self, config: NetConfig, env: EnvSpec, heads: int = 1, **more: Any) -> None:
        super().__init__(config, env, heads, **more)
        self.core_size = self.out_size

    def forward(self, inputs: Any, core: Tensor) -> tuple[list[Tensor], Tensor]:
        [*_, features], _ = super().forward(inputs, core[:, :0])
        return [torch.cat([core[None], features[:-1]])], features[-1]


class Early(Late):
    """Its features are those of the step after, which actors do not know yet."""

    def forward(self, inputs: Any, core: Tensor) -> tuple[list[Tensor], Tensor]:
        [*_, features], _ = Body.forward(self, inputs, core[:, :0])
        return [features.roll(-1, 0)], core


FAULTS = {
    "Short": network.features_are_of_the_size_that_it_declares,
    "Mixing": network.rows_do_not_depend_on_each_other,
    "Noisy": network.answers_are_the_same_each_time,
    "Counting": network.answering_changes_nothing,
    "InPlace": network.answering_changes_nothing,
    "Unseeded": network.equal_seeds_make_equal_weights,
    "Hidden": network.weights_travel_as_bytes,
    "Shared": network.a_copy_is_independent,
    "Coarse": network.bfloat16_is_near_float32,
    "Unused": network.every_parameter_is_trained,
    "Early": network.one_call_over_time_equals_one_call_per_step,
    "Late": network.an_episode_begins_without_a_past,
}


def standardised(familiar: Familiar) -> Tensor:
    return (familiar.losses - familiar.losses.mean()) / familiar.losses.std()


def in_place(familiar: Familiar) -> Tensor:
    return familiar.td_errors.neg_()


SIGNALS = {
    "too_few": memory.each_entry_gets_one_number,
    "standardised": memory.numbers_are_finite,
    "in_place": memory.what_is_given_stays_as_it_is,
}


@pytest.mark.parametrize("signal", ["momentum", "knn", "td_error", "uniform", f"{HERE}:newest"])
@pytest.mark.parametrize("rule", memory.RULES, ids=str)
def test_every_signal_of_rarity_keeps_the_rules(rule: Rule, signal: str) -> None:
    rule(signal)


@pytest.mark.parametrize(("fault", "rule"), [*FAULTS.items(), *SIGNALS.items()], ids=str)
def test_a_fault_breaks_the_rule_that_names_it(fault: str, rule: Rule) -> None:
    sound, of_networks = ("Sound", [VECTORS]) if fault in FAULTS else ("newest", [])
    rule(f"{HERE}:{sound}", *of_networks)
    with pytest.raises(BrokenRule) as broken:
        rule(f"{HERE}:{fault}", *of_networks)
    assert str(broken.value).startswith(rule.name)
