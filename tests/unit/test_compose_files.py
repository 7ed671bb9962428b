"""What compose starts: the settings exist, and each service is protected as it should be."""

import json
import os
import re
import shutil
import subprocess
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.build.compose import ENVS, ROOT, all_services, load_compose_file, services
from zerobeast.common.config.load import resolve_flags
from zerobeast.common.config.settings_table import OPEN_SECTIONS, RUN, part_settings
from zerobeast.common.process.roles import EVALUATOR, PROCESSES, ROLES
from zerobeast.common.settings.facts import facts_of
from zerobeast.common.settings.tree import RunConfig

needs_compose = pytest.mark.skipif(
    not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="needs Docker Compose",
)


def settings(service: dict[str, Any]) -> RunConfig:
    environ = {name: str(value) for name, value in service["environment"].items() if "${" not in str(value)}
    return resolve_flags([], environ).config


def test_without_keys_no_plane_leaves_the_network_of_the_project() -> None:
    for service in services("docker-compose.yml").values():
        assert settings(service).security.insecure
        assert "ports" not in service
        assert "network_mode" not in service


def test_with_keys_each_service_has_the_public_ones_and_its_own_secret() -> None:
    files = ("docker-compose.yml", "deploy/compose/keys.yml")
    secrets = load_compose_file(files[1])["secrets"]
    merged = services(*files)
    for service in merged.values():
        assert "./keys/public:/keys/public:ro" in service["volumes"]
    for role, service in [(role, merged[role]) for role in ROLES]:
        security = settings(service).security
        assert (security.keys, security.secret, security.insecure) == ("/keys", f"/run/secrets/{role}", False)
        assert service["secrets"] == [role]
        assert secrets[role] == {"file": f"./keys/secret/{role}.key_secret"}
    worker = settings(merged["worker"]).security
    assert (worker.keys, worker.secret, worker.insecure) == ("/keys", "", False)
    assert [(each["source"], each["target"]) for each in merged["worker"]["secrets"]] == [
        (role, f"/keys/secret/{role}.key_secret") for role in ("broker", "actor")
    ]


def test_a_fused_run_is_the_learner_and_workers_of_lower_cpu_priority() -> None:
    """Numbers and not profiles decide it, so that `down` without fused.yml removes workers too."""
    alone = services("docker-compose.yml")
    fused = services("docker-compose.yml", "deploy/compose/fused.yml")
    assert [name for name in alone if alone[name].get("scale", 1)] == list(ROLES)
    assert [name for name in fused if fused[name].get("scale", 1)] == ["learner", "worker"]
    assert fused["worker"]["cpu_shares"] < 1024, "Docker's default, which the learner has"
    arguments = fused["worker"]["build"]["args"]
    assert arguments == alone["broker"]["build"]["args"] | alone["envserver"]["build"]["args"]


def test_every_setting_reaches_all_services_from_the_shell() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    ours = [*OPEN_SECTIONS, *groups["zerobeast.algorithms"]]
    every = RUN | {path: field for name in ours for path, field in part_settings(name).items()}
    paths = ["env", *(path for path, field in every.items() if not facts_of(field).of_host)]
    names = [f"BEAST_{path.upper().replace('.', '__')}" for path in paths]
    text = textwrap.fill(", ".join(names), 120, initial_indent="  ", subsequent_indent="  ")
    if os.environ.get("REGENERATE"):
        file = ROOT / "deploy" / "compose" / "settings.yml"
        head, end = file.read_text().split("environment: [\n")[0], "\n] } }\n"
        file.write_text(f"{head}environment: [\n{text}{end}")
    (passed,) = load_compose_file("deploy/compose/settings.yml")["services"].values()
    assert sorted(passed["environment"]) == sorted(names), "make golden writes settings.yml anew"
    for name, service in all_services().items():
        if name in (*PROCESSES, ENVS):
            assert service["extends"] == {"file": "deploy/compose/settings.yml", "service": "settings"}
            assert service["volumes"][0] in ("runs:/app/runs", "runs:/app/runs:ro"), "to see that the run is over"


@needs_compose
@pytest.mark.parametrize(("files", "another"), [((), False), (("ranks", "keys"), True), (("gpu", "fused"), True)])
def test_the_shell_comes_first_and_another_file_replaces_that_of_the_project(
    files: tuple[str, ...], another: bool, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    shutil.copytree(ROOT / "deploy" / "compose", tmp_path / "deploy" / "compose")
    (tmp_path / ".env").write_text("BEAST_ALGO=dqn\nBEAST_NAME=x\nBEAST_SEED=1\nBEAST_DQN__BATCH_SIZE=7\nOWN=1\n")
    (tmp_path / "other.env").write_text("BEAST_ALGO=dqn\nBEAST_SEED=2\nBEAST_DQN__BATCH_SIZE=8\n")
    flags = ["--env-file", "other.env"] * another + [f"-fdeploy/compose/{file}.yml" for file in files]
    command = ["docker", "compose", "-f", "docker-compose.yml", *flags, "config", "--format", "json"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BEAST_", "COMPOSE_"))}
    environ |= {"BEAST_ENV": "CartPole-v1", "BEAST_DQN__BATCH_SIZE": "9", "BEAST_LEARNER__STORE": "/scratch"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=True)
    for name, service in json.loads(done.stdout)["services"].items():
        found = {key: value for key, value in service["environment"].items() if value is not None}
        config = resolve_flags([], found).config
        expected = ("dqn", "compose", 2, "CartPole-v1") if another else ("dqn", "x", 1, "CartPole-v1")
        assert (config.algo, config.name, config.seed, config.env.id) == expected, name
        assert (config.algorithm.model_dump()["batch_size"], found["OWN"]) == (9, "1")
        assert not config.learner.store


def test_containers_are_read_only_and_without_privileges() -> None:
    rights = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    assert all(service.items() >= rights.items() and "privileged" not in service for service in all_services().values())


def test_environments_write_no_run_and_those_of_evaluations_have_no_network_but_a_socket() -> None:
    found, evaluator = all_services(), all_services()[EVALUATOR]
    for name in ("envserver", "worker", ENVS):
        assert not [volume for volume in found[name]["volumes"] if volume.startswith("runs:") and volume[-3:] != ":ro"]
    envs, (flag, endpoint) = found[ENVS], evaluator["command"]
    assert (flag, endpoint) == ("--env_server", envs["environment"]["BEAST_ENVSERVER__ENDPOINT"])
    assert (envs["network_mode"], evaluator["volumes"][1:]) == ("none", envs["volumes"][1:])
    assert endpoint.startswith("ipc:///sockets/")
    for limit in ("MAX_EPISODES_PER_PROCESS", "MAX_PROCESS_MEMORY_MB"):  # no process is replaced during an episode
        assert int(envs["environment"][f"BEAST_ENVSERVER__{limit}"]) == 0
    assert envs["volumes"][1:] == ["sockets:/sockets"]
    assert load_compose_file("docker-compose.yml")["volumes"]["sockets"]["driver_opts"]["type"] == "tmpfs"
    assert not envs.keys() & {"secrets", "networks", "ports", "pid", "ipc", "volumes_from"}
    for file in {*ROOT.glob("deploy/compose/*.yml")} - {ROOT / "deploy/compose/settings.yml"}:
        assert load_compose_file(str(file))["services"].get(ENVS, {}).keys() <= {"image", "build"}, file
    assert "ENV_PACKAGES" not in evaluator["build"]["args"], "none of its code has to be imported there"


def test_ports_are_those_of_loopback_and_nobody_can_log_in_with_a_password_that_is_known() -> None:
    for service in all_services().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    grafana = all_services()["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert (grafana["GF_AUTH_BASIC_ENABLED"], grafana["GF_AUTH_DISABLE_LOGIN_FORM"]) == ("false", "true")


def test_memory_processes_and_logs_are_bounded_and_third_party_images_have_a_version() -> None:
    for name, service in all_services().items():
        assert re.fullmatch(r"\$\{PIDS_LIMIT:-\d+\}", service["pids_limit"])
        assert re.fullmatch(r"\d+[mg]|\$\{[A-Z]+_MEMORY:-\d+[mg]\}", service["mem_limit"])
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}
        assert re.fullmatch(r"zerobeast/\w+|\$\{\w+_IMAGE:-[\w/]+:v?\d+\.\d+\.\d+\}", service["image"]), name


def test_an_actor_waits_for_the_others_instead_of_using_up_its_restarts() -> None:
    """Docker counts failures and cannot tell a missing peer (exit code 75) from a wrong setting (2), which must end."""
    found = services("docker-compose.yml")
    assert all(service["restart"].startswith("on-failure:") for service in found.values()), "and what is done is down"
    a_month = 30 * 24 * 3600
    assert all(settings(found[name]).actor.connect_timeout_s > a_month for name in ("actor", "worker"))
