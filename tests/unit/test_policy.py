"""A saved policy acts in any loop as the broker acts with it, and refuses what does not fit it in a sentence."""

import io
import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.build.batches import NESTED, REACH, VECTORS
from zerobeast.api.export import export
from zerobeast.api.saved import evaluate, load
from zerobeast.clients.policy import LATE
from zerobeast.common.config.load import dump
from zerobeast.common.config.load import load as settings
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.records import act_record, step_record
from zerobeast.common.wire.spaces import ArraySpace, by_array
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.launcher.spaces import check_opponent
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.acting.opponents import main
from zerobeast.services.envserver.spaces import env_spec
from zerobeast.services.evaluator.outlook import outlook
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.update import Trainer

N = 64
STACKED = EnvSpec("Stacked-v0", ArraySpace.box((3,)), ArraySpace.discrete(4), frame_stack=3)


def saved(folder: Path, algo: str, env: EnvSpec, *flags: str, bias: float = 0.0) -> Path:
    """A run that has not ended its random first steps; `bias` is added to what the policy wants."""
    given = ["--env", env.env_id, "--preset", "classic", "--algo", algo, "--name", "run", "--root", str(folder)]
    config = settings([*given, *flags], {})
    trainer = Trainer(config, torch.device("cpu"), env)
    if bias:
        with torch.no_grad():
            trainer.net.mlp.out.bias[: env.action.shape[0]] = bias
    config.folder.mkdir(exist_ok=True, parents=True)
    (config.folder / "config.yaml").write_text(dump(config))
    Checkpoints(config.folder).save({**trainer.state(), "statistics": {}, "rollouts": {}})
    return config.folder


@pytest.mark.parametrize(("algo", "greedy", "wanted"), [("td3", True, 1.0), ("ddpg", True, 1.0), ("sac", False, 0.99)])
def test_neither_noise_nor_random_first_steps_are_played(
    tmp_path: Path, algo: str, *, greedy: bool, wanted: float
) -> None:
    policy = load(saved(tmp_path, algo, REACH, f"--{algo}.replay_size=10000", bias=20.0))
    actions, _ = policy.predict(np.zeros((N, 5)), deterministic=greedy)
    high = np.array(REACH.action.high)
    assert (actions >= wanted * high - (1 - wanted) * abs(high)).all()
    assert (actions <= high).all()


@pytest.mark.parametrize(
    ("algo", "env", "flags"),
    [
        ("impala", NESTED, ("--net.use_lstm", "--net.lstm_size=8", "--net.normalize_obs")),
        ("ppo", STACKED, ("--net.last_action_reward=always",)),
        ("dqn", STACKED, ("--dqn.replay_size=10000",)),
        ("r2d2", VECTORS, ("--r2d2.burn_in=0", "--net.use_lstm", "--net.lstm_size=8")),
    ],
)
def test_any_loop_gets_the_actions_of_the_broker(tmp_path: Path, algo: str, env: EnvSpec, flags: tuple[str]) -> None:
    policy = load(saved(tmp_path, algo, env, *flags), broker={"device": "cpu"})
    broker = Inference(policy.algorithm, max_rows=2, device=torch.device("cpu"), dtype=torch.float32, seed=0)
    broker.reserve(2)
    broker.advance(LATE)
    broker.reseed(3)
    policy.seed(3)
    draw, state = np.random.default_rng(1), None
    for step in range(8):
        rows = np.zeros(2, step_record(env).dtype)
        for space, column in by_array(env.obs, rows["obs"]):
            high = space.sizes[0] if space.kind == "discrete" else 5
            column[...] = draw.integers(0, high, column.shape)
        rows["first"] = [step in (0, 4), step in (0, 5)]
        rows["reward"] = draw.normal(size=2)
        if env.action_mask:
            rows["action_mask"] = True
        broker.batch.rows[:] = rows.view(np.uint8).reshape(2, -1)
        broker.batch.slots[:] = range(2)
        broker.submit(2, with_cores=False)
        wanted = broker.acts.view(act_record(env, policy.algorithm.policy).dtype)[:, 0]["action"]
        actions, state = policy.predict(
            rows["obs"], state, rows["first"], deterministic=False, last_reward=rows["reward"]
        )
        for (space, theirs), (_, ours) in zip(by_array(env.action, wanted), by_array(env.action, actions), strict=True):
            low, high = space.bounds if space.kind == "box" else (None, None)
            np.testing.assert_allclose(ours, np.clip(theirs, low, high) if space.kind == "box" else theirs, rtol=1e-5)


def test_one_environment_needs_no_batch_and_its_answer_is_that_of_a_batch(tmp_path: Path) -> None:
    policy = load(saved(tmp_path, "impala", NESTED, "--net.use_lstm"))
    obs = {"camera": np.ones((6, 8)), "word": 3}
    action, state = policy.predict(obs)
    assert (action["aim"].shape, type(action["go"]), action["go"][0].shape) == ((2,), tuple, (2,))
    batch = {name: np.array([value, value]) for name, value in obs.items()}
    both, _ = policy.predict(batch)
    np.testing.assert_allclose(both["aim"], [action["aim"]] * 2, rtol=1e-5)
    given = {"last_reward": 1.0, "action_mask": np.ones(NESTED.mask_size, bool)}
    policy.predict(obs, state, False, **given)
    assert policy.value(obs, state, **given).shape == ()
    assert policy.distribution(obs, state, **given).entropy().requires_grad


def test_distribution_and_value_are_those_of_the_network_and_its_parameters_those_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    folder = saved(tmp_path, "sac", REACH, "--sac.replay_size=10000")
    sac, obs = load(folder), np.linspace(-1, 1, 5 * N).reshape(N, 5)
    drawn = sac.distribution(obs)
    np.testing.assert_allclose(drawn.mode().detach(), sac.predict(obs)[0], rtol=1e-4, atol=1e-5)
    assert torch.isfinite(drawn.log_prob(drawn.sample(torch.Generator()))).all()
    held = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    assert held.keys() == sac.state_dict().keys()
    assert all(torch.equal(held[name], value) for name, value in sac.state_dict().items())
    with pytest.raises(ConfigError, match=r"^algo sac: its policy has no value, expected an algorithm that has one$"):
        sac.value(obs)
    dqn = load(saved(tmp_path / "b", "dqn", VECTORS, "--dqn.replay_size=10000"))
    best = dqn.module(dqn._step(obs, None).inputs, torch.zeros(N, 0))[0][0].max(-1).values
    assert torch.equal(dqn.value(obs), best)
    with pytest.raises(ConfigError, match="algo dqn: its policy has no distribution"):
        dqn.distribution(obs)


OBS = np.linspace(-1, 1, 5 * N).reshape(N, 5)


def answers_to(policy: Any, obs: Any, task: int = 0) -> Any:
    """What the network answers to first observations of episodes."""
    inputs, core, *_ = policy._step(obs, None)
    given = (torch.full((N,), task),) if hasattr(policy.module, "value_scale") else ()
    return policy.module(inputs, core, *given)[0]


def test_values_of_scaled_rewards_are_in_the_environments_units(tmp_path: Path) -> None:
    for algo in ("impala", "dqn"):
        flags = (f"--{algo}.reward_scale=0.1", *(["--dqn.replay_size=10000"] * (algo == "dqn")))
        policy = load(saved(tmp_path / algo, algo, VECTORS, *flags))
        found = answers_to(policy, OBS)
        raw = found.value[0] if algo == "impala" else found[0].max(-1).values
        torch.testing.assert_close(policy.value(OBS), 10 * raw)
        assert raw.abs().max() > 1e-4
    torch.testing.assert_close(policy.action_values(OBS), 10 * found[0])


def test_values_that_r2d2_has_rescaled_are_returns(tmp_path: Path) -> None:
    flags = ("--r2d2.reward_scale=0.5", "--r2d2.burn_in=0", "--r2d2.value_rescaling=true")
    policy = load(saved(tmp_path, "r2d2", VECTORS, *flags))
    with torch.no_grad():
        policy.module.state_dict()[[name for name in policy.module.state_dict() if "bias" in name][-1]].fill_(20.0)
        raw, returns = answers_to(policy, OBS)[0].double(), policy.action_values(OBS).double() * 0.5
        value = policy.value(OBS)
    h = returns.sign() * ((returns.abs() + 1).sqrt() - 1) + 1e-3 * returns
    torch.testing.assert_close(h, raw, rtol=1e-4, atol=1e-4)
    assert returns.abs().max() > 100
    torch.testing.assert_close(value, policy.action_values(OBS).max(-1).values)


def test_values_in_deviations_of_returns_are_in_the_environments_units_after_an_export_too(tmp_path: Path) -> None:
    folder = saved(tmp_path, "ppo", VECTORS, "--ppo.normalize_returns=true", "--ppo.reward_scale=0.5")
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    state["learning"]["return_scale"] |= {"variance": torch.tensor(9.0), "count": torch.tensor(100.0)}
    torch.save(state, folder / "checkpoint.pt")
    policy = load(folder)
    raw = answers_to(policy, OBS).value[0]
    torch.testing.assert_close(policy.value(OBS), 6 * raw)
    torch.testing.assert_close(load(export(folder, tmp_path / "out")).value(OBS), 6 * raw)
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    for unit in (-1.0, None, "x", 10**400, [1]):
        (tmp_path / "out" / "config.json").write_text(json.dumps(about | {"unit": unit}))
        with pytest.raises(CheckpointError, match=r"out: (unit of values -1.0, expected|no unit of values)"):
            load(tmp_path / "out")
    for damage in ({"variance": torch.ones(2)}, {"variance": torch.tensor(torch.inf)}, {"mean": 7}, {"more": 1}):
        state["learning"]["return_scale"] |= damage
        torch.save(state, folder / "checkpoint.pt")
        with pytest.raises(CheckpointError, match=r"checkpoint.pt: .*unit of values"):
            load(folder)


def test_each_of_several_environments_has_its_own_value(tmp_path: Path) -> None:
    both = replace(VECTORS, env_id="Vectors-v0,Others-v0")
    policy = load(saved(tmp_path, "impala", both, "--impala.popart=true", "--impala.reward_scale=1"))
    with torch.no_grad():
        policy.module.value.bias += torch.tensor([0.0, 5.0])
    for task, env in enumerate(("Vectors-v0", "Others-v0")):
        torch.testing.assert_close(policy.value(OBS, env=env), answers_to(policy, OBS, task).value[0])
    torch.testing.assert_close(policy.value(OBS), policy.value(OBS, env="Vectors-v0"))
    assert (policy.value(OBS, env="Others-v0") > policy.value(OBS)).all()
    shown = outlook(policy, OBS, None, np.zeros(N, int), "Others-v0").value
    assert shown == pytest.approx(policy.value(OBS, env="Others-v0")[0].item())
    with pytest.raises(
        ConfigError, match=r"^env is 'Mine-v0', expected one of the run's environments: Vectors-v0, Oth"
    ):
        policy.value(OBS, env="Mine-v0")


@pytest.mark.parametrize("algo", ["dqn", "c51", "rainbow", "ppo"])
def test_every_algorithm_with_values_has_those_of_each_environment(tmp_path: Path, algo: str) -> None:
    policy = load(saved(tmp_path, algo, replace(VECTORS, env_id="Vectors-v0,Others-v0")))
    for env in ("Vectors-v0", "Others-v0"):
        assert policy.value(OBS, env=env).shape == (N,)
        shown = outlook(policy, OBS, None, np.zeros(N, int), env).value
        assert shown == pytest.approx(policy.value(OBS, env=env)[0].item())


def test_what_is_shown_of_clipped_rewards_says_so(tmp_path: Path) -> None:
    for clipping, clipped in (("abs_one", True), ("none", False)):
        policy = load(saved(tmp_path / clipping, "impala", VECTORS, f"--impala.reward_clipping={clipping}"))
        assert outlook(policy, OBS, None, np.zeros(N, int)).clipped == clipped


def test_a_checkpoint_needs_no_folder(tmp_path: Path) -> None:
    folder = saved(tmp_path, "ppo", VECTORS, "--learner.endpoint=tcp://far:5560")
    shutil.copy(folder / "checkpoint.pt", tmp_path / "best.pt")
    ends = {load(place).config.learner.endpoint for place in (folder, tmp_path / "best.pt")}
    assert ends == {RunConfig().learner.endpoint}, "what is loaded reaches nobody"
    assert load(tmp_path / "best.pt").predict(np.ones(5))[0] == load("run", root=tmp_path).predict(np.ones(5))[0]


GOOD = np.zeros((2, 5))


@pytest.mark.parametrize(
    ("arguments", "given", "sentence"),
    [
        ((np.zeros(4),), {}, "obs has shape [4], expected [5], or [N, 5]"),
        ((np.zeros((0, 5)),), {}, "obs has shape [0, 5], expected [5], or [N, 5]"),
        (([[1, 2, 3, 4, 5], [1]],), {}, "obs is [[1, 2, 3, 4, 5], [1]], expected numbers"),
        ((["a"] * 5,), {}, "obs is array([['a', 'a', 'a', 'a', 'a']], dtype='<U1') of type <U1, expected float32"),
        ((np.full(5, np.nan),), {}, "obs is array([[nan, nan, nan, nan, nan]]), expected finite numbers"),
        ((GOOD, "x"), {}, "state is 'x', expected what predict of this policy returned for 2, or None"),
        ((GOOD, None, [True]), {}, "episode_start has shape [1], expected [2]"),
        (
            (GOOD,),
            {"last_action": [0, 9]},
            "last_action of environment 1 holds the choice 9, expected 0 to 2",
        ),
        ((GOOD,), {"last_action": [0.5, 0]}, "last_action is array([0.5, 0. ]), expected values of int64"),
        ((GOOD,), {"last_reward": [[1], [2]]}, "last_reward has shape [2, 1], expected [2]"),
        ((GOOD,), {"action_mask": [1, 0, 0]}, "action_mask is [1, 0, 0], expected None: Vectors-v0 has no masks"),
        ((torch.ones(1, requires_grad=True),), {}, "obs is tensor([1.], requires_grad=True), expected numbers"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    tmp_path: Path, arguments: tuple[Any, ...], given: dict[str, Any], sentence: str
) -> None:
    policy = load(saved(tmp_path, "impala", VECTORS))
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        policy.predict(*arguments, **given)


@pytest.mark.parametrize(
    ("asked", "actions", "varies"),
    [(None, "greedy", False), (None, "sampled", True), (True, "sampled", False), (False, "greedy", True)],
)
def test_actions_are_those_of_evaluations_unless_asked_otherwise(
    tmp_path: Path, asked: bool | None, actions: str, *, varies: bool
) -> None:
    policy = load(saved(tmp_path, "impala", VECTORS, f"--evaluate.actions={actions}"))
    chosen = policy.predict(np.zeros((N, 5)), deterministic=asked)[0]
    assert (len(np.unique(chosen)) > 1) == varies


SPACES = spaces.Dict(
    {"gear": spaces.Discrete(3, start=1), "pair": spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[5, -1])])}
)


def test_choices_count_from_where_the_spaces_of_the_environment_do(tmp_path: Path) -> None:
    spec = env_spec("Gears-v0", SPACES, SPACES).for_policies()
    policy, single = (
        load(saved(tmp_path, "impala", spec)),
        load(
            saved(
                tmp_path / "b",
                "ppo",
                env_spec("Gear-v0", spaces.Discrete(4, start=-2), spaces.Discrete(2, start=7)).for_policies(),
            )
        ),
    )
    SPACES.seed(1)
    state = None
    for _ in range(20):
        action, state = policy.predict(SPACES.sample(), state, deterministic=False)
        assert SPACES.contains(action)
        assert single.predict(-2)[0] in (7, 8)
    assert policy.predict(SPACES.sample(), state, last_action=action)[1].action["gear"].max() < 3
    with pytest.raises(ConfigError, match=r"^obs of environment 0 holds the choice 2, expected -2 to 1$"):
        single.predict(2)
    rows = single.of_rows()
    assert rows.predict(3)[0] == single.predict(1)[0] - 7, "rows of env-servers count from 0"


SIZES = {"A-v0": [2, 0, 4], "B-v0": [3, 0, 6], "C-v0": [2, 1, 4]}


@pytest.mark.parametrize("names", [("A-v0", "B-v0"), ("A-v0", "B-v0", "C-v0")])
def test_each_of_several_environments_gives_its_own_observations_and_takes_its_own_actions(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    both = EnvSpec(",".join(names), ArraySpace.box((6,)), ArraySpace.discrete(3), action_mask=True)
    sizes = json.dumps({name: SIZES[name] for name in names})
    policy = load(saved(tmp_path, "impala", both, f"--env.sizes={sizes}"))
    small, large = np.ones((N, 4)), np.ones((N, 6))
    padded, mask = np.pad(small, ((0, 0), (0, 2))), np.array([[True, True, False]] * N)
    rows, own = policy.of_rows(), {"env": "A-v0"} if len(names) > 2 else {}
    torch.testing.assert_close(policy.value(small, **own), rows.value(padded, action_mask=mask))
    assert policy.distribution(small, **own).probs[:, 2].max() == 0
    assert set(policy.predict(small, deterministic=False, **own)[0]) == {0, 1}
    assert set(policy.predict(large, deterministic=False)[0]) == {0, 1, 2}
    first = policy.predict(small, action_mask=[[False, True]] * N, **own)[0]
    assert set(first) == {1}
    if own:
        assert set(policy.predict(small, deterministic=False, env="C-v0")[0]) == {1, 2}
        with pytest.raises(ConfigError, match=r"^env is '', expected one of A-v0, C-v0, whose observations have the "):
            policy.predict(small)
    with pytest.raises(ConfigError, match=r"^obs has shape \[5\], expected \[6\]"):
        policy.predict(np.ones(5))
    for wrong, shown in (
        ([[1], [1, 2]], r"\[\[1\], \[1, 2\]\], expected numbers"),
        (1.0, r"shape \[\], expected \[6\]"),
    ):
        with pytest.raises(ConfigError, match=f"^obs (is|has) {shown}"):
            policy.predict(wrong, env="A-v0")
    with pytest.raises(ConfigError, match=r"^env is 'X', expected one of the run's environments: A-v0"):
        policy.predict(large, env="X")


def test_networks_are_float32_whatever_a_script_computes_with(tmp_path: Path) -> None:
    for algo, env in (("impala", NESTED), ("dqn", VECTORS), ("sac", REACH)):
        flags = ["--dqn.replay_size=10000"] * (algo == "dqn") + ["--net.use_lstm"] * (algo == "impala")
        folder, obs = saved(tmp_path / algo, algo, env, *flags), {"camera": np.zeros((2, 6, 8)), "word": [0, 1]}
        torch.set_default_dtype(torch.float64)
        try:
            policy, seen = load(folder), obs if env is NESTED else np.zeros((2, 5))
            state = policy.predict(seen)[1]
            policy.predict(seen, state, deterministic=False, last_reward=[0, 0])
            about = policy.action_values(seen) if algo == "dqn" else policy.distribution(seen).entropy()
            assert torch.get_default_dtype() is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
        assert about.dtype == next(policy.module.parameters()).dtype == torch.float32


def test_a_state_of_others_a_missing_reward_and_a_missing_part_are_refused(tmp_path: Path) -> None:
    policy = load(saved(tmp_path, "impala", VECTORS, "--net.last_action_reward=always"))
    state = policy.predict(GOOD)[1]
    with pytest.raises(
        ConfigError, match=r"^state is that of 2, expected what predict of this policy returned for 1, or None$"
    ):
        policy.predict(np.zeros(5), state)
    recurrent = load(saved(tmp_path / "r", "impala", VECTORS, "--net.use_lstm"))
    with pytest.raises(ConfigError, match=r"^state is that of 2, expected what predict of this policy returned for 2"):
        recurrent.predict(GOOD, state, last_reward=[0, 0])
    with pytest.raises(ConfigError, match=r"^last_reward is None, expected \[N\] numbers for the network"):
        policy.predict(GOOD, state)
    policy = load(saved(tmp_path / "b", "impala", NESTED))
    with pytest.raises(ConfigError, match=r"^obs is \{'camera': 1\}, expected a dict of camera, word$"):
        policy.predict({"camera": 1})
    with pytest.raises(ConfigError, match=r"^action_mask forbids all 3 choices of component 0$"):
        policy.predict({"camera": np.zeros((6, 8)), "word": 1}, action_mask=np.zeros(NESTED.mask_size, bool))
    masked = load(saved(tmp_path / "m", "impala", NESTED, "--env.action_mask=mask"))
    with pytest.raises(
        ConfigError, match=r"^action_mask is None, expected \[N, \d+\] bool: the policy was trained with"
    ):
        masked.predict({"camera": np.zeros((6, 8)), "word": 1})
    with pytest.raises(ConfigError, match=r"^action_mask forbids all 3 choices of component 0$"):
        masked.predict({"camera": np.zeros((6, 8)), "word": 1, "mask": np.zeros(NESTED.mask_size, np.int8)})


def test_a_run_that_cannot_be_loaded_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = saved(tmp_path, "impala", VECTORS)
    config = folder / "config.yaml"
    with pytest.raises(CheckpointError, match="of another architecture"):
        load(folder, net={"hidden_size": 8})
    config.write_text(config.read_text().replace("algo: impala", "algo: mine"))
    with pytest.raises(ConfigError, match=r"^file .*: algo: algo 'mine': expected .* or module:NAME"):
        load(folder)
    config.write_text("algo: evil:SPEC")
    with pytest.raises(ConfigError, match="a module, and a file alone may not decide that: give --algo evil:SPEC"):
        load(folder)
    with pytest.raises(ConfigError, match=r"there is no run 'rnu': expected .*/rnu/config.yaml"):
        load("rnu", root=tmp_path)
    with pytest.raises(
        ConfigError, match=r"^run is 3, expected the name of a run, its folder, a checkpoint, or a run$"
    ):
        load(3)
    policy = load(saved(tmp_path / "c", "impala", STACKED))
    with pytest.raises(CheckpointError, match=r"trained with obs.shape \[3\], Stacked-v0 has \[4\]$"):
        policy.refuse_unlike(replace(STACKED, obs=ArraySpace.box((4,), low=(0.0,))))
    for given in ({"episodes": "all"}, {"episodes": 0}, {"seed": 2**70}, {"max_steps": np.float64(0.5)}):
        with pytest.raises(ConfigError, match=rf"evaluate.{next(iter(given))}"):
            evaluate(policy, **given)
    policy.refuse_unlike(replace(STACKED, env_id="Other-v0", obs=ArraySpace.box((3,), low=(0.0,))))
    with pytest.raises(ConfigError, match=r"^--net.hidden_size=8: expected no settings, because a policy has"):
        evaluate(load(saved(tmp_path / "b", "impala", VECTORS)), net={"hidden_size": 8})


def test_the_opponent_of_a_run_is_checked_by_another_process_which_loads_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved(tmp_path, "impala", VECTORS)
    config = settings(["--env", VECTORS.env_id, "--env.opponent", str(run)], {})
    with pytest.raises(ConfigError, match=r"^env.opponent \S+: its .* is .*, expected .*: the opponent has to be"):
        check_opponent(config, REACH)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(VECTORS.to_wire())))
    assert main(str(run), ".") == 0


def test_the_opponent_of_an_evaluation_is_on_the_device_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = saved(tmp_path / "other", "impala", VECTORS, "--broker.device=cuda")
    run = saved(tmp_path, "impala", VECTORS, f"--env.opponent={other}", "--env.agents=2")
    monkeypatch.setattr("zerobeast.api.saved.env_server", nullcontext)
    monkeypatch.setattr("zerobeast.api.saved.play", lambda *_args, opponent, **_more: opponent.module.device.type)
    assert evaluate(load(run, broker={"device": "cpu"})) == "cpu"  # type: ignore[comparison-overlap]
