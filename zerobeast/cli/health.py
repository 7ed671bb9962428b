"""Show the state of a run: one line per service, and the service that limits the throughput.
Reports on the newest run in --root or, if none responds, on the compose project of this folder.
Exit code: 0 the run trains; 1 a service is missing, starting, unhealthy or stalled, or the
run cannot be saved; 2 no service can be reached.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from zerobeast import commands
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.health.command import add_flags, show, view_at
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.verdict import Verdict, is_healthy, judge
from zerobeast.common.process.roles import ROLES, SERVICES
from zerobeast.discovery import folder_services
from zerobeast.discovery.containers import NAMESPACE, find_compose_services, find_kubernetes_services, gather_views


def main(argv: list[str]) -> int:
    """Run `beast health`. Raises ConfigError if there is nothing to look at."""
    parser = commands.make_parser("beast health", __doc__)
    parser.add_argument("role", nargs="?", choices=SERVICES, help="show only the services of this role")
    parser.add_argument("--run", metavar="NAME", help="a run that `beast train` started")
    commands.add_root(parser)
    parser.add_argument("--remote", action="store_true", help=folder_services.REMOTE_HELP)
    parser.add_argument("--compose", action="store_true", help="the compose project of this folder")
    parser.add_argument("--project", metavar="NAME", help="the compose project of this name")
    parser.add_argument("--kubernetes", action="store_true", help=f"the namespace {NAMESPACE} of a Kubernetes cluster")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="another namespace of the cluster")
    add_flags(parser)
    flags = parser.parse_args(argv)

    def find_views() -> list[ServiceView]:
        return [view for view in _views(flags) if flags.role in (None, view.role)]

    def judge_views(services: Sequence[ServiceView]) -> Verdict:
        return (
            _judge_some(services, "") if flags.role else _judge_pages(services) if flags.endpoint else judge(services)
        )

    return show(find_views, judge_views, watch=flags.watch, as_json_text=flags.json)


def _judge_pages(services: Sequence[ServiceView]) -> Verdict:
    """The verdict on pages that were named one by one: on the run, unless some roles are missing."""
    missing = [role for role in ROLES if role not in {view.role for view in services}]
    if missing and all(view.role for view in services):  # a page that does not answer may be of any role
        return _judge_some(services, f"no verdict on the run without an --endpoint of {' and '.join(missing)}")
    return judge(services)


def _judge_some(services: Sequence[ServiceView], sentence: str) -> Verdict:
    """The verdict on some services without the others."""
    return Verdict(sentence, good=all(map(is_healthy, services)))


def _views(flags: argparse.Namespace) -> list[ServiceView]:
    """The services that the flags name, or else those of the newest run here if it still answers, or of the compose
    project, or what is left of that run.
    """
    root = Path(flags.root).expanduser()
    if flags.endpoint:
        return gather_views(lambda address: [view_at(address, flags.role or "")], flags.endpoint)
    if flags.run:
        return folder_services.services_of(run_files.candidate_paths(flags.run, root)[0], remote=flags.remote)
    if flags.kubernetes or flags.namespace:
        return find_kubernetes_services(flags.namespace or NAMESPACE)
    if flags.compose or flags.project:
        return find_compose_services(["-p", flags.project] if flags.project else [])
    folder = folder_services.find_newest(root)
    here = folder_services.services_of(folder, remote=flags.remote) if folder else []
    try:
        return here if any(view.page for view in here) else find_compose_services()
    except ConfigError as error:
        if here:
            return here
        raise ConfigError(
            f"nothing to report on: no run in {root}, and {error}; --endpoint host:port names a health page",
            path="endpoint",
        ) from error
