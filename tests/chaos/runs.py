"""A run of real processes that tests disturb, and ways to observe it."""

import time
from collections.abc import Callable
from typing import Any

from zerobeast.common.process.roles import ROLES
from zerobeast_tools.chaos.balance import Balance
from zerobeast_tools.chaos.watch import RunWatch
from zerobeast_tools.throwaway_run import ThrowawayRun

TO_SEE_S = 180.0
#: one service of each role, which write their files often
TINY = (
    *("--local.actors", "1", "--local.env_servers", "1", "--actor.env_groups", "2", "--actor.envs_per_group", "2"),
    *("--env", "CartPole-v1", "--net.torso", "mlp", "--net.hidden_size", "8"),
    *("--learner.unroll_length", "5", "--learner.batch_size", "4"),
    *("--learner.log_every_s", "0.2", "--learner.checkpoint_every_s", "0.3"),
)
SMALL = ("--local.actors", "2", "--local.env_servers", "1")


def wait_for_learning(watch: RunWatch, more: float = 1.0) -> bool:
    """Wait until `more` further rollouts were learned from; False if that takes too long."""
    before = watch.progress.total(time.monotonic())
    return bool(
        watch.until(time.monotonic() + TO_SEE_S, lambda: watch.progress.total(time.monotonic()) >= before + more)
    )


def closes(watch: RunWatch) -> Balance:
    """Settle the accounts, and assert that nothing is wrong with them."""
    balance = watch.draw_balance()
    assert watch.wrong_accounts(balance) == []
    return balance


def page(fleet: ThrowawayRun, role: str) -> dict[str, Any]:
    """The health page of the first service of a role; empty while it does not answer."""
    return fleet.child(f"{role} 0").page()


def log(fleet: ThrowawayRun, role: str) -> str:
    """The log of the first service of a role, over all its starts."""
    return fleet.child(f"{role} 0").spec.log.read_text(errors="replace")


def wait_for(watch: RunWatch, probe: Callable[[], Any]) -> Any:
    """Wait until `probe` returns something true, and return that; no service of the run may end by itself."""
    found = watch.until(time.monotonic() + TO_SEE_S, probe)
    assert found, {role: page(watch.fleet, role) for role in ROLES}
    return found
