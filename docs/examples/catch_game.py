"""A game with its own loop, whose players ask a run for their actions and let it learn from the outcomes.

beast train --name catch --local.placement serve --env Catch-v0 --algo ppo --preset classic-ppo &
python docs/examples/catch_game.py tcp://127.0.0.1:5555 tcp://127.0.0.1:5560 60 runs/catch/keys
"""

import random
import sys
import time

import numpy as np

from zerobeast import ArraySpace, BeastError, EnvSpec, PolicyClient

ROWS, COLUMNS, PLAYERS = 10, 5, 16
ENV = EnvSpec("Catch-v0", ArraySpace.box((ROWS * COLUMNS,)), ArraySpace.discrete(3))


class Game:
    """A ball falls one row per step; the paddle below goes left, stays or goes right to catch it."""

    def restart(self):
        self.row, self.ball, self.paddle = 0, random.randrange(COLUMNS), COLUMNS // 2
        return self.look()

    def look(self):
        seen = np.zeros((ROWS, COLUMNS), np.float32)
        seen[self.row, self.ball] = seen[-1, self.paddle] = 1.0
        return seen.ravel()

    def play(self, action):
        self.row, self.paddle = self.row + 1, min(max(self.paddle + action - 1, 0), COLUMNS - 1)
        over = self.row == ROWS - 1
        return self.look(), (1.0 if self.ball == self.paddle else -1.0) if over else 0.0, over


def play(broker, learner, seconds, keys=None):
    """Play for that many seconds, and print the mean return every few thousand games."""
    games, returns, end = [Game() for _ in range(PLAYERS)], [], time.monotonic() + seconds
    with PolicyClient(broker, learner, ENV, agents=PLAYERS, keys=keys) as client:
        actions = client.start_many({player: game.restart() for player, game in enumerate(games)})
        while time.monotonic() < end:
            begun, steps = {}, {}
            for player, game in enumerate(games):
                obs, reward, over = game.play(actions[player])
                if over:
                    client.end(obs, reward, terminated=True, agent=player)
                    begun[player], returns = game.restart(), [*returns[-999:], reward]
                else:
                    steps[player] = obs, reward
            actions = client.act_many(steps) | client.start_many(begun)
            if begun and client.report()["episodes"] % (PLAYERS * 100) == 0:
                print(f"{client.report()['episodes']} games, mean return {np.mean(returns):.2f}", flush=True)


if __name__ == "__main__":
    try:
        play(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:])
    except BeastError as error:
        sys.exit(str(error))
