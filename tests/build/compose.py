"""The services of docker-compose.yml and of the files for compose beside it."""

from typing import Any

import yaml

from tests.helpers import ROOT
from zerobeast.common.process.roles import EVALUATOR, PROCESSES

ENVS = "evaluator-envs"  #: hosts the environments of evaluations

Service = dict[str, Any]


class Loader(yaml.SafeLoader):
    """YAML with compose's tags by which a file removes or replaces entries of another."""


def mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    return loader.construct_mapping(node)


Loader.add_constructor("!reset", lambda _loader, _node: [])
Loader.add_constructor("!override", mapping)


def load_compose_file(file: str) -> Service:
    """What a file says."""
    found: Service = yaml.load((ROOT / file).read_text(), Loader)
    return found


def all_services() -> dict[str, Service]:
    """All services of docker-compose.yml, whatever their profile."""
    return dict(load_compose_file("docker-compose.yml")["services"])


def services(*files: str) -> dict[str, Service]:
    """The services of the program in some files, their environments merged as compose does it."""
    found: dict[str, Service] = {}
    sections = [load_compose_file(file)["services"] for file in files]
    for name, service in ((name, service) for each in sections for name, service in each.items()):
        before = found.get(name, {})
        environ = {**before.get("environment", {}), **service.get("environment", {})}
        found[name] = {**before, **service, "environment": environ}
    return {name: found[name] for name in PROCESSES if name in found and name != EVALUATOR}
