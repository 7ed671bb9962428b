"""Whether the guarantees held: what was observed of a run, in sentences. No sockets, no clock."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from zerobeast_tools.chaos.balance import Balance

Points = Sequence[tuple[float, float, float]]  #: (moment, uptime in s, MiB)

YOUNG_S = 15.0  #: until this age a process still fills its pools and caches
FEW_POINTS = 40  #: of a service; with fewer, its growth is not judged
GROWTH_SHARE, GROWTH_MIB = 0.1, 16.0  #: the tolerated growth from the first third to the last
HARMLESS_REASONS = {"session"}  #: refusals that restarts cause: requests to a start that does not have the session


def accounts(balance: Balance, window: int, steps: int, unroll_length: int) -> Iterator[str]:
    """What is wrong with the accounts.

    Args:
      balance: at the end.
      window: messages that a stream may have under way.
      steps: agent steps that the learner reports to have learned from.
      unroll_length: T.
    """
    if balance.gap:
        yield f"{balance.gap} of {balance.made} rollouts are not accounted for"
    if balance.waiting:
        yield f"{balance.waiting} rollouts are still on their way when nothing moves any more"
    if balance.most_waiting > window:
        yield f"{balance.most_waiting} messages of a stream were never delivered, its window is {window}"
    taken = balance.used + balance.dropped.get("update was not finite", 0)
    if steps != taken * unroll_length:
        yield f"{taken} rollouts of {unroll_length} steps were taken, but the learner has counted {steps} steps"


def memory(series: Mapping[str, Points]) -> Iterator[str]:
    """Services that have grown."""
    for name, points in series.items():
        early, late = ends(points)
        if early and late > early * (1 + GROWTH_SHARE) + GROWTH_MIB:
            yield f"{name} grew from {early:.0f} to {late:.0f} MiB"


def ends(points: Points) -> tuple[float, float]:
    """Median size in the first and last third of a series, without young processes; 0, 0 if points are too few."""
    sizes = [size for _, uptime_s, size in points if uptime_s >= YOUNG_S]
    if len(sizes) < FEW_POINTS:
        return 0.0, 0.0
    third = len(sizes) // 3
    return statistics.median(sizes[:third]), statistics.median(sizes[-third:])


def versions(epochs: int, starts: int, drops: int, groups: int) -> Iterator[str]:
    """What is wrong with the order of the weights. A learner that starts again continues at its checkpoint's version.

    Args:
      epochs: starts of the learner whose weights arrived.
      starts: of the learner, after the first.
      drops: answers of a broker that were chosen by older weights than the answer before.
      groups: env groups, each of which may have one drop per start of the learner.
    """
    if not 0 < epochs <= 1 + starts:
        yield f"weights came from {epochs} starts of the learner, expected 1 to {1 + starts}"
    if drops > starts * groups:
        yield f"policy versions went backwards {drops} times, expected at most {starts * groups}"


def strangeness(refused: Mapping[str, int], env_errors: int) -> Iterator[str]:
    """What must not happen among services that only restart."""
    for reason in refused.keys() - HARMLESS_REASONS:
        yield f"{refused[reason]} messages were refused for their {reason}"
    if env_errors:
        yield f"{env_errors} environments raised: an action was not the answer to their observation"
