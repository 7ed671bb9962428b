"""Whether a run trains, which service limits its throughput, and what to scale. Pages in, one of eight sentences out;
no sockets, no clock.

    finished            all steps are done
    unhealthy           a service is missing, does not answer or gets nothing done, or nothing can be saved
    starting            services, environments or a replay are not there yet
    CPU-bound           the cores of all machines are full
    training-bound      the learner never waits, or is behind
    inference-bound     brokers are busy all the time
    environment-bound   env-servers or actors are busy all the time
    latency-bound       no service is: there is too little work in flight

`remark` comes before `_limit`, and in both the first sentence that is not empty counts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zerobeast.common.health import figures, hops
from zerobeast.common.health.figures import (
    READY_STATE,
    STALLED_STATE,
    ServiceView,
    format_count,
    format_decimal,
    format_ms,
    format_share,
    number,
)
from zerobeast.common.process.roles import RECORDS, ROLES

STARTING_STATE = "starting"
ELSEWHERE_ROLE = "elsewhere"  #: role of a view that stands for services whose pages are out of reach
BUSY_SHARE = 0.85  #: share of its time above which a service counts as the limit
IDLE_SHARE = 0.1  #: share of its time up to which the learner counts as never waiting
STALE_SHARE = 0.2  #: share of the rollouts above which their age is the limit
WASTE_SHARE = 0.02  #: share of the rollouts above which a sentence mentions what is dropped
FULL_SHARE = 0.9  #: share of the cores in use
CROWDED_SHARE = 0.5  #: share of the time in which processes wait for a core, whatever other programs use them
LASTING_S = 10.0  #: an update that takes longer than the span of rates
MAIN_SHARE = 0.5  #: share of the time of a step, or of the learner's
SERVING_ROLES = ("learner", "broker")
#: by role: what the run is if its services are busy all the time, and what to do
LIMITS = {
    "broker": ("inference-bound", "add a broker or a GPU"),
    "envserver": ("environment-bound", "add env-servers, or give them more threads or workers"),
    "actor": ("environment-bound", "add actors"),
}
MAX_CAUSES, MAX_CAUSE_LENGTH = (
    3,
    200,
)  #: causes of each kind in a sentence; characters of a cause that a service words itself


class Verdict(NamedTuple):
    """What a person or a script should know first."""

    sentence: str
    good: bool  #: all services take work and, if they have any, get it done

    @property
    def kind(self) -> str:
        """What the sentence begins with, such as "starting" or "inference-bound"."""
        return self.sentence.partition(":")[0]


def is_ready(view: ServiceView) -> bool:
    """Whether a service takes work, which is what probes ask. A stalled service does."""
    return figures.state_of(view) in (READY_STATE, STALLED_STATE)


def is_healthy(view: ServiceView) -> bool:
    """Whether a service takes work and is not stalled."""
    return figures.state_of(view) == READY_STATE


def judge(services: Sequence[ServiceView]) -> Verdict:
    """The verdict on a whole run."""
    return remark(services) or Verdict(_limit([view for view in services if view.role != ELSEWHERE_ROLE]), good=True)


def remark(services: Sequence[ServiceView]) -> Verdict | None:
    """The verdict on a run that does not simply train: one that starts, has ended or has trouble."""
    away, services = len(services), [view for view in services if view.role != ELSEWHERE_ROLE]
    learner = next((view.page for view in _of(services, "learner")), {})
    if fault := learner.get("unsaved"):
        return _unhealthy(f"not saved: {fault}")
    steps, total = (number(learner, name) for name in ("agent_steps", "total_steps"))
    done = learner.get("finished") or (steps and total and steps >= total)
    if done or any(view.finished for view in services if view.role == "learner"):
        left = max((number(view.page, "evaluations_waiting") or 0 for view in services), default=0)
        waiting = f", with {format_count(left)} policies still to be evaluated" if left else ""
        return Verdict(f"finished: the run has reached its last step{waiting}", good=True)
    if away > len(services) and not learner:
        words = "".join(view.note for view in services if view.role == "learner")
        return _unhealthy(f"the learner's health page cannot be reached from here; last seen: {words}")
    if sentence := _describe_start(services):
        return Verdict(sentence, good=False)
    if cause := _describe_missing(services) or _unready(services) or _describe_stall(services):
        return _unhealthy(cause)
    beginning = _describe_beginning(services)
    return Verdict(beginning, good=True) if beginning else None


def _unhealthy(cause: str) -> Verdict:
    return Verdict(f"unhealthy: {cause}", good=False)


def _describe_start(services: Sequence[ServiceView]) -> str:
    """A sentence if every role has a process and those that are not ready yet have just been started."""
    states = {view.name: figures.state_of(view) for view in services}
    coming = [name for name, state in states.items() if state == STARTING_STATE]
    complete = {view.role for view in services} >= set(SERVING_ROLES if _serves(services) else ROLES)
    if not coming or not complete or not {STARTING_STATE, READY_STATE, STALLED_STATE}.issuperset(states.values()):
        return ""
    return f"{STARTING_STATE}: {', '.join(coming)}"


def _describe_missing(services: Sequence[ServiceView]) -> str:
    peers = any(number(view.page, "peers") for view in _of(services, "learner"))
    if _serves(services) and _of(services, "learner") and (peers or _of(services, "broker")):
        return "" if peers else "no actor or client is connected"
    missing = [role for role in ROLES if not any(view.role == role and view.page for view in services)]
    return f"no answer from {', '.join(missing)}" if missing else ""


def _unready(services: Sequence[ServiceView]) -> str:
    return ", ".join(f"{view.name} is {figures.state_of(view)}" for view in services if not is_ready(view))


def _describe_stall(services: Sequence[ServiceView]) -> str:
    """A clause if services have work and get none of it done: the whole run, or some that it can do without."""
    stalled = [view for view in services if figures.state_of(view) == STALLED_STATE]
    if not stalled:
        return ""
    time = figures.format_duration(max(number(view.page, "stalled_s") or 0.0 for view in stalled))
    roles = {view.role for view in services} - {view.role for view in services if view not in stalled}
    if roles.isdisjoint({"learner", "actor"}):
        return f"{', '.join(view.name for view in stalled)} stalled for {time}"
    parts = RECORDS["actor"].waits
    waits = {what: _mean(services, "actor", f"waiting_{part}fraction") or 0.0 for what, part in parts.items()}
    waiting = f"actors wait for {max(waits, key=waits.__getitem__)}"
    return f"stalled for {time}: {'; '.join([waiting, *_troubles(services), *_describe_refusals(services)])}"


def _troubles(services: Sequence[ServiceView]) -> list[str]:
    """What keeps actors from going on, by their own pages, without duplicates."""
    found = dict.fromkeys(str(view.page["trouble"]) for view in _of(services, "actor") if view.page.get("trouble"))
    return [sentence[:MAX_CAUSE_LENGTH] for sentence in found][:MAX_CAUSES]


def _describe_refusals(services: Sequence[ServiceView]) -> Iterator[str]:
    """Services that have refused messages since they last got something done, most refusals first."""
    refused = {view.name: _counts(view.page.get("refused_since_progress")) for view in services}
    for name in sorted(refused, key=lambda each: -sum(refused[each].values()))[:MAX_CAUSES]:
        if reasons := sorted(refused[name].items(), key=lambda entry: -entry[1])[:MAX_CAUSES]:
            yield f"{name} refuses messages ({', '.join(f'{format_count(many)} x {why}' for why, many in reasons)})"


def _counts(page: Any) -> dict[str, float]:
    if not isinstance(page, Mapping):
        return {}
    return {str(key): many for key in page if (many := number(page, key) or 0.0) > 0}


def _describe_beginning(services: Sequence[ServiceView]) -> str:
    """A sentence if there are no rates yet, or none while an update lasts."""
    learner = _of(services, "learner")[0].page
    making = sum(number(view.page, "sessions_making") or 0.0 for view in _of(services, "envserver"))
    if making and not number(learner, "agent_steps_per_s"):
        return f"{STARTING_STATE}: environments of {format_count(making)} sessions are being created"
    if (fill := number(learner, "replay_fill")) is not None and fill < 1:
        return f"{STARTING_STATE}: the replay has {format_share(fill)} of the steps needed for the first update"
    if (lasts := number(learner, "computing_s") or 0.0) > LASTING_S:
        return f"training-bound: the current update or checkpoint has taken {figures.format_duration(lasts)}: use a GPU"
    if number(learner, "waiting_fraction") is None or not number(learner, "agent_steps_per_s"):
        return f"{STARTING_STATE}: no update yet"
    return ""


def _limit(services: Sequence[ServiceView]) -> str:
    learner = _of(services, "learner")[0].page
    if (stale := number(learner, "stale_fraction") or 0.0) >= STALE_SHARE:
        return _lags(services, stale)
    sentence = (
        _cpu_bound(services)
        or _training_bound(learner)
        or _server_bound(services)
        or _held_back(services)
        or _latency_bound(services)
    )
    dropped = f"; {format_share(stale)} of the rollouts are dropped as too old" if stale >= WASTE_SHARE else ""
    return sentence + dropped


def _lags(services: Sequence[ServiceView], stale: float) -> str:
    """A sentence if more rollouts come than the learner can use while they are fresh, whether it waits or not."""
    full = _full(services)
    dropped = f"{format_share(stale)} of the rollouts exceed learner.max_policy_lag and are dropped"
    advice = "shorten learner.unroll_length, or raise learner.max_policy_lag"
    return f"training-bound: {dropped}{full and f', and {full}'}: {advice}"


def _held_back(services: Sequence[ServiceView]) -> str:
    """A sentence if the learner waits while streams wait for it: what they would begin would be too old in the end."""
    learner, waits = _of(services, "learner")[0].page, _mean(services, "actor", "waiting_credit_fraction") or 0.0
    held = number(learner, "streams_held") or 0.0
    if not held or waits < MAIN_SHARE:
        return ""
    capacity = format_count(number(learner, "queue_capacity"))
    why = f"learner.max_policy_lag admits {capacity} rollouts at once, and env groups wait {format_share(waits)}"
    return f"latency-bound: {why}: use fewer environments, or raise learner.batch_size or learner.max_policy_lag"


def _cpu_bound(services: Sequence[ServiceView]) -> str:
    full, most = _full(services), max(services, key=_cpu)
    return f"CPU-bound: {full}, {most.name} uses most ({format_share(_cpu(most))}): add cores or a GPU" if full else ""


def _full(services: Sequence[ServiceView]) -> str:
    """A clause if the cores of all machines are full, be it with other programs; else empty."""
    cores, used = _cores(services), sum(map(_cpu, services))
    waits = sum(number(view.page, "cpu_pressure") or 0.0 for view in services) / len(services)
    if not cores or (used < FULL_SHARE * cores and waits < CROWDED_SHARE):
        return ""
    more = (
        f" (this run uses {used:.1f}; processes wait for a core {format_share(waits)} of the time)"
        if waits >= CROWDED_SHARE
        else ""
    )
    return f"all {cores} cores are busy{more}" if cores > 1 else f"the only core is busy{more}"


def _cores(services: Sequence[ServiceView]) -> int:
    """How many cores the services may use together; 0 if unknown."""
    lists = [view.page.get("cores") for view in services]
    return len({str(core) for names in lists if isinstance(names, list) for core in names})


def _cpu(view: ServiceView) -> float:
    return view.cpu_share if view.cpu_share is not None else number(view.page, "cpu_share") or 0.0


def _more(services: Sequence[ServiceView], role: str, advice: str) -> str:
    """The advice to start more of a role, unless there are no cores for one more."""
    left = (_cores(services) or math.inf) - sum(map(_cpu, services))
    scarce = left < max(map(_cpu, _of(services, role)))
    return f"add cores or a GPU: no core is left for another {role}" if scarce else advice


def _training_bound(learner: Mapping[str, Any]) -> str:
    """A sentence if the learner never waits, or rollouts wait for updates as a replay bounds samples per insert."""
    spent = f"{format_decimal(number(learner, 'update_ms'))} ms per update"
    if (limited := number(learner, "ratio_limited_fraction") or 0.0) > MAIN_SHARE:
        ratio = f"{number(learner, 'samples_per_insert') or 0.0:.3g} samples per insert"
        waits = f"rollouts wait for updates {format_share(limited)} of the time ({ratio}, {spent})"
        return f"training-bound: {waits}: use a GPU or a lower samples_per_insert"
    if (number(learner, "waiting_fraction") or 0.0) > IDLE_SHARE:
        return ""
    queue = f"{format_count(number(learner, 'queue_rows'))} of {format_count(number(learner, 'queue_capacity'))}"
    return f"training-bound: the learner never waits (queue {queue}, {spent}): use a GPU or a smaller network"


def _server_bound(services: Sequence[ServiceView]) -> str:
    """A sentence if services of a role are busy all the time; the one nearest to the learner comes first."""
    for role, (kind, advice) in LIMITS.items():
        if (busy := _mean(services, role, "busy_fraction") or 0.0) > BUSY_SHARE:
            return f"{kind}: {role} is busy {format_share(busy)} of the time: {_more(services, role, advice)}"
    return ""


def _transit(services: Sequence[ServiceView]) -> str:
    """A clause if an agent step is mostly messages in transit; else empty."""
    pages = [view.page for view in services]
    step_s, wires = hops.step_s(pages), hops.wires(pages)
    if not step_s or not wires:
        return ""
    peer = max(wires, key=lambda name: wires[name])
    if wires[peer] < MAIN_SHARE * step_s:
        return ""
    return f"{format_ms(wires[peer])} of {format_ms(step_s)} per step are network time to the {peer} and back"


def _latency_bound(services: Sequence[ServiceView]) -> str:
    if transit := _transit(services):
        return f"latency-bound: {transit}: move the services closer together or add env groups"
    waiting = _mean(services, "learner", "waiting_fraction")
    broker, env = _mean(services, "broker", "busy_fraction"), _mean(services, "envserver", "busy_fraction")
    if broker is None:
        pages = "the health pages of other services cannot be read from here"
        return f"latency-bound: the learner waits {format_share(waiting)} of the time, and {pages}"
    idle, more = f"learner waits {format_share(waiting)}, brokers busy {format_share(broker)}", "add agents"
    if not _serves(services):
        idle, more = (
            f"{idle}, env-servers busy {format_share(env)}",
            _more(services, "actor", "add actors or env groups"),
        )
    if (number(_of(services, "learner")[0].page, "replay_starved_fraction") or 0.0) > MAIN_SHARE:
        more += ", or raise samples_per_insert"
    return f"latency-bound: no service is busy ({idle}): {more}"


def _serves(services: Sequence[ServiceView]) -> bool:
    """Whether there are only brokers and learners: what acts may be programs, or on machines that cannot be asked."""
    return {view.role for view in services} & set(ROLES) <= set(SERVING_ROLES)


def _of(services: Sequence[ServiceView], role: str) -> list[ServiceView]:
    return [view for view in services if view.role == role and view.page]


def _mean(services: Sequence[ServiceView], role: str, key: str) -> float | None:
    values = [value for view in _of(services, role) if (value := number(view.page, key)) is not None]
    return sum(values) / len(values) if values else None
