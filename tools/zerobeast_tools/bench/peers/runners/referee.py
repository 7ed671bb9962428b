"""The judge of every runner of a race: evaluates greedily every so often, and ends the race at the threshold.

The clock starts with the process and stands still during evaluations, which run in the process that trains.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any


def parse_terms() -> argparse.Namespace:
    """The terms of the race, as the command line of a runner gives them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--env", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threshold", type=float, required=True)
    parser.add_argument("--every", type=int, required=True, help="agent steps between evaluations")
    parser.add_argument("--episodes", type=int, required=True, help="of an evaluation")
    parser.add_argument("--eval_seed", type=int, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds")
    parser.add_argument("--started", type=float, required=True, help="time.monotonic() when this process was started")
    parser.add_argument("--script", help="of CleanRL: its path")
    return parser.parse_args()


class Referee:
    """Ends a race at the threshold or at its limit.

    Args:
      terms: of the race.
      clock: returns monotonic seconds.
    """

    def __init__(self, terms: argparse.Namespace, clock: Callable[[], float] = time.monotonic) -> None:
        self.terms, self._clock, self._due_at = terms, clock, terms.every
        self._away_s = 0.0  #: for evaluations
        self._outcome: dict[str, Any] = {
            "reached": False,
            "ended": "script",
            "seconds": 0.0,
            "agent_steps": 0,
            "evaluations": 0,
        }
        self.over = False

    def saw(self, agent_steps: int, play: Callable[[], float]) -> bool:
        """Judge the policy if that is due; returns whether the race is over.

        Args:
          agent_steps: taken so far.
          play: plays an evaluation and returns its mean score.
        """
        seconds = self._clock() - self.terms.started - self._away_s
        if self.over:
            return True
        self._outcome |= {"seconds": round(seconds, 1), "agent_steps": agent_steps}
        if seconds > self.terms.limit:
            self.over = True
            self._outcome["ended"] = "limit"
        elif agent_steps >= self._due_at:
            self._due_at = (agent_steps // self.terms.every + 1) * self.terms.every
            begun, score = self._clock(), play()
            self._away_s += self._clock() - begun
            self.over = score >= self.terms.threshold
            self._outcome |= {"score": round(score, 2), "evaluations": self._outcome["evaluations"] + 1}
            self._outcome |= {"reached": True, "ended": "threshold"} if self.over else {}
            sys.stderr.write(f"evaluation: {json.dumps(self._outcome)}\n")
        return self.over

    def report(self, version: str) -> None:
        """Print the outcome as one line of JSON."""
        sys.stdout.write(f"\n{json.dumps({**self._outcome, 'version': version})}\n")
        sys.stdout.flush()


def play_whole(env: Any, act: Callable[[Any], Any], terms: argparse.Namespace) -> float:
    """The mean raw score of whole episodes.

    Args:
      env: a gymnasium environment with RecordEpisodeStatistics inside whatever changes rewards or ends lives.
      act: an observation -> the greedy action.
      terms: of the race.
    """
    scores: list[float] = []
    observation, _ = env.reset(seed=terms.eval_seed)
    while len(scores) < terms.episodes:
        observation, _, terminated, truncated, info = env.step(act(observation))
        if terminated or truncated:
            if "episode" in info:  # not the end of a life alone
                scores.append(float(info["episode"]["r"]))
            observation, _ = env.reset()
    return sum(scores) / len(scores)
