"""A run of seconds, whose figures show whether and how fast this installation trains."""

import time

from zerobeast.common.errors import BeastError
from zerobeast.common.extras import name_extra
from zerobeast.diagnosis.facts import Facts, explain
from zerobeast.launcher.private_folder import private_folder

ENV, RUN_S = "CartPole-v1", 5.0
START_S = 120.0  #: within which a run takes its first steps
ENDLESS = 10**9  #: agent steps that no run takes in seconds


def try_run(seconds: float = RUN_S) -> Facts:
    """Train in a folder that is removed afterwards.

    Args:
      seconds: to train, from the first steps on.

    Returns:
      agent steps, seconds and steps per second; or `error`, the sentence with which the run failed.
    """
    try:
        with private_folder() as folder, name_extra():
            return {"env": ENV, **_train(str(folder), seconds)}
    except Exception as error:  # whatever is wrong with this installation
        return {"env": ENV, "error": explain(error)}


def _train(root: str, seconds: float) -> Facts:
    from zerobeast.api.train import start

    begun = time.monotonic()
    with start(ENV, total_steps=ENDLESS, name="doctor", root=root, learner={"log_every_s": 0.5}) as run:
        while not (first := run.status().agent_steps):
            if run.wait(0.1):
                raise BeastError("it ended before its first agent step")
            if time.monotonic() - begun > START_S:
                raise BeastError(f"no agent step within {START_S:.0f} s")
        since = time.monotonic()
        run.wait(seconds)
        taken, lasted = run.status().agent_steps - first, time.monotonic() - since
        if taken <= 0:
            raise BeastError(f"no agent step in {lasted:.1f} s after the first {first:,}")
        return {
            "algorithm": run.config.algo,
            "seconds to the first steps": round(since - begun, 1),
            "agent steps": taken,
            "agent steps/s": round(taken / lasted),
        }
