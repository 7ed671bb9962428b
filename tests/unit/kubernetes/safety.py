"""Checks of what pods may do, and of what must not exist twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.unit.kubernetes.objects import Object, Objects, Pod, find, name_of, pods

USER = 1000  #: of the images


POD_CONTEXT = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
POD_SPEC = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "hostNetwork": None,
    "hostPID": None,
    "hostIPC": None,
}
CONTAINER_CONTEXT = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "privileged": None,
    "runAsUser": None,
}
CONTAINER_SPEC = {
    "command": None,  # the image's has an init in front
    "imagePullPolicy": "IfNotPresent",  # or images that were loaded into a node would not be used
}


def pods_are_restricted(objects: Objects) -> Iterator[str]:
    """The profile `restricted`, and the user that the images were made for."""
    for pod in pods(objects):
        yield from _differences(pod.name, pod.spec, POD_SPEC)
        yield from _differences(pod.name, pod.spec.get("securityContext", {}), POD_CONTEXT)


def containers_are_restricted(objects: Objects) -> Iterator[str]:
    """No way to more rights, and nothing to write to but what is mounted."""
    for pod in pods(objects):
        for container in pod.containers:
            yield from _differences(container.name, container.spec, CONTAINER_SPEC)
            yield from _differences(container.name, container.spec.get("securityContext", {}), CONTAINER_CONTEXT)
            if "/tmp" not in [mount["mountPath"] for mount in container.spec.get("volumeMounts", [])]:
                yield f"{container.name}: cannot write to /tmp"


def _differences(name: str, found: Object, wanted: Mapping[str, object]) -> Iterator[str]:
    for key, value in wanted.items():
        if found.get(key) != value:
            yield f"{name}: {key} is {found.get(key)}, expected {value}"


def secrets_can_be_read(objects: Objects) -> Iterator[str]:
    """By the group of the service, by nobody else, and nobody writes there."""
    for pod in pods(objects):
        secrets = {volume["name"]: volume["secret"] for volume in pod.spec.get("volumes", []) if "secret" in volume}
        for name, secret in secrets.items():
            if secret.get("defaultMode", 0o644) not in (0o440, 0o400):
                yield f"{pod.name}: volume {name} has mode {secret.get('defaultMode', 0o644):o}, expected 440"
        for container in pod.containers:
            for mount in container.spec.get("volumeMounts", []):
                if mount["name"] in secrets and not mount.get("readOnly"):
                    yield f"{container.name}: mounts {mount['name']} to write"


def no_secrets_in_files(objects: Objects) -> Iterator[str]:
    """Keys belong to people, not to a repository."""
    for found in objects:
        if found["kind"] == "Secret":
            yield f"{name_of(found)}: a Secret must not be in these files"


def one_learner(objects: Objects) -> Iterator[str]:
    """A single writer of the checkpoint, whose volume outlives it."""
    learner = find(objects, "StatefulSet", "learner")
    if learner is None:
        yield "StatefulSet learner: does not exist"
        return
    spec = learner["spec"]
    if spec.get("replicas") != 1:
        yield f"{name_of(learner)}: has {spec.get('replicas')} replicas, expected 1"
    claims = {claim["metadata"]["name"]: claim["spec"] for claim in spec.get("volumeClaimTemplates", [])}
    for name, claim in claims.items():
        if claim["accessModes"] != ["ReadWriteOncePod"]:
            yield f"{name_of(learner)}: claim {name} has modes {claim['accessModes']}, expected ReadWriteOncePod"
    mounts = Pod(learner).containers[0].spec.get("volumeMounts", [])
    if not any(mount["mountPath"] == "/app/runs" and mount["name"] in claims for mount in mounts):
        yield f"{name_of(learner)}: its run folder /app/runs is not on a claim"
    kept = spec.get("persistentVolumeClaimRetentionPolicy", {})
    if set(kept.values()) - {"Retain"}:
        yield f"{name_of(learner)}: its runs would be deleted with it"


CHECKS = (pods_are_restricted, containers_are_restricted, secrets_can_be_read, no_secrets_in_files, one_learner)
