"""The processes of a run: what each is given, and what is learned does not depend on where its services are."""

from pathlib import Path

import pytest

from zerobeast.common.config.load import dump, load_config
from zerobeast.common.errors import ConfigError
from zerobeast.launcher import fleet
from zerobeast.launcher.child import Child
from zerobeast.launcher.hosts import Host
from zerobeast.plan import placement
from zerobeast.plan.processes import child_environ
from zerobeast.testing import placement as contract
from zerobeast.testing.rules import Rule


def told(child: Child, flag: str) -> str:
    """The value that a child's command line gives to a flag."""
    command = list(child.spec.command)
    return command[command.index(flag) + 1]


def fleet_of(*flags: str, environ: dict[str, str] | None = None, own_broker: bool = False) -> fleet.Fleet:
    """The fleet of a run under these flags, with its sockets in /tmp/s."""
    config = load_config(["--name=x", *flags], {})
    return fleet.Fleet(config, Path("/tmp/s"), environ or {}, keep_open=(9,), own_broker=own_broker)


def children(*flags: str) -> list[Child]:
    """Children of a run under these flags, in the order in which they are started."""
    return fleet_of(*flags).add_all()


def test_children_of_a_continued_run_get_the_steps_after_which_it_starts(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "metrics.csv").write_text("agent_steps,mean_return_100\n160,\n5000,1.5\n")
    for steps in ("0", "5000"):  # without a checkpoint it begins again
        assert {told(child, "--start") for child in children("--root", str(tmp_path))} == {steps}
        (tmp_path / "x" / "checkpoint.pt").touch()


@pytest.mark.parametrize("name", ["serial", "fused", "apart"])
def test_a_needed_service_that_no_process_hosts_has_a_process(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(placement, "ROLES", (*placement.ROLES, "judge"))
    found = placement.placement_of(load_config(["--local.placement", name, "--env", "CartPole-v1"], {}))
    assert found.processes["judge"] == 1
    assert ("one process, 1 judge" in str(found)) == (name == "serial")


def test_workers_share_out_the_groups_and_have_one_each_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "cores", lambda: 4.0)
    for count, flags in ((3, ["--actor.env_groups=6"]), (5, ["--actor.env_groups=2", "--local.workers=5"])):
        learner, *workers = children("--local.placement=fused", "--health.port=9000", *flags)
        assert [told(worker, "--actor.env_groups") for worker in workers] == ["2"] * count
        ports = [int(told(child, "--health.port")) for child in (learner, *workers)]
        assert ports == [9000, *range(9001, 9001 + 3 * count, 3)], "three services with pages of their own"


@pytest.mark.parametrize(
    ("cores", "torso", "own"), [({3, 5}, "auto", ["3", "5"]), ({3, 5}, "deep", []), ({3, 5, 7}, "auto", [])]
)
def test_workers_stay_on_cores_of_their_own_if_each_can_have_one_and_the_learner_waits(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], torso: str, own: list[str]
) -> None:
    monkeypatch.setattr(placement.os, "sched_getaffinity", lambda _pid: cores)
    monkeypatch.setattr(placement, "cores", lambda: float(len(cores)))
    _, *workers = children("--local.placement=fused", "--actor.env_groups=2", f"--net.torso={torso}")
    assert [told(worker, "--core") for worker in workers if "--core" in worker.spec.command] == own


SECRETS = (
    "WANDB_API_KEY HF_TOKEN AWS_ACCESS_KEY_ID PGPASSWORD GOOGLE_APPLICATION_CREDENTIALS AZURE_CLIENT_SECRET "
    "github_token OPENAI_KEY TOKEN1 GH_PAT DB_PASS MYSQL_PWD DATABASE_URL AZURE_STORAGE_CONNECTION_STRING "
    "GIT_CONFIG_COUNT GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_0"
).split()
NO_SECRETS = "PATH PWD OLDPWD COMPASS SSH_AUTH_SOCK TOKENIZERS_PARALLELISM KEYBOARD MUJOCO_PY_MJKEY_PATH".split()


def test_services_inherit_no_secrets_of_trackers_and_clouds(tmp_path: Path) -> None:
    environ = dict.fromkeys([*SECRETS, *NO_SECRETS], "x")
    found = child_environ(environ | {"BEAST_SEED": "9"}).keys()
    assert found >= {*NO_SECRETS}
    assert not found & {*SECRETS, "BEAST_SEED"}, "settings reach services by their flags alone"
    kept = child_environ(environ | {"ZEROBEAST_PASS_ON": "HF_TOKEN,WANDB_API_KEY"})
    assert kept.keys() & set(SECRETS) == {"HF_TOKEN", "WANDB_API_KEY"}
    running = fleet_of("--root", str(tmp_path), environ=environ)
    (tmp_path / "x" / "services").mkdir(parents=True)
    running.add_hosts([Host("node", 1, "python")])
    [host, learner] = [running.children[0], running.add("learner")]
    assert host.spec.environ.items() >= environ.items(), "ssh may need them to get there"
    assert not learner.spec.environ.keys() & set(SECRETS)


def test_children_are_told_that_their_file_may_decide_what_no_file_may_and_nobody_else_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "x"))
    (tmp_path / "x").touch()  # so that nothing is remembered
    flags = ["--env=mine:Own-v0", "--env.kwargs={password: secret}", "--preset=classic", "--security.keys=k"]
    config = load_config([*flags, "--name=x", "--health.host=::1"], {})
    learner = fleet.Fleet(config, Path("/tmp/s"), {}).add("learner")
    assert not any("secret" in word or "mine" in word for word in learner.spec.command)
    file = tmp_path / "config.yaml"
    file.write_text(dump(config))
    told_it = ["--config", str(file), "--confirmed", told(learner, "--confirmed")]
    assert load_config(told_it, {}) == config
    file.write_text(dump(config).replace("mine:Own-v0", "evil:Own-v0"))
    with pytest.raises(ConfigError, match="env"):
        load_config(told_it, {})


FLAGS = {
    "apart": ("--local.actors", "3", "--local.env_servers", "2", "--learner.ranks", "2"),
    "fused": ("--actor.env_groups", "6", "--local.workers", "2", "--health.port", "9000"),
    "serial": ("--actor.env_groups", "2"),
    "serve": (),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("rule", contract.RULES, ids=str)
def test_contract(tmp_path: Path, rule: Rule, name: str) -> None:
    rule(load_config(["--name", "x", "--root", str(tmp_path), "--local.placement", name, *FLAGS[name]], {}))
