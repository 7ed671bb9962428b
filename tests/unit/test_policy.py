"""A saved policy acts in any loop as the broker acts with it, and refuses what does not fit it in a sentence."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.build.batches import NESTED, REACH, VECTORS
from tests.build.brokers import ask, serving
from tests.build.errors import refuses
from tests.build.folders import policy_run
from tests.build.nets import GRU
from zerobeast.api.export import export
from zerobeast.api.policies import evaluate, load
from zerobeast.common.config.load import load_config as settings
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, iterate_arrays, step_record
from zerobeast.plan.spaces import check_opponent
from zerobeast.playing.policy import LATE_STEP, Policy
from zerobeast.playing.step_summary import summarize_step
from zerobeast.rl.acting.opponents import main
from zerobeast.services.envserver.spaces import env_spec

N = 64
OBS = np.linspace(-1, 1, 5 * N).reshape(N, 5)
BOTH = replace(VECTORS, env_id="Vectors-v0,Others-v0")
STACKED = EnvSpec("Stacked-v0", ArraySpace.box((3,)), ArraySpace.discrete(4), frame_stack=3)


@pytest.mark.parametrize(("algo", "greedy", "wanted"), [("td3", True, 1.0), ("ddpg", True, 1.0), ("sac", False, 0.99)])
def test_no_noise_or_random_first_steps_are_played(tmp_path: Path, algo: str, *, greedy: bool, wanted: float) -> None:
    policy = load(policy_run(tmp_path, algo, REACH, f"--{algo}.replay_size=10000"))
    with torch.no_grad():
        policy.module.mlp.out.bias[: REACH.action.shape[0]] = 20.0  # all that is highest
    actions, _ = policy.predict(np.zeros((N, 5)), deterministic=greedy)
    high = np.array(REACH.action.high)
    assert (actions >= wanted * high - (1 - wanted) * abs(high)).all()
    assert (actions <= high).all()


@pytest.mark.parametrize(
    ("algo", "env", "flags"),
    [
        ("impala", NESTED, ("--net.core=lstm", "--net.core_width=8", "--net.normalize_obs")),
        ("ppo", STACKED, ("--net.last_action_reward=always",)),
        ("dqn", STACKED, ("--dqn.replay_size=10000",)),
        ("r2d2", VECTORS, ("--r2d2.burn_in=0", f"--net.core={GRU}", "--net.core_width=8")),
    ],
)
def test_any_loop_gets_the_actions_of_the_broker(tmp_path: Path, algo: str, env: EnvSpec, flags: tuple[str]) -> None:
    own: dict[str, Any] = {"net": {"core": GRU}} if algo == "r2d2" else {}
    policy = load(policy_run(tmp_path, algo, env, *flags), broker={"device": "cpu"}, **own)
    broker = serving(policy.algorithm, 2)
    broker.advance(LATE_STEP)
    broker.reseed(3)
    policy.seed(3)
    draw, state = np.random.default_rng(1), None
    for step in range(8):
        rows = np.zeros(2, step_record(env).dtype)
        for space, column in iterate_arrays(env.obs, rows["obs"]):
            high = space.sizes[0] if space.kind == "discrete" else 5
            column[...] = draw.integers(0, high, column.shape)
        rows["first"] = [step in (0, 4), step in (0, 5)]
        rows["reward"] = draw.normal(size=2)
        if env.action_mask:
            rows["action_mask"] = True
        wanted = ask(broker, rows, [0, 1])["action"]
        obs, first, reward = (rows[name] for name in ("obs", "first", "reward"))
        actions, state = policy.predict(obs, state, first, deterministic=False, last_reward=reward)
        found = (iterate_arrays(env.action, each) for each in (wanted, actions))
        for (space, theirs), (_, ours) in zip(*found, strict=True):
            low, high = space.bounds if space.kind == "box" else (None, None)
            np.testing.assert_allclose(ours, np.clip(theirs, low, high) if space.kind == "box" else theirs, rtol=1e-5)


def test_one_environment_needs_no_batch_and_its_answer_is_that_of_a_batch(tmp_path: Path) -> None:
    policy = load(policy_run(tmp_path, "impala", NESTED, "--net.core=lstm"))
    obs = {"camera": np.ones((6, 8)), "word": 3}
    action, state = policy.predict(obs)
    assert (action["aim"].shape, type(action["go"]), action["go"][0].shape) == ((2,), tuple, (2,))
    both, _ = policy.predict({name: np.array([value, value]) for name, value in obs.items()})
    np.testing.assert_allclose(both["aim"], [action["aim"]] * 2, rtol=1e-5)
    given = {"last_reward": 1.0, "action_mask": np.ones(NESTED.mask_size, bool)}
    assert policy.value(obs, state, **given).shape == ()
    assert policy.distribution(obs, state, **given).entropy().requires_grad


def test_what_is_predicted_is_likeliest_or_best_by_the_parameters_of_the_checkpoint(tmp_path: Path) -> None:
    folder = policy_run(tmp_path, "sac", REACH, "--sac.replay_size=10000")
    sac, dqn = load(folder), load(policy_run(tmp_path / "b", "dqn", VECTORS, "--dqn.replay_size=10000"))
    drawn = sac.distribution(OBS)
    np.testing.assert_allclose(drawn.mode().detach(), sac.predict(OBS)[0], rtol=1e-4, atol=1e-5)
    assert torch.isfinite(drawn.log_prob(drawn.sample(torch.Generator()))).all()
    held = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    assert held.keys() == sac.state_dict().keys()
    assert all(torch.equal(held[name], value) for name, value in sac.state_dict().items())
    assert torch.equal(dqn.value(OBS), dqn.action_values(OBS).max(-1).values)
    np.testing.assert_array_equal(dqn.action_values(OBS).argmax(-1), dqn.predict(OBS)[0])
    for absent in (sac.value, dqn.distribution):
        with pytest.raises(ConfigError, match="algo"):
            absent(OBS)


def test_values_that_r2d2_has_rescaled_are_returns(tmp_path: Path) -> None:
    found = []
    for scale, rescaling in ((1, "false"), (0.5, "true")):
        flags = (f"--r2d2.reward_scale={scale}", f"--r2d2.value_rescaling={rescaling}", "--r2d2.burn_in=0")
        policy = load(policy_run(tmp_path / rescaling, "r2d2", VECTORS, *flags))
        with torch.no_grad():
            policy.module.state_dict()[[name for name in policy.module.state_dict() if "bias" in name][-1]].fill_(20.0)
        found.append(policy.action_values(OBS).double().detach())
    raw, returns = found[0], found[1] * 0.5
    h = returns.sign() * ((returns.abs() + 1).sqrt() - 1) + 1e-3 * returns
    torch.testing.assert_close(h, raw, rtol=1e-4, atol=1e-4)
    assert returns.abs().max() > 100
    torch.testing.assert_close(policy.value(OBS), policy.action_values(OBS).max(-1).values)


def test_values_in_deviations_of_returns_are_in_the_environments_units_after_an_export_too(tmp_path: Path) -> None:
    raw = load(policy_run(tmp_path / "raw", "ppo", VECTORS, "--ppo.normalize_returns=false"))
    folder = policy_run(tmp_path, "ppo", VECTORS, "--ppo.normalize_returns=true", "--ppo.reward_scale=0.5")
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    state["learning"]["return_scale"] |= {"variance": torch.tensor(9.0), "count": torch.tensor(100.0)}
    torch.save(state, folder / "checkpoint.pt")
    torch.testing.assert_close(load(folder).value(OBS), 6 * raw.value(OBS))
    torch.testing.assert_close(load(export(folder, tmp_path / "out")).value(OBS), 6 * raw.value(OBS))
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    for unit in (-1.0, "x", 10**400):
        (tmp_path / "out" / "config.json").write_text(json.dumps(about | {"unit": unit}))
        with pytest.raises(CheckpointError, match="unit"):
            load(tmp_path / "out")
    for damage in ({"variance": torch.ones(2)}, {"variance": torch.tensor(torch.inf)}, {"mean": 7}, {"more": 1}):
        state["learning"]["return_scale"] |= damage
        torch.save(state, folder / "checkpoint.pt")
        with pytest.raises(CheckpointError, match="unit"):
            load(folder)


@pytest.mark.parametrize("algo", ["dqn", "c51", "ppo", "impala"])
def test_each_of_several_environments_has_its_own_value(tmp_path: Path, algo: str) -> None:
    flags = ("--impala.popart=true", "--impala.reward_scale=1") if algo == "impala" else ()
    policy = load(policy_run(tmp_path, algo, BOTH, *flags))
    before = [policy.value(OBS, env=env) for env in ("Vectors-v0", "Others-v0")]
    shown = [summarize_step(policy, OBS, None, np.zeros(N, int), env).value for env in ("Vectors-v0", "Others-v0")]
    assert shown == [pytest.approx(values[0].item()) for values in before]
    with refuses("env"):
        policy.value(OBS, env="Mine-v0")
    if algo == "impala":
        with torch.no_grad():
            policy.module.value.bias += torch.tensor([0.0, 5.0])
        torch.testing.assert_close(policy.value(OBS, env="Vectors-v0"), before[0])
        torch.testing.assert_close(policy.value(OBS, env="Others-v0"), before[1] + 5)
        torch.testing.assert_close(policy.value(OBS), before[0], msg="the first, if it could be either")


def test_a_checkpoint_needs_no_folder_and_what_is_shown_of_clipped_rewards_says_so(tmp_path: Path) -> None:
    flags = ("--learner.endpoint=tcp://far:5560", "--ppo.reward_clipping=abs_one")
    folder = policy_run(tmp_path, "ppo", VECTORS, *flags)
    shutil.copy(folder / "checkpoint.pt", tmp_path / "best.pt")
    policies = [load(folder), load(tmp_path / "best.pt"), load("run", root=tmp_path)]
    ends = {policy.config.learner.endpoint for policy in policies}
    assert ends == {RunConfig().learner.endpoint}, "what is loaded reaches nobody"
    assert len({policy.predict(np.ones(5))[0] for policy in policies}) == 1
    assert [summarize_step(policy, OBS, None, np.zeros(N, int)).clipped for policy in policies] == [True] * 3
    assert not summarize_step(load(folder, ppo={"reward_clipping": "none"}), OBS, None, np.zeros(N, int)).clipped


GOOD = np.zeros((2, 5))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load(policy_run(tmp_path_factory.mktemp("policy"), "impala", VECTORS))


def test_an_argument_that_does_not_fit_is_refused_by_its_name(tmp_path: Path, policy: Policy) -> None:
    seeing = load(policy_run(tmp_path, "impala", VECTORS, "--net.last_action_reward=always"))
    recurrent = load(policy_run(tmp_path / "r", "impala", VECTORS, "--net.core=lstm"))
    parts = load(policy_run(tmp_path / "b", "impala", NESTED))
    masked = load(policy_run(tmp_path / "m", "impala", NESTED, "--env.action_mask=mask"))
    state = seeing.predict(GOOD)[1]
    whole, none = {"camera": np.zeros((6, 8)), "word": 1}, np.zeros(NESTED.mask_size, np.int8)
    wrong: list[tuple[str, Policy, Any, Any, dict[str, Any]]] = [
        ("obs", policy, np.zeros(4), None, {}),
        ("obs", policy, np.zeros((0, 5)), None, {}),
        ("obs", policy, [[1, 2, 3, 4, 5], [1]], None, {}),
        ("obs", policy, ["a"] * 5, None, {}),
        ("obs", policy, np.full(5, np.nan), None, {}),
        ("obs", policy, torch.ones(1, requires_grad=True), None, {}),
        ("obs", parts, {"camera": 1}, None, {}),
        ("state", policy, GOOD, "x", {}),
        ("state", seeing, np.zeros(5), state, {}),
        ("state", recurrent, GOOD, state, {"last_reward": [0, 0]}),
        ("episode_start", policy, GOOD, None, {"episode_start": [True]}),
        ("last_action", policy, GOOD, None, {"last_action": [0, 9]}),
        ("last_action", policy, GOOD, None, {"last_action": [0.5, 0]}),
        ("last_reward", policy, GOOD, None, {"last_reward": [[1], [2]]}),
        ("last_reward", seeing, GOOD, state, {}),
        ("action_mask", policy, GOOD, None, {"action_mask": [1, 0, 0]}),
        ("action_mask", parts, whole, None, {"action_mask": none.astype(bool)}),
        ("action_mask", masked, whole, None, {}),
        ("action_mask", masked, whole | {"mask": none}, None, {}),
    ]
    for name, asked, obs, given_state, given in wrong:
        with pytest.raises(ConfigError, match=f"^{name}\\b"):
            asked.predict(obs, given_state, **given)


def test_actions_are_those_of_evaluations_unless_asked_otherwise(tmp_path: Path) -> None:
    for actions, other in (("greedy", False), ("sampled", True)):
        policy = load(policy_run(tmp_path / actions, "impala", VECTORS, f"--evaluate.actions={actions}"))
        for asked, varies in ((None, other), (other, not other)):
            chosen = policy.predict(np.zeros((N, 5)), deterministic=asked)[0]
            assert (len(np.unique(chosen)) > 1) == varies


PAIR = spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[5, -1])])
SPACES = spaces.Dict({"gear": spaces.Discrete(3, start=1), "pair": PAIR})


def test_choices_count_from_where_the_spaces_of_the_environment_do(tmp_path: Path) -> None:
    policy = load(policy_run(tmp_path, "impala", env_spec("Gears-v0", SPACES, SPACES).for_policies()))
    one = env_spec("Gear-v0", spaces.Discrete(4, start=-2), spaces.Discrete(2, start=7)).for_policies()
    single = load(policy_run(tmp_path / "b", "ppo", one))
    SPACES.seed(1)
    state = None
    for _ in range(20):
        action, state = policy.predict(SPACES.sample(), state, deterministic=False)
        assert SPACES.contains(action)
        assert single.predict(-2)[0] in (7, 8)
    assert policy.predict(SPACES.sample(), state, last_action=action)[1].action["gear"].max() < 3
    with pytest.raises(ConfigError, match=r"^obs"):
        single.predict(2)
    rows = single.of_rows()
    assert rows.predict(3)[0] == single.predict(1)[0] - 7, "rows of env-servers count from 0"


def test_each_of_several_environments_gives_its_own_observations_and_takes_its_own_actions(tmp_path: Path) -> None:
    sizes = {"A-v0": [2, 0, 4], "B-v0": [3, 0, 6], "C-v0": [2, 1, 4]}
    several = EnvSpec(",".join(sizes), ArraySpace.box((6,)), ArraySpace.discrete(3), action_mask=True)
    policy = load(policy_run(tmp_path, "impala", several, f"--env.sizes={json.dumps(sizes)}"))
    small, large = np.ones((N, 4)), np.ones((N, 6))
    padded, mask = np.pad(small, ((0, 0), (0, 2))), np.array([[True, True, False]] * N)
    torch.testing.assert_close(policy.value(small, env="A-v0"), policy.of_rows().value(padded, action_mask=mask))
    assert policy.distribution(small, env="A-v0").probs[:, 2].max() == 0
    assert set(policy.predict(small, deterministic=False, env="A-v0")[0]) == {0, 1}
    assert set(policy.predict(small, deterministic=False, env="C-v0")[0]) == {1, 2}
    assert set(policy.predict(large, deterministic=False)[0]) == {0, 1, 2}, "no other has that size"
    assert set(policy.predict(small, action_mask=[[False, True]] * N, env="A-v0")[0]) == {1}
    with refuses("env"):
        policy.predict(small)
    for wrong, given in ((np.ones(5), {}), ([[1], [1, 2]], {"env": "A-v0"}), (1.0, {"env": "A-v0"})):
        with pytest.raises(ConfigError, match=r"^obs"):
            policy.predict(wrong, **given)


def test_networks_are_float32_whatever_a_script_computes_with(tmp_path: Path) -> None:
    folder = policy_run(tmp_path, "impala", REACH, "--net.core=lstm")
    torch.set_default_dtype(torch.float64)
    try:
        policy = load(folder)
        policy.predict(GOOD, policy.predict(GOOD)[1], deterministic=False, last_reward=[0, 0])
        about = policy.distribution(GOOD).entropy()
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert about.dtype == next(policy.module.parameters()).dtype == torch.float32


def test_a_run_that_cannot_be_loaded_is_refused(tmp_path: Path, policy: Policy) -> None:
    folder = policy_run(tmp_path, "impala", VECTORS)
    config = folder / "config.yaml"
    with pytest.raises(CheckpointError):
        load(folder, net={"hidden_size": 8})
    for algo in ("mine", "evil:SPEC"):
        config.write_text(f"algo: {algo}")
        with pytest.raises(ConfigError, match="algo"):
            load(folder)
    for missing in ("rnu", 3):
        with pytest.raises(ConfigError, match="run"):
            load(missing, root=tmp_path)
    for name, value in (("episodes", "all"), ("seed", 2**70), ("max_steps", np.float64(0.5))):
        with pytest.raises(ConfigError, match=f"evaluate.{name}"):
            evaluate(policy, **{name: value})
    with pytest.raises(ConfigError, match=r"net\.hidden_size"):
        evaluate(policy, net={"hidden_size": 8})
    policy.refuse_unlike(replace(VECTORS, env_id="Other-v0", obs=ArraySpace.box((5,), low=(0.0,))))
    with pytest.raises(CheckpointError, match=r"obs\.shape"):
        policy.refuse_unlike(replace(VECTORS, obs=ArraySpace.box((4,), low=(0.0,))))


@pytest.mark.slow
def test_the_opponent_of_a_run_is_checked_by_another_process_which_loads_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = policy_run(tmp_path, "impala", VECTORS)
    config = settings(["--env", VECTORS.env_id, "--env.opponent", str(run)], {})
    with pytest.raises(ConfigError, match=r"^env\.opponent"):
        check_opponent(config, REACH)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(VECTORS.to_wire())))
    assert main(str(run), ".") == 0
