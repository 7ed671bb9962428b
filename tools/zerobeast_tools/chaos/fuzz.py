"""Attack every plane and the health ports while a small run trains.

Sends garbage, mutated, forged, late and absurd messages, drawn from a seed, and opens silent, greedy and endless
connections between them. No service may end, hang, grow, unpickle data, fill the disk or harm the honest actor, and
refused messages have to be counted exactly, by reason.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from operator import sub
from pathlib import Path
from typing import Any, get_args

from zerobeast import commands
from zerobeast.common.errors import BeastError, Refusal
from zerobeast.common.health.metrics import METRICS
from zerobeast.common.process.terminal import write
from zerobeast.launcher.child import Child
from zerobeast_tools.chaos.fuzzed_run import SERVERS, AnswerWatch, FuzzedRun, ProcessUsage, count_refusals
from zerobeast_tools.chaos.trial_table import Row, markdown

MAX_GROWTH = ProcessUsage(rss_bytes=64 << 20, files=8, log_bytes=256 << 10)  #: of a process, after the first round
MAX_LOOP_AGE_S = 20.0
MAX_SILENCE_S = 30.0
HARM_COUNTERS = (
    "refused",
    "rollouts_cut",
    "reconnects",
    "moves",
)  #: what the honest actor counts if something harms it
assert METRICS.keys() >= set(HARM_COUNTERS), "a counter that no page has would never change"
#: service -> the plane that is attacked in it
PLANES = {f"{role} 0": plane.name.lower() for plane, role in SERVERS.items()}
PLANES |= {"broker 1": "weights", "broker 2": "news of weights"}


def main(argv: list[str]) -> int:
    """Run the attack; exit code 0 if everything held, 1 if something did not."""
    parser = commands.make_parser("beast chaos fuzz", __doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="number of hostile messages; default 20000")
    parser.add_argument("--seed", type=int, default=1, help="seed of the messages; default 1")
    parser.add_argument("--out", type=Path, help="write the result to this file as JSON")
    options = parser.parse_args(argv)
    if options.messages < 1000:
        parser.error(f"--messages {options.messages}: expected at least 1000")
    result = attack_run(options.messages, options.seed)
    write(format_result(result))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["failures"] else 0


def attack_run(messages: int, seed: int) -> dict[str, Any]:
    """Attack a run of its own with this many messages; returns the results, with `failures` in words."""
    with tempfile.TemporaryDirectory(prefix="zb") as folder, FuzzedRun(Path(folder), seed) as fuzzed:
        fuzzed.start_all()
        fuzzed.until_it_trains()
        actor = fuzzed.child("actor 0")
        honest, began, updates = actor.page(), time.monotonic(), fuzzed.updates()
        broken = []
        with AnswerWatch(fuzzed.children[:]) as watch:
            try:
                fuzzed.attack(messages)
            except (BeastError, OSError) as error:  # a service that has ended accepts no messages and shows no page
                broken.append(f"{type(error).__name__}: {error}")
        learned = fuzzed.updates() - updates
        failures = [
            *broken,
            *fuzzed.wrong,
            *(sentence for child in fuzzed.children for sentence in judge_page(child)),
            *(
                sentence
                for name, now in fuzzed.after.items()
                for sentence in judge_growth(name, fuzzed.before[name], now)
            ),
            *judge_answers(watch),
            *judge_actor(honest, actor.page()),
        ]
        if fuzzed.canary.exists():
            failures.append("something was unpickled")
        if learned < 1 or not _still_trains(fuzzed):
            failures.append("training has stopped")
        return {
            "messages": sum(many.total() for many in fuzzed.sent.values()),
            "seed": seed,
            "seconds": round(time.monotonic() - began, 1),
            "updates": learned,
            "attacks": dict(fuzzed.attacks),
            "sent": fuzzed.sent,
            "refused": {child.spec.name: count_refusals(child) for child in fuzzed.children},
            "table": [_row(fuzzed, child, watch) for child in fuzzed.children],
            "failures": failures,
        }


def _still_trains(fuzzed: FuzzedRun) -> bool:
    newest = fuzzed.updates()
    try:
        fuzzed.wait_for(lambda: fuzzed.updates() > newest, "no update")
    except BeastError:
        return False
    return True


def _row(fuzzed: FuzzedRun, child: Child, watch: AnswerWatch) -> Row:
    name, unknown = child.spec.name, ProcessUsage(0, 0, 0)
    before = fuzzed.before.get(name, unknown)
    grown = ProcessUsage(*map(sub, fuzzed.after.get(name, before), before))
    return {
        "plane": PLANES.get(name, ""),
        "service": name if child.running else f"{name}, which has ended",
        "hostile messages": f"{fuzzed.sent[name].total():,}",
        "growth": f"{grown.rss_bytes / 1e6:.1f} MB",
        "files": str(grown.files),
        "log": f"{grown.log_bytes / 1e3:.0f} KB",
        "slowest turn of its loop": f"{watch.loop_age_s.get(name, 0.0):.1f} s",
        "refused, by reason": ", ".join(f"{many:,} {reason}" for reason, many in sorted(count_refusals(child).items())),
    }


def judge_page(child: Child) -> Iterator[str]:
    """Mistakes in how a service counts refusals, by its page."""
    if child.poll() is not None:
        yield child.explain()
        return
    page = child.page()
    by_reason = page.get("refused_by_reason", {})
    if unknown := set(by_reason) - set(get_args(Refusal)):
        yield f"{child.spec.name}: peers have made up reasons: {sorted(unknown)}"
    if page.get("refused") != sum(by_reason.values()):
        yield f"{child.spec.name}: refused is {page.get('refused')}, its reasons sum to {sum(by_reason.values())}"


def judge_growth(name: str, before: ProcessUsage, after: ProcessUsage) -> Iterator[str]:
    """Resources of a process that have grown too much since the first round."""
    for what, then, now, most in zip(ProcessUsage._fields, before, after, MAX_GROWTH, strict=True):
        if now - then > most:
            yield f"{name}: {what} grew from {then:,} to {now:,}, expected at most {most:,} more"


def judge_answers(watch: AnswerWatch) -> Iterator[str]:
    """Services that were busy with hostile peers for too long."""
    for name, age in watch.loop_age_s.items():
        if age > MAX_LOOP_AGE_S:
            yield f"{name}: its loop did not turn for {age:.1f} s"
        if watch.silence_s[name] > MAX_SILENCE_S:
            yield f"{name}: no health page for {watch.silence_s[name]:.1f} s"


def judge_actor(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Harm to the honest actor, by its counters."""
    for what in HARM_COUNTERS:
        if after.get(what) != before.get(what):
            yield f"the honest actor: {what} was {before.get(what)} and is {after.get(what)}"


def format_result(result: Mapping[str, Any]) -> str:
    """The result as text for people."""
    rate = result["messages"] / max(result["seconds"], 1e-9)
    head = (
        f"{result['messages']:,} messages of seed {result['seed']} in {result['seconds']:.0f} s ({rate:.0f}/s), and "
        f"{sum(result['attacks'].values())} attacks; {result['updates']:,} updates meanwhile"
    )
    verdict = [f"FAILED {sentence}" for sentence in result["failures"]] or ["all held; the run still trains"]
    return "\n".join([head, "", markdown(result["table"]), *verdict])
