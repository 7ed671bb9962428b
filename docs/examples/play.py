"""Plays the policy of a saved run on environments of an env-server. See docs/quickstart.md.

python -m zerobeast.services.envserver --envserver.endpoint tcp://127.0.0.1:5550 &
python docs/examples/play.py runs/latest tcp://127.0.0.1:5550 CartPole-v1
"""

import sys

from zerobeast import BeastError, Context, EnvClient, load

NUM_ENVS = 4
STEPS = 1000


def play(run: str, endpoint: str, env_id: str) -> list[float]:
    """Returns of the episodes that end within `STEPS` steps of `NUM_ENVS` environments."""
    returns, policy, state = list[float](), load(run).of_rows(), None
    with EnvClient(Context(), endpoint, {"id": env_id}, NUM_ENVS, seed=1) as envs:
        rows = envs.reset()
        for _ in range(STEPS):
            actions, state = policy.predict(rows["obs"], state, rows["first"], last_reward=rows["reward"])
            rows, episodes, _ = envs.step(actions)
            returns += [value for value, _length in episodes]
    return returns


if __name__ == "__main__":
    try:
        print(play(*sys.argv[1:]))
    except BeastError as error:
        sys.exit(str(error))
