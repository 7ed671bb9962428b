"""A setting or an image that does not exist is named."""

from __future__ import annotations

import pytest

from tests.unit.kubernetes import settings
from tests.unit.kubernetes.mutations import FIRST, GONE, Broken, assert_named
from tests.unit.kubernetes.objects import pods
from tests.unit.kubernetes.render import needs_kubectl, render

pytestmark = [pytest.mark.unit, needs_kubectl]

BROKEN = [
    Broken(
        settings.settings_are_real,
        "StatefulSet learner",
        f"{FIRST} env 0 name",
        "BEAST_LEARNER_ENDPOINT",
        "StatefulSet learner, container learner: environment BEAST_LEARNER_ENDPOINT: unknown setting",
    ),
    Broken(
        settings.settings_are_real,
        "ConfigMap run",
        "data BEAST_TOTAL_STEPS",
        "1e7 steps",
        "Deployment actor, container actor: environment BEAST_TOTAL_STEPS: got '1e7 steps'",
    ),
    Broken(
        settings.settings_are_real,
        "StatefulSet broker",
        f"{FIRST} env 2 name",
        "INDEX",
        "StatefulSet broker, container broker: flag --index: got '$(POD_INDEX)'",
    ),
    Broken(
        settings.services_share_their_settings,
        "StatefulSet broker",
        f"{FIRST} envFrom",
        GONE,
        "StatefulSet broker, container broker: does not read the settings of the run",
    ),
    Broken(
        settings.services_share_their_settings,
        "StatefulSet broker",
        f"{FIRST} envFrom 0 configMapRef name",
        "run-2",
        "ConfigMap run-2: expected one for all, called run-<hash>",
    ),
    Broken(
        settings.images_are_built_here,
        "Deployment actor",
        f"{FIRST} image",
        "zerobeast/player:latest",
        "Deployment actor, container actor: image zerobeast/player is no target of the Dockerfile",
    ),
    Broken(
        settings.images_are_built_here,
        "Deployment actor",
        f"{FIRST} image",
        "zerobeast/actor:newest",
        "Deployment actor, container actor: image zerobeast/actor has the tag newest",
    ),
    Broken(settings.run_settings_equal_composes, "ConfigMap run", "data BEAST_SEED", "2", "ConfigMap run-"),
    Broken(settings.run_settings_equal_composes, "ConfigMap run", "data BEAST_NAME", GONE, "ConfigMap run-"),
]


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
def test_a_wrong_setting_is_named(broken: Broken) -> None:
    assert_named(broken)


def test_pods_run_exactly_the_images_that_are_built() -> None:
    roles = {container.role for pod in pods(render("base")) for container in pod.containers}
    assert roles == set(settings.dockerfile_targets())


def test_compose_builds_and_names_the_same_images() -> None:
    built = {name: service for name, service in settings.compose_services().items() if "build" in service}
    assert {name: service["build"]["target"] for name, service in built.items()} == {
        role: role for role in settings.dockerfile_targets()
    }
    named = {name: service["image"].partition(":")[0] for name, service in built.items() if "image" in service}
    assert named == {name: f"zerobeast/{name}" for name in named}
