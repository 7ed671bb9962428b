"""Exported policies: a folder has all that acting needs and is only data, and an ONNX graph does what a policy does."""

import json
import re
import shlex
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest
import torch
import yaml

from tests.build.batches import NESTED, REACH, VECTORS
from tests.build.folders import policy_run
from tests.build.nets import GRU
from zerobeast.api.export import EXPORT_SETTINGS, KINDS, export
from zerobeast.api.policies import evaluate, load
from zerobeast.common.config.load import load_config as settings
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import evaluations
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part, map_arrays
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.exporting import graph
from zerobeast.exporting.card import train_command
from zerobeast.playing.policy import Policy
from zerobeast.rl.nets.norms import BatchNorm

NAMES = {"README.md", "config.json", "model.safetensors"}
OBS = np.random.default_rng(1).normal(size=(20, 5)).astype(np.float32)


def row(steps: int, *returns: float, env: str = "Vectors-v0") -> evaluations.Row:
    own = {"agent_steps": steps, "env": env, "actions": "greedy", "returns": list(returns)}
    return own | {"lengths": [10] * len(returns), "mean_return": sum(returns) / len(returns)}


def filmed(run: Path, *names: str) -> Path:
    """The run with these videos, whose contents are their names."""
    (run / "videos").mkdir(exist_ok=True)
    for name in names:
        (run / "videos" / name).write_bytes(name.encode())
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return filmed(policy_run(tmp_path, "ppo", VECTORS, "--seed=7", "--ppo.learning_rate=0.001"))


def test_a_folder_acts_as_the_run_does_and_its_card_is_what_the_hub_reads(tmp_path: Path, run: Path) -> None:
    evaluations.write_evaluations(run, [row(0, 1.0, 2.0), row(5, 7.0)])
    out = export(filmed(run, "0.mp4", "9.gif"), tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {*NAMES, "replay.mp4"}
    assert (out / "replay.mp4").read_bytes() == b"0.mp4", "that of this policy"
    np.testing.assert_array_equal(load(out).predict(OBS)[0], load(run).predict(OBS)[0])
    card = (out / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    [result] = front["model-index"][0]["results"]
    assert (result["task"]["type"], result["dataset"]["type"]) == ("reinforcement-learning", "Vectors-v0")
    assert [(metric["type"], metric["value"]) for metric in result["metrics"]] == [("mean_reward", "1.50 +/- 0.50")]
    assert "--seed 7 --ppo.learning_rate 0.001\n" in card
    about = json.loads((out / "config.json").read_text(), parse_constant=pytest.fail)
    assert about["versions"].keys() >= {"zerobeast", "torch", "python"}
    assert about["evaluations"] == [row(0, 1.0, 2.0)]
    for text in (card, json.dumps(about)):
        assert str(tmp_path) not in text, "a path of this machine"


def test_the_score_of_a_card_is_of_the_actions_that_its_policy_takes(tmp_path: Path) -> None:
    run = policy_run(tmp_path, "ppo", VECTORS, "--evaluate.actions=sampled", "--seed=7")
    evaluations.write_evaluations(run, [row(0, 1.0), row(0, 9.0) | {"actions": "sampled"}])
    out = export(filmed(run, "0.mp4", "0-sampled.mp4"), tmp_path / "out")
    assert "| Vectors-v0 | 9.00 +/- 0.00 | 1 | sampled |" in (out / "README.md").read_text()
    assert (out / "replay.mp4").read_bytes() == b"0-sampled.mp4", "no greedy episode beside a sampled score"
    assert len(set(load(out).predict(np.zeros((64, 5)))[0])) > 1


def test_parts_memory_and_normalisation_come_along(tmp_path: Path) -> None:
    flags = ("--net.core=lstm", "--net.core_width=8", "--net.normalize_obs", "--env.kwargs", '{"low": ["inf"]}')
    run = policy_run(tmp_path, "impala", NESTED, *flags)
    policies = [load(run), load(export(run, tmp_path / "out"))]
    assert policies[0].env == policies[1].env
    assert policies[1].config.env.kwargs == {"low": ["inf"]}, "text is only among bounds a number"
    obs, states = {"camera": np.ones((3, 6, 8)), "word": np.arange(3)}, [None, None]
    for _ in range(2):
        (a, states[0]), (b, states[1]) = (
            policy.predict(obs, state, last_reward=np.ones(3)) for policy, state in zip(policies, states, strict=True)
        )
        np.testing.assert_array_equal(a["aim"], b["aim"])
    again = load(export(tmp_path / "out", tmp_path / "again"))
    np.testing.assert_array_equal(again.predict(obs)[0]["aim"], policies[0].predict(obs)[0]["aim"])


def test_nothing_of_another_policy_comes_along(tmp_path: Path, run: Path) -> None:
    (run / "videos/0.gif").symlink_to("/etc/passwd")
    evaluations.write_evaluations(run, [row(9, 5.0)])
    out = export(filmed(run, "9.mp4"), tmp_path / "a")
    assert {path.name for path in out.iterdir()} == NAMES
    evaluations.write_evaluations(run, [row(0, 5.0)])
    (run / "videos/0.mp4").touch()
    shutil.copy(run / "checkpoint.pt", run / "parent.pt")  # what the run began from, at a step that it has as well
    out = export(run / "parent.pt", tmp_path / "b")
    assert not (out / "replay.mp4").exists()
    assert "model-index" not in (out / "README.md").read_text()


def test_what_a_setting_names_in_a_folder_of_this_machine_is_published_by_its_name(tmp_path: Path) -> None:
    here, env_id = f"{tmp_path}/my project", f"{tmp_path}/my project/games.walk:Walk"
    (tmp_path / "my project").mkdir()
    (tmp_path / "my project" / "own.py").write_text(
        "from zerobeast.rl.algos.ppo.config import SPEC\nfrom zerobeast.rl.nets.torsos import build_by_array as Torso"
    )
    others = {"topics": ["/cmd_vel", "/no-such-folder/x"], "at": "http://host/a:8", "root": "/"}
    kwargs = {"rom": f"{here}/a.rom", "url": f"file://{here}/b.rom", f"{here}/c.rom": 1, **others}
    own: dict[str, Any] = {"algo": f"{here}/own.py:SPEC", "net": {"torso": f"{here}/own.py:Torso"}}
    flags = {
        "env": env_id,
        "env.kwargs": json.dumps(kwargs),
        "env.opponent": "/scratch/of/a/cluster/runs/expert:best",
        "evaluate.levels": f"{env_id},/scratch/b.py:B",
        "net.torso": own["net"]["torso"],
        "learner.store": "/scratch/me/store",
    }
    env = replace(VECTORS, env_id=env_id)
    policy_run(tmp_path, own["algo"], env, *(f"--{name}={value}" for name, value in flags.items()))
    evaluations.write_evaluations(tmp_path / "run", [row(0, 1.0, env=env_id) | {"level": "/scratch/b.py:B"}])
    out = export(tmp_path / "run", tmp_path / "out", **own)
    about, card = json.loads((out / "config.json").read_text()), (out / "README.md").read_text()
    for text in (json.dumps(about), card):
        assert not re.search(rf"{tmp_path}|/scratch|my project", text)
    settings = about["settings"]
    assert (settings["env"]["id"], settings["algo"]) == ("games.walk:Walk", "own.py:SPEC")
    assert (settings["env"]["opponent"], settings["evaluate"]["levels"]) == ("expert:best", "games.walk:Walk,b.py:B")
    assert settings["env"]["kwargs"] == {"rom": "a.rom", "url": "b.rom", "c.rom": 1, **others}
    assert "--env games.walk:Walk --algo own.py:SPEC" in card
    with pytest.raises(ConfigError, match="--algo"):
        load(out)
    np.testing.assert_array_equal(load(out, **own).predict(OBS)[0], load(tmp_path / "run", **own).predict(OBS)[0])
    with pytest.raises(ConfigError, match="--env"):
        evaluate(load(out, **own))


def test_a_command_repeats_a_run_and_the_card_of_a_fork_names_no_run_of_this_machine(tmp_path: Path) -> None:
    flags = ["--env=Pendulum-v1", "--algo=sac", "--net.hidden_sizes=32,16", '--env.kwargs={"g": 9.8}', "--seed=4"]
    config = settings([*flags, f"--root={tmp_path}", "--name=x", "--insecure", "--parent.run=base"], {})
    again = settings(shlex.split(train_command(config))[2:], {})
    changed = {name: getattr(again, name) for name in ("root", "name", "security", "parent")}
    assert again == config.model_copy(update=changed)
    fork = policy_run(tmp_path, "ppo", VECTORS, "--parent.run=/home/me/runs/base:best", "--parent.agent_steps=1234")
    out = export(fork, tmp_path / "out")
    assert "1,234 agent steps" in (out / "README.md").read_text()
    assert not [path for path in out.iterdir() if b"/home/me" in path.read_bytes()]


def test_what_cannot_be_written_leaves_nothing_and_what_is_there_stays(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    monkeypatch.chdir(tmp_path / "full")
    for place, form in ((tmp_path / "full", KINDS[0]), (".", KINDS[0]), (tmp_path / "out", "onx")):
        with pytest.raises(ConfigError):
            export(run, place, form)
    (run / "videos/0.gif").write_bytes(b"film")
    monkeypatch.setattr(shutil, "copyfile", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ConfigError, match="No space left"):
        export(run, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "full"}


HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()


def setting(path: str, value: Any) -> Callable[[bytes], bytes]:
    """A config.json with another value in this place, or with other entries in this section."""

    def edit(content: bytes) -> bytes:
        branch = tree = json.loads(content)
        *parents, name = path.split(".")
        for parent in parents:
            branch = branch[parent]
        branch[name] = {**branch[name], **value} if parents and isinstance(value, dict) else value
        return json.dumps(tree).encode()

    return edit


WEIGHTS, CONFIG = "model.safetensors", "config.json"
DAMAGE: list[tuple[str, Callable[[bytes], bytes], str]] = [
    (WEIGHTS, lambda content: content[:-1], WEIGHTS),
    (WEIGHTS, lambda _: b"\x80\x04\x95" + b"x" * 99, WEIGHTS),
    (WEIGHTS, lambda _: struct.pack("<Q", len(HEADER)) + HEADER, WEIGHTS),
    (CONFIG, lambda _: b"[" * 100_000, CONFIG),
    (CONFIG, lambda _: b" " * (5 << 20), CONFIG),
    (CONFIG, lambda _: b'{"model_type": "bert"}', CONFIG),
    (CONFIG, setting("agent_steps", True), "agent_steps"),
    (CONFIG, setting("env", {"obs": "inf"}), "env_id"),
    (CONFIG, setting("settings", {"seeds": 3}), "seeds"),
    (CONFIG, setting("settings.net", {"hidden_size": 60_000, "max_parameters": 10**12}), "parameters"),
    (CONFIG, setting("settings.net", {"hidden_size": 8}), "architecture"),
    (CONFIG, setting("settings.net", 8), "settings.net"),
    (CONFIG, setting("env", 8), "env is 8"),
    (CONFIG, setting("settings.algo", "evil:SPEC"), "--algo"),
    (CONFIG, setting("settings.net", {"torso": "evil.py:T"}), "--net.torso"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that another machine has exported."""
    root = tmp_path_factory.mktemp("exported")
    return export(policy_run(root, "ppo", VECTORS), root / "out")


@pytest.mark.parametrize(("file", "edit", "named"), DAMAGE)
def test_an_untrusted_folder_imports_nothing_makes_nothing_larger_than_its_weights_and_is_refused_by_name(
    tmp_path: Path, exported: Path, file: str, edit: Callable[[bytes], bytes], named: str
) -> None:
    out = shutil.copytree(exported, tmp_path / "out")
    (out / file).write_bytes(edit((out / file).read_bytes()))
    with pytest.raises(BeastError, match=rf"^[^\n]*{named}[^\n]*$"):
        load(out)
    (out / file).unlink()
    with pytest.raises(BeastError, match=file):
        load(out)


def test_an_untrusted_file_decides_about_no_peers(tmp_path: Path, exported: Path) -> None:
    file = shutil.copytree(exported, tmp_path / "out") / CONFIG
    file.write_bytes(setting("settings.security", {"keys": "/gift"})(file.read_bytes()))
    file.write_bytes(setting("settings.learner", {"endpoint": "tcp://10.0.0.1:5560"})(file.read_bytes()))
    config = load(file.parent).config
    assert (config.security.keys, config.learner.endpoint) == ("", "tcp://127.0.0.1:5560")


CAMERA = Part("camera", ArraySpace.box((10, 10, 2), "|u1", (0.0,), (255.0,)))
WORD = Part("word", replace(ArraySpace.discrete(4), start=(1,)))
FROM_5 = map_arrays(NESTED.action, lambda array: array if array.kind == "box" else replace(array, start=(5, 0)))
SEEING = replace(NESTED, obs=CompositeSpace("dict", (CAMERA, WORD)), action=FROM_5, frame_stack=2)


def policy_of(folder: Path, algo: str, env: EnvSpec, *flags: str, **settings: Any) -> Policy:
    """A policy with random weights, and with heads that prefer something."""
    policy = load(policy_run(folder, algo, env, *flags), **EXPORT_SETTINGS, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in policy.module.parameters():
            weights += 0.3 * torch.randn(weights.shape, generator=generator)
        for norm in policy.module.modules():
            if isinstance(norm, BatchNorm):
                norm.mean.normal_(generator=generator)
                norm.variance.uniform_(0.5, 2.0, generator=generator)
    return policy


SMALL = ("--net.hidden_size=8",)


def session_of(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.slow
@pytest.mark.parametrize(("core", "numbers"), [("lstm", 16), (GRU, 8)], ids=["lstm", "gru"])
def test_a_step_with_state_masks_and_stacks_is_that_of_the_policy(tmp_path: Path, core: str, numbers: int) -> None:
    flags = (*SMALL, f"--net.core={core}", "--net.core_width=8", "--net.normalize_obs")
    policy = policy_of(tmp_path, "impala", SEEING, *flags, net={"core": core})
    found = graph.export_graph(policy)
    assert found.difference < graph.TOLERANCE
    assert str(Path(graph.__file__).parent).encode() not in found.model, "a path of this machine"
    assert found.inputs["state"] == found.outputs["next_state"] == f"float32 [B, {numbers}]"
    rng, state, session = np.random.default_rng(3), None, session_of(found.model)
    carried, aimed, went = np.zeros((2, numbers), np.float32), np.zeros((2, 2), np.float32), np.array([[5, 0]] * 2)
    frames = {"camera": np.zeros((2, 2, 10, 10, 2), np.uint8), "word": np.zeros((2, 2), int)}
    for step in range(4):
        obs = {"camera": rng.integers(0, 256, (2, 10, 10, 2)).astype(np.uint8), "word": rng.integers(1, 5, 2)}
        first, reward = np.array([step == 0, step in (0, 2)]), rng.normal(size=2).astype(np.float32)
        for name, frame in obs.items():
            older = [np.where(first.reshape(-1, *[1] * (frame.ndim - 1)), frame, frames[name][:, 1]), frame]
            frames[name] = np.stack(older, 1)
        mask = np.array([[True] * 7, [False, True, True, True, False, True, True]])
        given = {"first": first, "last_reward": reward, "action_mask": mask, "state": carried}
        given |= {f"obs.{name}": stack for name, stack in frames.items()}
        given |= {"last_action.aim": aimed, "last_action.go.0": went}
        outputs = dict(zip(found.outputs, session.run(list(found.outputs), given), strict=True))
        how: dict[str, Any] = {"last_reward": reward, "action_mask": mask}
        aim, go = policy.distribution(obs, state, episode_start=first, **how).parts  # type: ignore[attr-defined]
        for name, values in (("mean.aim", aim.mean), ("stddev.aim", aim.stddev), ("logits.go.0", go.logits)):
            np.testing.assert_allclose(outputs[name], values.detach(), rtol=1e-4, atol=1e-5)
        action, state = policy.predict(obs, state, first, **how)
        carried, aimed, went = (outputs[name] for name in ("next_state", "next_last_action.aim", "action.go.0"))
        np.testing.assert_allclose(outputs["action.aim"], action["aim"], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(went, action["go"][0])
        np.testing.assert_allclose(carried, state.core, rtol=1e-4, atol=1e-5)
        assert not (went[1] == [5, 1]).any(), "forbidden choices"
        assert (went >= [5, 0]).all()


CHOICE = {"action": "int64 [B]", "logits": "float32 [B, 3]"}
REAL = dict.fromkeys(("action", "mean", "stddev"), "float32 [B, 2]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "flags", "outputs"),
    [
        ("ppo", VECTORS, (), CHOICE),
        ("ppo", VECTORS, ("--net.norm=layer", "--net.residual_blocks=2"), CHOICE),
        ("sac", REACH, ("--net.norm=batch",), REAL),
    ],
)
def test_a_step_takes_what_it_needs_of_any_number_of_environments_and_is_of_no_other_policy(
    tmp_path: Path, algo: str, env: EnvSpec, flags: tuple[str, ...], outputs: dict[str, str]
) -> None:
    policy = policy_of(tmp_path, algo, env, *SMALL, *flags)
    found = graph.export_graph(policy)
    assert found.inputs == {"obs": "float32 [B, 5]"}
    assert found.outputs == outputs
    for n in (1, 5):
        obs = np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32)
        action, *others = session_of(found.model).run(list(outputs), {"obs": obs})
        np.testing.assert_allclose(action, policy.predict(obs)[0], rtol=1e-4, atol=1e-5)
        for name, values in zip(list(outputs)[1:], others, strict=True):
            expected = getattr(policy.distribution(obs), name).detach()
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for weights in policy.module.parameters():
            weights *= -1
    with pytest.raises(ConfigError, match=f"algo {algo}"):
        graph.compare_with_torch(graph.ActingStep(policy), found.model, {"obs"})


def test_a_graph_has_what_actions_are_drawn_by_or_valued_with(tmp_path: Path) -> None:
    dqn = ("--dqn.replay_size=10000", "--dqn.reward_scale=0.1")
    for algo, env, flags in (("dqn", VECTORS, dqn), ("sac", REACH, ()), ("td3", REACH, ())):
        policy, obs = policy_of(tmp_path / algo, algo, env, *SMALL, *flags), np.full((3, 5), 0.5, np.float32)
        step = graph.ActingStep(policy)
        example = dict(zip(step.inputs, step.example(), strict=True)) | {"obs": torch.from_numpy(obs)}
        wanted: dict[str, Any] = {"action": torch.from_numpy(policy.predict(obs)[0])}
        if algo == "dqn":
            wanted["action_values"] = policy.action_values(obs)
        elif algo == "sac":
            drawn: Any = policy.distribution(obs)
            wanted |= {"mean": drawn.mean, "stddev": drawn.stddev}
        torch.testing.assert_close(step.compute_outputs(*example.values()), wanted)


@pytest.mark.slow
def test_a_step_that_decides_is_refused_in_a_sentence(tmp_path: Path) -> None:
    policy = load(policy_run(tmp_path, "ppo", VECTORS, *SMALL), **EXPORT_SETTINGS)
    honest = policy.algorithm.act

    def act(net: Any, inputs: Any, core: Any, sampling: Any) -> Any:
        return honest(net, inputs._replace(obs=abs(inputs.obs)) if inputs.obs.sum() > 0 else inputs, core, sampling)

    policy.algorithm.act = act
    with pytest.raises(ConfigError, match="algo ppo") as refused:
        graph.export_graph(policy)
    assert "\n" not in str(refused.value)
