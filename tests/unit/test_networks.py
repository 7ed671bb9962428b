"""Torsos of other packages: named by reference, tried when they are made, with one sentence for each way to fail."""

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.build.batches import ALGORITHMS, REACH, values_of
from tests.build.batches import NESTED as NESTED_ACTION
from tests.e2e.token_torso import Tokens
from zerobeast.cli.train import TrainFlags, settle
from zerobeast.common.config.load import dump, gather, load
from zerobeast.common.config.trust import flags_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.plugins import public
from zerobeast.common.settings.net import NetConfig, TorsoSpec, readings
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.launcher.placement import placement_of
from zerobeast.launcher.run_folder import refuse_changes
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.body import Body
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.nets.weights import layout_id
from zerobeast.services.learner.update import Trainer

HERE = "tests.unit.test_networks"
POLE = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))
NESTED = replace(NESTED_ACTION, action=POLE.action, action_mask=False)
FRAMES = EnvSpec("Frames-v0", ArraySpace.box((12, 12), "|u1"), ArraySpace.discrete(3), frame_stack=2)


class Raises(nn.Module):
    def __init__(self, net: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        raise KeyError("layer")


class NoModule(Raises):
    def __new__(cls, *_: Any) -> Any:
        return "a torso"


class Unsized(Tokens):
    out_size = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "out_size":
            super().__setattr__(name, value)

    def __init__(self, net: NetConfig, env: EnvSpec) -> None:
        nn.Module.__init__(self)

    def forward(self, obs: Any) -> Tensor:
        return torch.zeros(len(obs), 3)


class Short(Tokens):
    def forward(self, obs: Any) -> Tensor:
        return super().forward(obs)[:, 1:]


class Endless(Tokens):
    def forward(self, obs: Any) -> Tensor:
        return super().forward(obs) / 0


class Stumbles(Tokens):
    def forward(self, obs: Any) -> Tensor:
        raise LookupError("no such token")


class Late(Body):
    """A body whose features are those of the step before: memory of its own."""

    def __init__(self, config: NetConfig, env: EnvSpec, heads: int = 1, *, clip_reward: bool = True) -> None:
        super().__init__(config, env, heads, clip_reward=clip_reward)
        self.core_size = self.out_size

    def forward(self, inputs: StepInput, core: Tensor) -> tuple[list[Tensor], Tensor]:
        [*_, features], _ = super().forward(inputs, core)
        return [torch.cat([core[None], features[:-1]])], features[-1]


NUMBER = 3
BUSY = TorsoSpec(f"{HERE}:Tokens", smallest_image=20, fills_a_core=True)


def run(name: str, algo: str = "ppo", **net: Any) -> RunConfig:
    return RunConfig.model_validate({"algo": algo, "net": {"torso": f"{HERE}:{name}", **net}})


def network(name: str, env: EnvSpec = POLE, algo: str = "ppo", **net: Any) -> Any:
    return make_algorithm(run(name, algo, **net), env).network()


@pytest.mark.parametrize("env", [POLE, FRAMES, NESTED], ids=lambda env: env.env_id)
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("lowered", [False, True])
def test_a_torso_of_another_package_gets_the_whole_observation_as_it_is_read(
    algo: str, env: EnvSpec, *, lowered: bool
) -> None:
    net = network("Tokens", env, algo, normalize_obs=env is NESTED)
    if lowered:
        net.lower(torch.bfloat16)
    obs, n = values_of(env.obs, 2, 3 * env.frame_stack), 6
    if env.frame_stack > 1:
        obs = torch.full((2, 3, env.frame_stack, *env.obs.shape), 255, dtype=torch.uint8)
    none = torch.zeros(2, 3)
    net(StepInput(obs, values_of(env.action, 2, 3), none, none.bool()), net.initial_state(3))
    seen = net.body.torsos[0].torso.seen[-1]
    if env is FRAMES:
        assert torch.equal(seen, torch.ones(n, 2, 12, 12))
    elif env is POLE:
        assert torch.equal(seen, obs.flatten(0, 1))
    else:
        assert {name: (value.dtype, len(value)) for name, value in seen.items()} == {
            "camera": (torch.float32, n),
            "word": (torch.int64, n),
        }
    assert len(net.body.torsos) == 1, "policy and value share it, unless it says otherwise"


def test_names_that_a_module_imports_from_others_are_not_offered() -> None:
    own = public(sys.modules[__name__])
    assert {"HERE", "NUMBER", "network", "Endless"} <= set(own)
    assert not {"sys", "torch", "nn", "Any", "Path", "pytest", "ConfigError"} & set(own)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Gone", f": {HERE} has no 'Gone'; known: "),
        ("Raises", " cannot be made for CartPole-v1: KeyError: 'layer'"),
        ("NoModule", " made str, expected a torch.nn.Module"),
        ("Unsized", ": its out_size is None, expected the number of its features"),
        ("Short", ": returned [2, 15] for 2 observations, expected [2, 16], by its out_size"),
        ("Endless", ": features of CartPole-v1 are not finite real numbers, expected such"),
        ("Stumbles", " cannot read observations of CartPole-v1: LookupError: no such token"),
        ("NUMBER", ": expected a class, got int"),
        ("BUSY", ": expected auto or mlp, because observations of CartPole-v1 are 4, no pictures"),
    ],
)
def test_what_is_no_torso_is_refused_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        network(name)
    assert str(refused.value).startswith(f"net.torso {HERE}:{name}{sentence}")
    assert "\n" not in str(refused.value)


def test_a_name_that_no_package_brings_is_refused_among_the_other_mistakes() -> None:
    with pytest.raises(ConfigError) as refused:
        gather(["--net.torso", "shalow", "--seed", "x"], {})
    first, second = str(refused.value).splitlines()
    expected = "auto, deep, football, minatar, mlp, shallow or module:NAME; did you mean shallow?"
    assert first == f"flag --net.torso: got 'shalow', expected {expected}"
    assert second.startswith("flag --seed: ")


def test_a_torso_answers_what_it_costs_and_which_images_it_is_for() -> None:
    ours = {name: placement_of(RunConfig.model_validate({"net": {"torso": name}}), 2) for name in ("deep", "shallow")}
    assert (ours["deep"].worker_cores, placement_of(run("BUSY"), 2).worker_cores) == ((), ())
    assert placement_of(run("Tokens"), 2).worker_cores == ours["shallow"].worker_cores
    with pytest.raises(ConfigError, match=r"BUSY: expected minatar or deep, .* 12x12, below 20 a side"):
        network("BUSY", FRAMES)
    assert readings(FRAMES, run("Tokens").net) == [
        f"observation 12x12 uint8: picture, scaled by 1/255, {HERE}:Tokens",
    ]


def test_a_body_takes_the_place_of_everything_in_front_of_the_heads() -> None:
    net = network("Late")
    assert net.core_size == net.body.out_size == 64
    obs, none = values_of(POLE.obs, 3, 2), torch.zeros(3, 2)
    inputs = StepInput(obs, torch.zeros(3, 2, dtype=torch.int64), none, none.bool())
    assert net(inputs, net.initial_state(2))[0].value.shape == (3, 2)
    with pytest.raises(ConfigError, match=rf"net\.torso {HERE}:Late has memory: expected none, because dqn "):
        network("Late", algo="dqn")


def test_a_file_alone_decides_on_no_torso_and_imports_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("import os; os.mkdir('trap-sprung')")
    config = load(["--net.torso", "evil.py:Free", "--env", "CartPole-v1", "--deterministic"], {})
    (tmp_path / "gift.yaml").write_text(dump(config))
    for read_only in (False, True):
        with pytest.raises(ConfigError, match=r"net\.torso: 'evil.py:Free' imports a module, .*: give --net.torso "):
            gather(["--config", "gift.yaml"], {}, groups=lambda c: len(str(placement_of(c))), read_only=read_only)
    assert gather(["--config", "gift.yaml", *flags_of(config)], {}).config == config
    assert not (tmp_path / "trap-sprung").exists()


def test_the_torso_of_a_run_that_continues_is_the_one_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--name", "mine", "--env", "CartPole-v1", "--net.torso"]
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(load([*flags, f"{HERE}:Tokens"], {})))
    settled = settle([*flags, f"{HERE}:Short"], {}, datetime.now().astimezone(), own=TrainFlags)
    assert settled.saved is not None
    with pytest.raises(ConfigError, match=r"net\.torso: run 'mine' was trained with '.*:Tokens' and cannot continue"):
        refuse_changes(settled.saved, settled.config)


def test_weights_of_another_activation_or_torso_of_the_same_shapes_do_not_fit() -> None:
    ids = [layout_id(network(*each)) for each in (("Tokens",), ("Endless2",))]
    ids += [layout_id(make_algorithm(RunConfig.model_validate({"net": net}), POLE).network()) for net in NETS]
    assert len(set(ids)) == 4
    assert ids[2] == ids[3]


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


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_frozen_parameters_are_saved_and_stay_as_they_are_while_all_others_are_trained(
    tmp_path: Path, algo: str
) -> None:
    small = {"batch_size": 4, "samples_per_insert": 2.0, "replay_size": 200, "replay_min_size": 10, "random_steps": 0}
    small |= {"target_period": 1, "schedule": "constant", "minibatches": 1, "sequence_length": 4, "burn_in": 0}
    small |= {"batches": 1, "policy_delay": 1}
    tree = {
        "algo": algo,
        "root": str(tmp_path),
        "name": "run",
        "net": {"torso": f"{HERE}:Frozen", "hidden_size": 8, "lstm_size": 8},
        "learner": {"unroll_length": 5, "batch_size": 4, "precision": "float32", "device": "cpu"},
        algo: {name: value for name, value in small.items() if name in ALGORITHMS[algo].model_fields},
    }
    env = REACH if algo in ("ddpg", "td3", "sac") else replace(POLE, obs=REACH.obs)
    trainer = Trainer(RunConfig.model_validate(tree), torch.device("cpu"), env)
    before = {name: value.clone() for name, value in trainer.net.state_dict().items()}
    random = np.random.default_rng(1)
    for number in range(5):
        rows = np.zeros(4, trainer.record.dtype)
        rows["obs"], rows["reward"] = (random.normal(size=rows[name].shape) for name in ("obs", "reward"))
        trainer.add(rows, None, np.array([[9, row, number, 0, 1] for row in range(4)]))
        while trainer.learning.due:
            trainer.step()
    after = trainer.net.state_dict()
    assert any("encoder" in name for name in before)
    for name, value in before.items():
        frozen = "encoder" in name
        assert torch.equal(value, after[name]) == frozen or not value.is_floating_point(), name


class Endless2(Tokens):
    """Of the same shapes."""


NETS: list[dict[str, Any]] = [{}, {"activation": "tanh"}, {"activation": "gelu"}]
