"""The oldest and the newest API server accept the objects under their own schemas, with no field unknown to them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import chain

import pytest
import yaml

from tests.unit.kubernetes.rendered import KUBERNETES, ORDER, needs_kubectl, render

schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

pytestmark = needs_kubectl

OLDEST = "1.28"
OPERATOR = "monitoring.coreos.com/v1"  #: kinds that a cluster has only if Prometheus' operator is installed
OVERLAYS = ["base", *(f"overlays/{name}" for name in ORDER)]


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]


ALL = [each for each in dict.fromkeys(schemas.utils.all_versions()) if _number(each) >= _number(OLDEST)]
VERSIONS = [min(ALL, key=_number), max(ALL, key=_number)]  #: no field goes away and comes back between them


@pytest.fixture(scope="module", autouse=True)
def _schemas_are_read_once() -> Iterator[None]:
    """Cache the schemas; the package would read two megabytes for every object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas.utils, "schema_contents", functools.cache(schemas.utils.schema_contents))
        yield


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_api_servers_accept_it(overlay: str, version: str) -> None:
    alone = [yaml.safe_load_all((KUBERNETES / file).read_text()) for file in ("reader.yaml", "release.yaml")]
    for found in chain(render(overlay).objects, *alone):
        if found["apiVersion"] != OPERATOR:
            schemas.validate(found, version, strict=True)
