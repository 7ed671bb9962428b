"""More than a run can take: too many actors, clients that never read replies, slow environments beside fast ones."""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.process.roles import ROLES
from zerobeast.common.wire.messages import Plane
from zerobeast_tools.chaos.fuzz_visitor import Visitor
from zerobeast_tools.chaos.network_faults import MIN_RATE_SHARE, RATE_S, NetworkTrial, join_troubles
from zerobeast_tools.chaos.network_names import NEW_HOST, OLD_HOST, NamedRun
from zerobeast_tools.chaos.network_run import SMALL_FLAGS, WatchedRun

LEARNER_PAUSE_S = 0.2  #: so that one actor alone makes more of the short rollouts than are learned from
ENV_PAUSE_S = 0.03
MIN_FAIR_SHARE = 0.3  #: least fraction of its fair share that each of many has to get
PATIENCE_S = 60.0
NUM_REQUESTS, PACE_S = 200, 0.0005  #: requests of each deaf client between two checks, and seconds after each


def overload_learner(folder: Path, actors: int = 10, seconds: float = 20.0) -> NetworkTrial:
    """One actor makes more than the learner can use; then there are many.

    Args:
      folder: an empty one with a short path.
      actors: how many there are then.
      seconds: to take rates over.
    """
    with WatchedRun([*SMALL_FLAGS, "--learner.unroll_length", "2"], folder) as run:
        run.begin("learner", pause_s=LEARNER_PAUSE_S)
        run.begin("envserver", "broker", "actor")
        run.until(lambda: run.page("actor").get("waiting_credit_fraction", 0) > 0)
        alone = run.rate(RATE_S, seconds)
        run.begin(*["actor"] * (actors - 1))
        groups = actors * run.config.actor.env_groups
        run.until(lambda: len(run.streams()) == groups and min(run.streams().values()) > 1)
        memory, before = run.memory(), run.streams()
        together = run.rate(0.0, seconds)
        gained = [consumed - before[stream] for stream, consumed in run.streams().items()]
        pages, grown = run.pages("actor"), run.growth(memory)
    idle = [page["waiting_credit_fraction"] for page in pages]
    troubles = {
        f"the rate fell from {alone:.1f} to {together:.1f} updates/s": together < MIN_RATE_SHARE * alone,
        "more was under way than the window allows": any(page["unacked"] > 2 * page["groups"] for page in pages),
        f"groups were served {gained} times": min(gained) < MIN_FAIR_SHARE * sum(gained) / len(gained),
        f"actors waited only {idle} of their time for credit": min(idle) < 1 / 2,
    }
    return NetworkTrial(f"{actors} actors on a learner that one keeps busy", trouble=join_troubles(troubles | grown))


def ignore_replies(folder: Path, seconds: float = 10.0) -> NetworkTrial:
    """Clients on every plane ask and never read an answer. Arguments as for `overload_learner`."""
    rng = random.Random(0)  # noqa: S311 - ids, not secrets
    with WatchedRun(SMALL_FLAGS, folder) as run:
        run.begin(*ROLES)
        run.until(lambda: run.page("learner").get("updates", 0) > 0)
        # large replies, so that there is soon no room for them
        planes = ((Plane.STEPS, "envserver", 256), (Plane.INFERENCE, "broker", 256), (Plane.ROLLOUTS, "learner", 1))
        clients = []
        for plane, role, num_envs in planes:
            client = Visitor(Endpoint.parse(run.endpoints[role]), plane, rng, num_envs=num_envs)
            clients.append(run.resources.enter_context(client))
        rate, memory = run.rate(RATE_S, seconds), run.memory()

        def dealt_with() -> bool:
            for client in clients * NUM_REQUESTS:
                with suppress(OSError):  # the server may hang up
                    client.ask()
                time.sleep(PACE_S)
            return all(_is_dropped_or_gone(run, role) for role in ("envserver", "broker"))

        dealt = run.until(dealt_with, PATIENCE_S) < PATIENCE_S
        beside = run.rate(RATE_S, seconds)
        grown, cut = run.growth(memory), run.read_counter("actor", "rollouts_cut")
    troubles = {
        "replies were neither dropped and counted, nor the clients let go": not dealt,
        f"the rate of others fell from {rate:.1f} to {beside:.1f} updates/s": beside < MIN_RATE_SHARE * rate,
    }
    return NetworkTrial("clients that never read the replies", cut=cut, trouble=join_troubles(troubles | grown))


def _is_dropped_or_gone(run: WatchedRun, role: str) -> bool:
    """Whether a server dropped replies or let the deaf client go, whichever limit it reached first."""
    page = run.page(role)
    sessions = {"envserver": "sessions", "broker": "clients"}[role]
    return bool(page) and bool(page["dropped"] or page[sessions] <= run.config.actor.env_groups)


def mix_speeds(folder: Path, seconds: float = 10.0) -> NetworkTrial:
    """Half of each actor's groups get slow environments. Arguments as for `overload_learner`."""
    with NamedRun(folder) as run:
        run.begin("actor")
        groups = 2 * run.config.actor.env_groups
        run.until(lambda: len(run.streams()) == groups and min(run.streams().values()) > 1)
        alone = _count_gains(run, seconds)
        run.second("envserver", pause_s=ENV_PAUSE_S)
        run.until(lambda: len(run.pages("envserver")) > 1)
        run.mean({"envserver": (OLD_HOST, NEW_HOST)})
        run.until(lambda: all(page.get("sessions") == groups // 2 for page in run.pages("envserver")), PATIENCE_S)
        beside = sorted(_count_gains(run, seconds))
    slow, fast = beside[: groups // 2], beside[groups // 2 :]
    # one server steps the slow groups one after the other
    possible = seconds / (ENV_PAUSE_S * len(slow) * run.config.learner.unroll_length)
    troubles = {
        f"fast groups got {fast}, before {alone}": min(fast) < MIN_RATE_SHARE * sum(alone) / groups,
        f"slow groups got {slow} of {possible:.0f}": min(slow) < MIN_FAIR_SHARE * possible,
        f"slow groups were not slow: {slow} beside {fast}": max(slow) > min(fast),
    }
    return NetworkTrial("slow environments beside fast ones", trouble=join_troubles(troubles))


def _count_gains(run: WatchedRun, seconds: float) -> list[int]:
    """Rollout messages of each group that were learned from in these seconds."""
    before = run.streams()
    run.wait(seconds)
    return [consumed - before[stream] for stream, consumed in run.streams().items()]


TRIALS: dict[str, Callable[[Path], NetworkTrial]] = {
    "overload: actors": overload_learner,
    "overload: deaf clients": ignore_replies,
    "overload: slow environments": mix_speeds,
}
