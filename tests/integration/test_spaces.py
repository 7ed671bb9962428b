"""Which preset an environment of the user's own gets: a process makes it once and reports its spec."""

import json
from pathlib import Path

import pytest

from tests.build.errors import refuses
from tests.build.starts import resolve_new_run
from tests.helpers import running_still, wait_until
from zerobeast.cli import slurm
from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.load import load_config
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.plan import spaces
from zerobeast.plan.spaces import fetch_spec

AIM, ODD = "tests.build.tasks:Aim-v0", "tests.build.odd:Odd"
UNCHECKED = {"local.check": GivenValue("local.check", "false", "flag")}  #: it does not play


def given(env_id: str, **kwargs: object) -> dict[str, GivenValue]:
    flags = {"env.id": env_id, **({"env.kwargs": kwargs} if kwargs else {})}
    return {path: GivenValue(path, value, f"flag --{path}") for path, value in flags.items()}


def config(env_id: str, algo: str = "ppo", **env: object) -> RunConfig:
    tree = {"env": {"id": env_id, **env}, "algo": algo, "local": {"check": False}}
    return RunConfig.model_validate(tree)


def test_an_environment_of_ones_own_gets_the_preset_of_its_actions_and_of_its_arguments(tmp_path: Path) -> None:
    aimed = resolve_new_run(tmp_path, "--env", AIM, "--algo", "ppo", "--local.check=false").config
    assert (aimed.preset, aimed.net.normalize_obs) == ("control-ppo", True), "it is in use"
    continuous = resolve_new_run(tmp_path, "--env", "ALE/Pong-v5", "--env.kwargs", json.dumps({"continuous": True}))
    assert continuous.config.preset == "control"
    unmade = resolve_new_run(tmp_path, "--env", "No-v0", "--preset", "control")
    assert unmade.config.env.id == "No-v0", "with a named preset it is not made"
    loud = fetch_spec(given("tests.build.odd:loud") | UNCHECKED)
    assert loud.obs.shape == (2,), "what it prints does not mix with its spec"


def test_an_environment_may_take_long_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "LIMIT_S", 0.1)
    family = tmp_path / "family"
    flags = given(ODD, family=str(family), method="fork", make_s=0.2) | UNCHECKED
    flags["envserver.step_timeout_s"] = GivenValue("envserver.step_timeout_s", "90", "flag")  # is one on this look too
    assert fetch_spec(flags).obs.shape == (2,)
    wait_until(lambda: not running_still(int(family.read_text())))


@pytest.mark.parametrize(
    ("env_id", "kwargs", "limit_s", "said"),
    [
        ("CartPol-v1", {}, 60.0, "did you mean CartPole-v1?"),
        (ODD, {"at": 1, "deed": "say and exit"}, 60.0, "exit code 2"),
        (ODD, {"at": 1, "deed": "answer"}, 60.0, "exit code 0"),
        (ODD, {"dtype": "none"}, 60.0, "describe --env.id="),
        (ODD, {"make_s": 50}, 0.1, "within 0.2 s"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(
    env_id: str, kwargs: dict[str, object], limit_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spaces, "LIMIT_S", limit_s)
    with refuses("env.id", value=env_id) as caught:
        fetch_spec(given(env_id, **kwargs))
    assert said in str(caught.error)


def test_a_start_makes_each_environment_and_refuses_what_does_not_fit_before_services_start() -> None:
    with refuses("env.id"):
        spaces.fetch_run_spec(config("CartPole-v1,CartPol-v1"))
    with refuses("algo", value="sac"):
        spaces.fetch_run_spec(config("CartPole-v1", "sac"))


def test_a_look_at_an_environment_has_all_settings_of_the_run_that_it_looks_for() -> None:
    spec = spaces.fetch_run_spec(config("tests.build.tasks:Signpost-v0", leave_out=("picture", "text")))
    assert spec is not None
    assert [part.name for part in spec.obs.spaces] == ["numbers"]
    for text in ("mission,0", '["mission", "0"]', ["mission", 0]):
        assert EnvConfig.model_validate({"leave_out": text}).leave_out == ("mission", "0")
    for value in ({"a": 1}, None, [None], [True], ["mission", ""]):
        with pytest.raises(ValueError, match="leave_out"):
            EnvConfig.model_validate({"leave_out": value})


def test_environments_of_one_run_are_padded_or_refused_before_services_start(tmp_path: Path) -> None:
    run = spaces.pad_config(config("CartPole-v1,Acrobot-v1"))
    assert (run.env.pad_obs, run.env.pad_actions) == ((6,), 3)
    spec = spaces.fetch_run_spec(run)
    assert spec is not None
    assert (spec.env_id, spec.obs.arrays[0].shape, spec.action_mask) == ("CartPole-v1", (6,), True)
    assert spaces.pad_config(run) == run, "a run that continues"
    for_two = config("tests.build.agents:Relay")
    small = for_two.model_copy(update={"broker": for_two.broker.model_copy(update={"max_batch_rows": 16})})
    with refuses("broker.max_batch_rows", value=16, expected="at least 18"):
        spaces.pad_config(small)
    assert slurm.main(["--env", run.env.id, "--name", "x", "--root", str(tmp_path)]) == 0
    assert load_config(["--config", str(tmp_path / "x" / "config.yaml"), "--security.keys="], {}).env.pad_obs == (6,)
    assert spaces.pad_config(alike := config("CartPole-v1,CartPole-v0")) == alike
    with refuses("env.id"):
        fetch_spec(given("Acrobot-v1,Pendulum-v1"))
