"""The services, under the names that are used everywhere: in commands, settings, keys, pages and manifests.

A process is one of them, or hosts several: a worker hosts all that act, a serial run all four that a run needs.
"""

ROLES = ("learner", "broker", "envserver", "actor")  #: in the order in which a run is started
EVALUATOR = "evaluator"  #: the fifth, without which a run goes on
#: the services that each process hosts, in the order in which it starts them
HOSTED = {**{role: (role,) for role in (*ROLES, EVALUATOR)}, "worker": ROLES[1:], "serial": ROLES}
PROCESSES = (*ROLES, "worker", "serial", EVALUATOR)  #: kinds of processes, in the order in which they start
IMAGES = tuple(each for each in PROCESSES if each != "serial")  #: those that containers run
STOPPING = PROCESSES[::-1]  #: in the order in which they end: senders before receivers
SERVERS = ROLES[:-1]  #: the services with an endpoint
