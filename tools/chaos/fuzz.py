"""`beast chaos fuzz`: hostile peers on every plane and on the health ports, while a small run trains.

Messages that are garbage, mutated, forged, late or absurd, from a seed; and between them silent, greedy and endless
connections. Nothing may end, hang, grow, unpickle, fill the disk or harm the honest actor, and what is refused has to
be counted by reason, exactly.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from zerobeast.common.errors import BeastError, Refusal
from zerobeast.common.health.metrics import METRICS
from zerobeast.launcher.child import Child
from zerobeast.tools.chaos.fuzz_attacks import LARGEST
from zerobeast.tools.chaos.fuzzed_run import FuzzedRun, Reading, UsageWatch, page_of, read, until

ROUND = 100_000  #: messages between two rounds of attacks
LONG = 100_000  #: messages from which on attacks are larger
MAX_GROWTH_BYTES = 64 << 20  #: of a process, after the first round
MAX_FILES = 8  #: more than after the first round
MAX_LOG_BYTES = 256 << 10
MAX_LOOP_AGE_S = 20.0
MAX_SILENCE_S = 30.0
SETTLE_LIMIT_S = 90.0  #: for sessions and connections of those who have gone to end
HANDSHAKE_S = 6.0  #: libzmq ends a connection that says nothing for 5 s
LOST = ("refused", "rollouts_cut", "reconnects", "moves")  #: what the honest actor counts where something harms it
assert METRICS.keys() >= set(LOST), "a counter that no page has would never change"
#: the honest actor's sessions, as each page calls them
SESSIONS = {"envserver": ("sessions", 2), "broker": ("clients", 2), "learner": ("peers", 1)}
#: which plane is attacked in which service
PLANES = {"envserver 0": "steps", "broker 0": "inference", "learner 0": "rollouts", "broker 1": "weights"}


def main(argv: list[str]) -> int:
    """Run it; exit code 0 where everything held, 1 where something did not."""
    parser = argparse.ArgumentParser(
        prog="beast chaos fuzz",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=20_000, help="hostile messages; default 20000")
    parser.add_argument("--seed", type=int, default=1, help="of all of them; default 1")
    parser.add_argument("--out", type=Path, help="write the result here as JSON")
    options = parser.parse_args(argv)
    if options.messages < 1000:
        parser.error(f"--messages {options.messages}: expected at least 1000")
    result = run(options.messages, options.seed)
    sys.stdout.write(text(result) + "\n")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["failures"] else 0


def run(messages: int, seed: int) -> dict[str, Any]:
    """Attack a run of its own with so many messages; returns what was seen, with `failures` in words."""
    with tempfile.TemporaryDirectory(prefix="zb") as folder, FuzzedRun(Path(folder), seed) as fuzzed:
        fuzzed.begin()
        honest, began, updates = page_of(fuzzed.actor), time.monotonic(), fuzzed.updates()
        before: dict[str, Reading] = {}
        after: dict[str, Reading] = {}
        broken = []
        with UsageWatch(fuzzed.children[:]) as watch:
            try:
                attack_in_rounds(fuzzed, messages, before, after)
            except (BeastError, OSError) as error:  # OSError: a service that has ended takes and shows nothing
                broken.append(f"{type(error).__name__}: {error}")
        learned = fuzzed.updates() - updates
        failures = [
            *broken,
            *fuzzed.wrong,
            *(sentence for child in fuzzed.children for sentence in judge_page(child)),
            *(sentence for name in after for sentence in judge_growth(name, before[name], after[name])),
            *judge_run(fuzzed, watch, honest, learned),
        ]
        return {
            "messages": sum(many.total() for many in fuzzed.sent.values()),
            "seed": seed,
            "seconds": round(time.monotonic() - began, 1),
            "updates": learned,
            "attacks": dict(fuzzed.attacks),
            "services": {child.spec.name: seen(fuzzed, child, watch, before, after) for child in fuzzed.children},
            "failures": failures,
        }


def attack_in_rounds(fuzzed: FuzzedRun, messages: int, before: dict[str, Reading], after: dict[str, Reading]) -> None:
    """Send it all. What processes have is noted after the first round, which fills caches, and at the end.

    Raises:
      BeastError: a service does not count or forget what it has to.
      OSError: a service has ended.
    """
    first, forged, scale = messages // 10, messages // 50, LARGEST if messages >= LONG else 1
    fuzzed.round(first, scale)
    broker = fuzzed.second_broker()
    before |= settled(fuzzed)
    rounds = -(-messages // ROUND)
    for _ in range(rounds):
        fuzzed.round((messages - first - forged) // rounds, scale)
    fuzzed.forge(broker, forged)
    after |= settled(fuzzed)


def settled(fuzzed: FuzzedRun) -> dict[str, Reading]:
    """Every process, once all that hostile peers have left behind is gone."""
    fuzzed.quiet()
    for child in fuzzed.children:
        if child.spec.role in SESSIONS and child.spec.index == 0:
            alone(child, *SESSIONS[child.spec.role])
    time.sleep(HANDSHAKE_S)
    return {child.spec.name: read(child) for child in fuzzed.children}


def alone(child: Child, key: str, many: int) -> None:
    """Wait until the honest actor's sessions are the only ones."""
    complaint = f"{child.spec.name} does not come back to {many} {key}"
    until(lambda: page_of(child).get(key) == many, SETTLE_LIMIT_S, complaint)


def seen(
    fuzzed: FuzzedRun, child: Child, watch: UsageWatch, before: dict[str, Reading], after: dict[str, Reading]
) -> dict[str, Any]:
    """One service, for the table."""
    name = child.spec.name
    plane = PLANES.get(name, "")
    return {
        "plane": plane,
        "sent": dict(fuzzed.sent.get(plane, {})),
        "refused_by_reason": page_of(child).get("refused_by_reason", {}),
        "before": before[name]._asdict() if name in before else None,
        "after": after[name]._asdict() if name in after else None,
        "loop_age_s": watch.loop_age_s.get(name, 0.0),
        "alive": child.poll() is None,
    }


def judge_page(child: Child) -> Iterator[str]:
    """What a service's page says about how it counts."""
    if child.poll() is not None:
        yield child.explain()
        return
    page = page_of(child)
    by_reason = page.get("refused_by_reason", {})
    if strangers := set(by_reason) - set(get_args(Refusal)):
        yield f"{child.spec.name}: peers have made up reasons: {sorted(strangers)}"
    if page.get("refused") != sum(by_reason.values()):
        yield f"{child.spec.name}: refused is {page.get('refused')}, its reasons sum to {sum(by_reason.values())}"


def judge_growth(name: str, before: Reading, after: Reading) -> Iterator[str]:
    """What a process has more of than after the first round."""
    limits = Reading(MAX_GROWTH_BYTES, MAX_FILES, MAX_LOG_BYTES)
    for what, then, now, most in zip(Reading._fields, before, after, limits, strict=True):
        if now - then > most:
            yield f"{name}: {what} grew from {then:,} to {now:,}, expected at most {most:,} more"


def judge_run(fuzzed: FuzzedRun, watch: UsageWatch, honest: dict[str, Any], learned: int) -> Iterator[str]:
    """What became of the training."""
    if fuzzed.canary.exists():
        yield "something was unpickled"
    if learned < 1 or not fuzzed.still_trains():
        yield "training has stopped"
    now = page_of(fuzzed.actor)
    for what in LOST:
        if now.get(what) != honest.get(what):
            yield f"the honest actor: {what} was {honest.get(what)} and is {now.get(what)}"
    for name, age in watch.loop_age_s.items():
        if age > MAX_LOOP_AGE_S:
            yield f"{name}: its loop did not turn for {age:.1f} s"
        if watch.silence_s[name] > MAX_SILENCE_S:
            yield f"{name}: no health page for {watch.silence_s[name]:.1f} s"


def text(result: dict[str, Any]) -> str:
    """For people."""
    rate = result["messages"] / max(result["seconds"], 1e-9)
    lines = [
        f"{result['messages']:,} messages of seed {result['seed']} in {result['seconds']:.0f} s ({rate:.0f}/s), and "
        f"{sum(result['attacks'].values())} attacks; {result['updates']:,} updates meanwhile",
        "",
        f"{'plane':<11}{'service':<13}{'messages':>9}{'MB grown':>10}{'files':>7}{'log KB':>8}{'worst turn s':>14}"
        f"{'alive':>7}  refused",
    ]
    for name, each in result["services"].items():
        before, after = each["before"], each["after"] or each["before"]
        grown = "".join(
            f"{(after[what] - before[what]) / unit:>+{width}.{digits}f}" if before else f"{'?':>{width}}"
            for what, unit, width, digits in (("rss_bytes", 1e6, 10, 1), ("files", 1, 7, 0), ("log_bytes", 1e3, 8, 0))
        )
        refused = ", ".join(f"{many:,} {reason}" for reason, many in sorted(each["refused_by_reason"].items()))
        lines.append(
            f"{each['plane']:<11}{name:<13}{sum(each['sent'].values()):>9,}{grown}{each['loop_age_s']:>14.1f}"
            f"{'yes' if each['alive'] else 'NO':>7}  {refused}"
        )
    verdict = [f"FAILED {sentence}" for sentence in result["failures"]] or ["all held; the run still trains"]
    return "\n".join([*lines, "", *verdict])
