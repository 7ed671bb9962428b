"""The services and the processes that host them: a record for each, with what other modules know of it.

Names are the same everywhere: in commands, settings, keys, pages and manifests. One more service takes its folder in
`services` and a record here (`docs/examples/onlooker`); one that answers requests takes a plane as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

EVALUATOR = "evaluator"


@dataclass(frozen=True)
class Role:
    """A kind of process: a service by itself, or a process that hosts several.

    Attributes:
      name: of its folder, too, `services/<name>`.
      service: the class in `service.py` there; empty if it hosts others.
      binds: planes that it serves.
      connects: planes that it uses as a client.
      hosts: the services that it hosts, in starting order.
      wanted: attribute of a run's settings that says whether the run has it; the run goes on if it ends, and one that
        `local.placement serial` keeps in one process has none. Empty: every run needs it, and its placement has the
        number, one of each that it does not know.
      inside: its planes stay in a process that hosts their clients as well.
      computes: it runs a network, on the threads of PyTorch that `threads` in its section says.
      prompt: it hardly computes, and others wait for its turn.
      niceness: of a process that could use every core all the time.
      grace_s: how long the roles that are asked to end after it wait for it.
      image: containers run it.
      peers: key of its page for the number of its conversations with others.
      waits: what it waits for -> the middle of the page's key `waiting_..fraction` for the share of the time.
      idle: what one without such shares waits for whenever it is not busy.
    """

    name: str
    service: str = ""
    binds: tuple[str, ...] = ()
    connects: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    wanted: str = ""
    inside: bool = False
    computes: bool = False
    prompt: bool = False
    niceness: int = 0
    grace_s: float = 0.0
    image: bool = True
    peers: str = ""
    waits: Mapping[str, str] = field(default_factory=dict)
    idle: str = ""


_IN_STARTING_ORDER = (
    Role("learner", "Learner", ("rollouts", "weights"), computes=True, peers="peers", waits={"rollouts": ""}),
    Role(
        "broker",
        "Broker",
        ("inference",),
        ("weights",),
        inside=True,
        computes=True,
        grace_s=0.5,
        peers="clients",
        idle="requests",
    ),
    Role("envserver", "EnvServer", ("steps",), inside=True, grace_s=0.5, peers="sessions", idle="actions"),
    Role(
        "actor",
        "Actor",
        (),
        ("steps", "inference", "rollouts"),
        prompt=True,
        grace_s=1.0,
        peers="groups",
        waits={"sessions": "connect_", "env-servers": "env_", "brokers": "broker_", "the learner": "credit_"},
    ),
    Role("worker", hosts=("broker", "envserver", "actor"), niceness=5, grace_s=1.0),
    Role("serial", hosts=("learner", "broker", "envserver", "actor"), image=False),
    Role(EVALUATOR, "Evaluator", wanted="evaluates", niceness=15),
)
RECORDS = {role.name: role for role in _IN_STARTING_ORDER}
SERVICES = tuple(name for name, role in RECORDS.items() if role.service)
#: those that every run needs
ROLES = tuple(name for name, role in RECORDS.items() if role.service and not role.wanted)
SERVICES_BY_PROCESS = {
    name: role.hosts or (name,) for name, role in RECORDS.items()
}  #: the services of each kind of process
PROCESSES = tuple(RECORDS)
IMAGES = tuple(name for name, role in RECORDS.items() if role.image)  #: those that containers run
STOPPING_ORDER = PROCESSES[::-1]  #: in the order in which they end: senders before receivers
SERVERS = tuple(name for name, role in RECORDS.items() if role.binds)  #: the services with an endpoint
