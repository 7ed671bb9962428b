"""What each placement of a run on one machine must do, whatever processes have its services.

    rule(config)

The settings have a name, a root that can be written, and a `local.placement`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerobeast.common.config.layers import leaves
from zerobeast.common.config.load import dump, resolve_flags
from zerobeast.common.config.process import Instance
from zerobeast.common.config.settings_table import RUN, topic_of
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.process.roles import ROLES, SERVERS
from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.facts import About, facts_of
from zerobeast.launcher.child import Child
from zerobeast.launcher.fleet import Fleet
from zerobeast.plan.placement import placement_of
from zerobeast.testing.rules import rule, rules_in

SOCKETS_FOLDER = Path("/nowhere")  #: of sockets, as nothing is started
PROGRAMS = {"serve": ("envserver", "actor")}  #: roles that programs of the user take, by placement
#: settings that are of a process and not of what is learned, besides those that a placement gives
PROCESS_SETTINGS = {path for path in RUN if topic_of(path) is About.PEERS or facts_of(RUN[path]).idle.why}


@rule
def every_role_has_a_process(config: RunConfig) -> None:
    """A run trains only if its learner, brokers, env-servers and actors are all there."""
    hosted = {role for child in _children(config) for role in child.spec.statuses}
    assert hosted == set(ROLES) - set(PROGRAMS.get(placement_of(config).name, ())), hosted


@rule
def every_service_has_a_page_of_its_own(config: RunConfig) -> None:
    """Services with one status file would hide each other, and random numbers follow the index."""
    pages = [path for child in _children(config) for path in child.spec.statuses.values()]
    assert len(set(pages)) == len(pages), pages


@rule
def every_endpoint_is_bound_by_one_process(config: RunConfig) -> None:
    """A second process that binds it would be refused, or take over the first one's clients."""
    for role in SERVERS:
        servers = [child for child in _children(config) if child.spec.role == role]
        first = servers[:1] if role == "learner" else servers  # all ranks know the endpoint of the first
        bound = [getattr(_read_command(child).config, role).endpoint for child in first]
        assert len(set(bound)) == len(bound), bound


@rule
def every_actor_finds_the_processes_that_it_uses(config: RunConfig) -> None:
    """An actor waits for ever for an endpoint that nobody binds."""
    children = _children(config)
    for role in SERVERS:
        bound = {getattr(_read_command(child).config, role).endpoint for child in children if child.spec.role == role}
        for child in children:
            asked = child.spec.role == "actor" or (role == "learner" and "actor" in child.spec.statuses)
            assert not asked or not bound or getattr(_read_command(child).config, role).endpoint in bound, (
                child.spec.name
            )


@rule
def what_is_learned_does_not_depend_on_the_processes(config: RunConfig) -> None:
    """Each command reads back as the settings of the run, except for what is of its own process."""
    free = PROCESS_SETTINGS | {name.partition("=")[0].lstrip("-") for name in placement_of(config).flags()}
    for child in _children(config):
        theirs, ours = (dict(_settings(each)) for each in (_read_command(child).config, config))
        changed = {name for name in ours if theirs[name] != ours[name]}
        assert changed <= free, changed - free


def _children(config: RunConfig) -> list[Child]:
    """The processes of this run, none of which is started; its settings are in its folder."""
    config.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(config.folder / run_files.CONFIG, dump(config), durable=False)
    return Fleet(config, SOCKETS_FOLDER, {}).add_all()


def _read_command(child: Child) -> Any:
    """What a process makes of its command."""
    arguments = list(child.spec.command)
    return resolve_flags(arguments[arguments.index("-m") + 2 :], {}, own=Instance)


def _settings(config: RunConfig) -> Iterator[tuple[str, Any]]:
    return leaves(config.model_dump(mode="json"))


RULES = rules_in(globals())
