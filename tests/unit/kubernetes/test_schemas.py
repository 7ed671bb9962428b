"""Every version of the API server takes the objects, by its own schemas and without a field that it does not know."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import yaml

from tests.unit.kubernetes.rendered import KUBERNETES, ORDER, needs_kubectl, render

schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

pytestmark = [pytest.mark.unit, needs_kubectl]

OLDEST = {"overlays/sidecar": (1, 29)}  #: the schema of 1.28 has the field, but its API server drops it
OLDEST_OF_ALL = (1, 28)
OPERATOR = "monitoring.coreos.com/v1"  #: kinds that a cluster has where Prometheus' operator is installed


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


VERSIONS = [version for version in dict.fromkeys(schemas.utils.all_versions()) if _number(version) >= OLDEST_OF_ALL]
CASES = [
    (overlay, version)
    for overlay in ("base", *(f"overlays/{name}" for name in ORDER))
    for version in VERSIONS
    if _number(version) >= OLDEST.get(overlay, OLDEST_OF_ALL)
]


@pytest.fixture(scope="module", autouse=True)
def _schemas_are_read_once() -> Iterator[None]:
    """The package reads two megabytes for every object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas.utils, "schema_contents", functools.cache(schemas.utils.schema_contents))
        yield


@pytest.mark.parametrize(("overlay", "version"), CASES)
def test_api_servers_accept_it(overlay: str, version: str) -> None:
    reader = yaml.safe_load((KUBERNETES / "reader.yaml").read_text())
    for found in (*render(overlay).objects, reader):
        if found["apiVersion"] != OPERATOR:
            schemas.validate(found, version, strict=True)
