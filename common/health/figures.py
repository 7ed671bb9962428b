"""Numbers of health pages as people read them. A number that is missing, null or nonsense shows as a dash."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from zerobeast.common.process.roles import RECORDS, Role

UNKNOWN = "-"
READY_STATE, STALLED_STATE = "ready", "stalled"  #: both take work; a stalled service gets none of it done
BLOCKS = "▁▂▃▄▅▆▇█"
SILENT_S = 10.0  #: a page older than this counts as no answer
STARTING_S = 60.0  #: the same for a service that has not answered yet
SPARK_WIDTH = 24
MAX_NUMBER = 1e18  #: a page may come from any peer, and a JSON integer may be too large for a float
MIB, GIB = 1 << 20, 1 << 30
FIRST_FIGURES = ("steps", "done", "return", "losses", "speed")  #: of the figures of a run's progress
TROUBLES = {
    "refused": "refused",
    "dropped": "dropped",
    "rollouts_cut": "rollouts cut short",
    "reconnects": "reconnects",
    "moves": "moves",
    "setbacks": "setbacks",
    "env_errors": "env errors",
    "env_timeouts": "hung env processes",
    "nonfinite_updates": "non-finite updates",
    "write_errors": "failed writes",
}
RATES = {"broker": ("rows_per_s", "rows/s")}


@dataclass(frozen=True)
class ServiceView:
    """What is known of a service, seen from outside."""

    name: str  #: of the process, such as "actor 0"
    role: str
    page: dict[str, Any] = field(default_factory=dict)  #: the newest page; empty before the first
    silent_s: float = 0.0  #: seconds since that page, or since the start
    cpu_share: float | None = None  #: cores in use by the process and its helpers, if known
    code: int | None = None  #: exit code, if it has ended
    note: str = ""  #: why it ended, or why it cannot be asked
    finished: bool = False  #: it has ended with nothing left to do


def number(page: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a page, or None if it is missing, null or something else."""
    return to_finite(page.get(key))


def to_finite(value: Any) -> float | None:
    """A value of a page as a number that a float can hold, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= MAX_NUMBER else None  # false for NaN


def format_number(value: float | None, layout: str) -> str:
    return UNKNOWN if value is None else format(value, layout)


format_count = partial(format_number, layout=",.0f")  #: 1,234,567
format_decimal = partial(format_number, layout=",.1f")  #: 12.3
format_hundredths = partial(format_number, layout=".2f")  #: 12.34
format_percent = partial(format_number, layout=".1%")  #: 12.3%
format_share = partial(format_number, layout=".0%")  #: 45%, of one core


def format_ms(seconds: float | None) -> str:
    """1.23 ms, 12.3 ms, 123 ms."""
    if seconds is None:
        return UNKNOWN
    value = 1000 * seconds
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def format_duration(seconds: float | None) -> str:
    """1:02:03, or 3d 01:02:03."""
    if seconds is None:
        return UNKNOWN
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}d {hour:02}:{minute:02}:{second:02}" if days else f"{hour}:{minute:02}:{second:02}"


def format_size(n_bytes: float | None) -> str:
    """123 MB or 1.2 GB."""
    if n_bytes is None:
        return UNKNOWN
    return f"{n_bytes / MIB:.0f} MB" if n_bytes < GIB else f"{n_bytes / GIB:.1f} GB"


def sparkline(values: Sequence[Any], width: int = SPARK_WIDTH) -> str:
    """The newest `width` numbers as blocks of eight heights; a flat line is drawn low."""
    known = [float(value) for each in values if (value := to_finite(each)) is not None][-width:]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1)) if span > 0 else 0] for value in known)


def done_share(total_steps: int, learner: Mapping[str, Any]) -> float | None:
    """Share of the run that is done."""
    steps = number(learner, "agent_steps")
    return None if steps is None else min(1.0, steps / total_steps)


def eta_s(total_steps: int, learner: Mapping[str, Any]) -> float | None:
    """Seconds until the last step at the current rate, or None if unknown."""
    steps, rate = number(learner, "agent_steps"), number(learner, "agent_steps_per_s")
    if steps is None or not rate or rate <= 0:
        return None
    return to_finite(max(0.0, total_steps - steps) / rate)


def frames_per_s(learner: Mapping[str, Any]) -> float | None:
    """The learner's rate in env frames, from the mean number of frames per step so far."""
    rate, steps = number(learner, "agent_steps_per_s"), number(learner, "agent_steps")
    frames = number(learner, "env_frames")
    if rate is None or not steps or frames is None:
        return None
    return rate * frames / steps


def format_evaluations(evaluator: Mapping[str, Any]) -> str:
    """What the evaluator found so far, and has left to do; empty if there is none."""
    if not evaluator:
        return ""
    last, best = (format_hundredths(number(evaluator, name)) for name in ("evaluated_return", "best_return"))
    return f"evaluated {last}, best {best}, {format_count(number(evaluator, 'evaluations_waiting'))} waiting"


def format_progress(total_steps: int, learner: Mapping[str, Any]) -> dict[str, str]:
    """How far a run is and how well it does, figure by figure."""
    rate, frames = number(learner, "agent_steps_per_s"), frames_per_s(learner)
    losses = {name: value for name in ("loss", "entropy") if (value := number(learner, name)) is not None}
    return {
        "steps": f"{format_count(number(learner, 'agent_steps'))}/{total_steps:,} agent steps",
        "done": f"{format_percent(done_share(total_steps, learner))}, "
        f"ETA {format_duration(eta_s(total_steps, learner))}",
        "return": f"return {format_hundredths(number(learner, 'mean_return_100'))}, {format_episodes(learner)}",
        **({"losses": ", ".join(f"{name} {value:.3g}" for name, value in losses.items())} if losses else {}),
        "speed": f"{format_count(rate)} steps/s"
        + (f", {format_count(frames)} frames/s" if frames not in (None, rate) else ""),
        "lag": f"lag {format_decimal(number(learner, 'policy_lag_mean'))} mean "
        f"{format_count(number(learner, 'policy_lag_max'))} max",
        "updates": f"{format_count(number(learner, 'updates'))} updates",
    }


def format_episodes(learner: Mapping[str, Any]) -> str:
    """How many episodes have ended, and how many are lost if any is."""
    lost = number(learner, "episodes_lost")
    return f"{format_count(number(learner, 'episodes'))} episodes{f', {format_count(lost)} lost' if lost else ''}"


def state_of(view: ServiceView) -> str:
    """What a service is doing, in a word or two."""
    if view.code is not None:
        return "ended" if view.code == 0 else f"ended ({view.code})"
    if view.silent_s > (SILENT_S if view.page else STARTING_S):
        return "no answer"
    if not view.page:
        return "starting"
    loop_age = number(view.page, "loop_age_s")
    reported = str(view.page.get("state", "starting"))  # which the page of a service that is not open yet has not
    if reported != READY_STATE:
        return reported
    if loop_age is not None and loop_age > SILENT_S:
        return "stuck"
    return STALLED_STATE if view.page.get("stalled") is True else READY_STATE


def format_wait(view: ServiceView) -> str:
    """What a service waits for most, and for what share of its whole time."""
    role = RECORDS.get(view.role, Role(""))
    shares = {what: number(view.page, f"waiting_{part}fraction") for what, part in role.waits.items()}
    busy = number(view.page, "busy_fraction")
    if role.idle and busy is not None:
        shares[role.idle] = 1.0 - busy
    known = {what: part for what, part in shares.items() if part is not None}
    if not known:
        return UNKNOWN
    what = max(known, key=lambda name: known[name])
    return f"{what} {format_share(max(0.0, known[what]))}"


def format_load(view: ServiceView) -> str:
    """How full a service is: the learner's queue, the broker's batches, the environments others host or drive."""
    page = view.page
    if view.role == "learner":
        return f"queue {format_count(number(page, 'queue_rows'))}/{format_count(number(page, 'queue_capacity'))}"
    if view.role == "broker":
        return f"batch {format_decimal(number(page, 'batch_rows_mean'))}/{format_count(number(page, 'max_batch_rows'))}"
    return f"{format_count(number(page, 'envs'))} envs"


def format_policy(view: ServiceView) -> str:
    """Version of the weights, and how far behind it the actors' steps were."""
    version, lag = number(view.page, "policy_version"), number(view.page, "policy_lag_mean")
    if version is None:
        return ""
    return f"v{version:.0f}" if lag is None else f"v{version:.0f} lag {lag:.1f}"


def format_peers(view: ServiceView) -> str:
    """Number of conversations that the service has with others."""
    return format_count(number(view.page, RECORDS.get(view.role, Role("")).peers))


def format_trouble(view: ServiceView) -> str:
    """What the service has refused, dropped, lost or made anew since its start; empty if nothing."""
    found = {what: number(view.page, key) or 0 for key, what in TROUBLES.items()}
    return ", ".join(f"{many:,.0f} {what}" for what, many in found.items() if many)


def format_rate(view: ServiceView) -> str:
    """Throughput of a service."""
    key, unit = RATES.get(view.role, ("agent_steps_per_s", "steps/s"))
    value = number(view.page, key)
    return UNKNOWN if value is None else f"{value:,.0f} {unit}"
