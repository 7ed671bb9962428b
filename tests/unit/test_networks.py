"""Torsos of other packages: named by reference, tried when they are made, and refused before anything starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import NESTED
from tests.build.errors import refuses
from tests.build.learners import ENV, run_config, train_on_seeds
from tests.build.nets import CARTPOLE
from tests.build.parts import Tokens
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.load import dump, load_config, resolve_flags
from zerobeast.common.config.trust import settings_to_confirm
from zerobeast.common.settings.net import NetConfig, TorsoSpec
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.plan.placement import placement_of
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.body import Body
from zerobeast.rl.nets.weights import layout_id
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.network import observations, steps

HERE = "tests.unit.test_networks"
CHOICES = replace(NESTED, action=CARTPOLE.action, action_mask=False)
FRAMES = EnvSpec("Frames-v0", ArraySpace.box((12, 12), "|u1"), ArraySpace.discrete(3), frame_stack=2)
NUMBER = 3
BUSY = TorsoSpec(f"{HERE}:Tokens", smallest_image=20, fills_a_core=True)


def torso(**methods: Any) -> Any:
    """A torso of another package, which differs in these methods."""
    return type("Torso", (Tokens,), {"__module__": __name__, **methods})


Raises = torso(__init__=lambda _self, _net, _env: {}["layer"])
Short = torso(forward=lambda self, obs: Tokens.forward(self, obs)[:, 1:])
Endless = torso(forward=lambda self, obs: Tokens.forward(self, obs) / 0)
OfSameShapes = torso()


class Memorising(Body):
    """A body with memory of its own."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.core_size = self.out_size


class Frozen(nn.Module):
    """A pretrained encoder behind which one layer is trained; for algorithms that train it, a part of the network."""

    def __init__(self, _net: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        self.out_size = 6
        self.encoder = nn.Linear(*env.obs.arrays[0].shape, 8).requires_grad_(requires_grad=False)
        self.adapter = nn.Linear(8, 6)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.adapter(self.encoder(obs).tanh())
        return features


def run(name: str, algo: str = "ppo", **net: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"algo": algo, "net": {"torso": name if name.islower() else f"{HERE}:{name}", **net}}
    )


def network(name: str, env: EnvSpec = CARTPOLE, algo: str = "ppo", **net: Any) -> Any:
    return make_algorithm(run(name, algo, **net), env).network()


@pytest.mark.parametrize("env", [CARTPOLE, FRAMES, CHOICES], ids=lambda env: env.env_id)
@pytest.mark.parametrize(("algo", "lowered"), [("ppo", False), ("ppo", True), ("dqn", False)])
def test_a_foreign_torso_gets_the_whole_observation_as_it_is_read(algo: str, env: EnvSpec, *, lowered: bool) -> None:
    net, obs = network("Tokens", env, algo, normalize_obs=env is CHOICES), observations(env, 2, 3)
    if lowered:
        net.lower(torch.bfloat16)
    net(steps(env, 2, 3)._replace(obs=obs), net.initial_state(3))
    [torso] = net.body.torsos  # policy and value share it, unless it says otherwise
    seen = torso.torso.seen[-1]
    if env is CHOICES:
        found = {name: (value.dtype, len(value)) for name, value in seen.items()}
        assert found == {"camera": (torch.float32, 6), "word": (torch.int64, 6)}
    else:
        torch.testing.assert_close(seen, obs.flatten(0, 1) / (255 if env is FRAMES else 1))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Gone", "HERE"),
        ("Raises", "KeyError: 'layer'"),
        ("Short", "[2, 15]"),
        ("Endless", "finite"),
        ("NUMBER", "int"),
        ("BUSY", "images"),
    ],
)
def test_what_is_no_torso_is_refused_with_what_was_found(name: str, found: str) -> None:
    with refuses("net.torso", value=f"{HERE}:{name}") as caught:
        network(name)
    assert found in str(caught.error)
    assert "\n" not in str(caught.error)


def test_a_torso_answers_what_it_costs_and_which_images_it_is_for() -> None:
    cores = {name: placement_of(run(name), 2).worker_cores for name in ("deep", "shallow", "Tokens", "BUSY")}
    assert cores["deep"] == cores["BUSY"] == ()
    assert cores["Tokens"] == cores["shallow"]
    with refuses("net.torso", expected="minatar or deep"):
        network("BUSY", FRAMES)


def test_a_body_takes_the_place_of_everything_in_front_of_the_heads() -> None:
    net = network("Memorising")
    assert net.core_size == net.body.out_size == 64
    with refuses("net.torso", value=f"{HERE}:Memorising"):
        network("Memorising", algo="dqn")


def test_a_file_alone_decides_on_no_torso_and_imports_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("import os; os.mkdir('trap-sprung')")
    config = load_config(["--net.torso", "evil.py:Free", "--env", "CartPole-v1", "--deterministic"], {})
    (tmp_path / "gift.yaml").write_text(dump(config))
    for read_only in (False, True):
        with refuses("net.torso", value="evil.py:Free"):
            resolve_flags(
                ["--config", "gift.yaml"], {}, groups=lambda c: len(str(placement_of(c))), read_only=read_only
            )
    assert resolve_flags(["--config", "gift.yaml", *flags_for(settings_to_confirm(config))], {}).config == config
    assert not (tmp_path / "trap-sprung").exists()


def test_weights_of_another_activation_or_torso_of_the_same_shapes_do_not_fit() -> None:
    ids = [layout_id(network(name)) for name in ("Tokens", "OfSameShapes", "mlp")]
    ids += [layout_id(network("mlp", activation=name)) for name in ("tanh", "gelu")]
    assert len(set(ids)) == 4
    assert ids[2] == ids[3], "tanh is what it has by default"


def test_frozen_parameters_are_saved_and_stay_as_they_are_while_all_others_are_trained(tmp_path: Path) -> None:
    tree = run_config(tmp_path).model_dump() | {"net": {"torso": f"{HERE}:Frozen", "hidden_size": 8}}
    trainer = Trainer(RunConfig.model_validate(tree), torch.device("cpu"), ENV)
    before = {name: value.clone() for name, value in trainer.net.state_dict().items()}
    after = train_on_seeds(trainer, range(3)).net.state_dict()
    assert any("encoder" in name for name in before)
    for name, value in before.items():
        frozen = "encoder" in name
        assert torch.equal(value, after[name]) == frozen or not value.is_floating_point(), name
