"""Two learners that learn as one, in two networks, and the cable between them is cut for a while."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.build.commands import best, rows_of, steps
from tests.chaos.namespaces import explain_missing, networks
from tests.helpers import killed_at_last, wait_until

pytestmark = pytest.mark.timeout(600)

ENDPOINTS = [f"tcp://10.9.0.{number}:5560" for number in (1, 2)]
RANKS = ("--learner.ranks", "2", "--learner.endpoint", ENDPOINTS[0], "--learner.rank_endpoints", ENDPOINTS[1])
MEETING = ("--learner.meeting", "tcp://10.9.0.1:29500", "--learner.rank_timeout_s", "5")
QUICK = ("--learner.log_every_s", "0.5", "--learner.checkpoint_every_s", "1")
#: as a container whose policy is to restart on failure: 75 is the code of a rank that has lost another one
RESTARTED = """
import subprocess, sys
while (code := subprocess.call([sys.executable, *sys.argv[1:]])) == 75: pass
sys.exit(code)
"""


@pytest.mark.nightly
@pytest.mark.skipif(bool(why := explain_missing()), reason=f"there are no networks of one's own here: {why}")
def test_both_ranks_go_on_from_the_checkpoint_when_the_network_is_back(tmp_path: Path) -> None:
    flags = ("--env", "CartPole-v1", "--algo", "ppo", "--total_steps", "14000", "--insecure", "--root", tmp_path)
    run, logs = tmp_path / "x", [tmp_path / f"learner-{number}.log" for number in (0, 1)]

    with ExitStack() as stack, networks() as found:
        for number, log in enumerate(logs):
            command = (RESTARTED, "-m", "zerobeast.services.learner", "--name", "x", "--index", number)
            out = stack.enter_context(log.open("w"))
            rank = found.python(number + 1, "-c", *map(str, (*command, *flags, *RANKS, *MEETING, *QUICK)), stderr=out)
            stack.enter_context(killed_at_last(rank))
            worker = (*flags, *RANKS, "--name", "w", "--index", number)
            command = ("-m", "zerobeast.services.worker", *worker)
            stack.enter_context(killed_at_last(found.python(number + 1, *map(str, command), stdout=None, stderr=None)))
        wait_until(lambda: (run / "checkpoint.pt").exists() and steps(run) > 4000, 200)
        found.cut()
        for number, log in enumerate(logs):
            other = 1 - number
            wait_until(lambda log=log, other=other: re.search(f"rank {other}", log.read_text()), 60)
        cut_at = steps(run)
        found.mend()
        wait_until(lambda: steps(run) == 14_000, 200)
    assert cut_at < 14_000
    assert best(rows_of(run)) > 40, "a policy that does not learn has 20"
