"""Plays the policy of a saved run on environments of an env-server. See docs/quickstart.md.

python -m zerobeast.services.envserver --envserver.endpoint tcp://127.0.0.1:5550 &
python docs/examples/play.py runs/latest tcp://127.0.0.1:5550 CartPole-v1
"""

import sys
from pathlib import Path

from zerobeast import BeastError, Context, EnvClient, Player

NUM_ENVS = 4
STEPS = 1000


def play(run: Path, endpoint: str, env_id: str) -> list[float]:
    """Returns of the episodes that end within `STEPS` steps of `NUM_ENVS` environments."""
    returns: list[float] = []
    with EnvClient(Context(), endpoint, {"id": env_id}, NUM_ENVS, seed=1) as envs:
        player = Player(run, envs.spec, NUM_ENVS, greedy=True)
        rows = envs.reset()
        for _ in range(STEPS):
            rows, episodes, _ = envs.step(player.act(rows))
            returns += [value for value, _length in episodes]
    return returns


if __name__ == "__main__":
    try:
        print(play(Path(sys.argv[1]), *sys.argv[2:]))
    except BeastError as error:
        sys.exit(str(error))
