"""A user's script, with an environment of its own: what it does is said on its command line."""

import os
import sys
import time

import gymnasium
from gymnasium.wrappers import TransformReward

import zerobeast as zb

SMALL = {"net": {"hidden_size": 16}, "learner": {"log_every_s": 0.2}, "local": {"workers": 1}}


def doubled() -> gymnasium.Env:
    return TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 2 * reward)


def whole() -> None:
    steps, episodes, saved = [], [], []

    def update(run: zb.Run, row: dict) -> None:
        steps.append(row["agent_steps"])
        run.log(seen=len(steps))
        if len(steps) == 1:
            run.set(ppo={"entropy_cost": 0.25}, env={"progress": 0.01})

    told = [
        update,
        zb.Callbacks(
            on_episode=lambda run, new: episodes.extend(new), on_checkpoint=lambda run, path: saved.append(path)
        ),
    ]
    low_high = {"low": "{progress}", "high": "{progress}"}  # from 0.21 on, episodes end with their first step
    starts = {"env.options": low_high, "env.progress": 0.0}
    run = zb.train(doubled, "ppo", 6000, name="whole", callbacks=told, **SMALL, **starts)
    assert "torch" not in sys.modules
    assert (run.status().state, run.status().agent_steps) == ("done", 6000)
    assert repr(run).startswith("<Run 'whole', done: 6,000/6,000 agent steps"), run
    assert steps == [at for at in run.metrics()["agent_steps"] if at]
    assert steps[-1] == 6000
    assert run.metrics()["seen"].tolist()[-1] == len(steps)
    assert "entropy_cost: 0.25" in (run.folder / "config.yaml").read_text()
    assert run.config.algorithm.entropy_cost == 0.25
    assert run.config.env.progress == 0.01
    assert min(row["length"] for row in episodes) > 1
    assert episodes == run.episodes().to_dict("records")
    assert [row["return"] for row in episodes] == [2.0 * row["length"] for row in episodes]
    assert saved[-1] == run.folder / "checkpoint.pt"
    played = zb.evaluate(run, episodes=3)
    assert played.returns == [2.0 * length for length in played.lengths]
    assert zb.evaluate(run.policy(), doubled, 3).returns == played.returns
    steps.clear()
    more = zb.start(name="whole", total_steps=7000, callbacks=told, env=doubled)
    assert not more.wait(timeout=0.0)
    assert more.wait()
    assert min(steps) > 6000
    os.chdir("runs")
    assert len(zb.evaluate(run.folder, episodes=1).returns) == 1, "what was begun by a whole path needs no confirmation"


def failing() -> None:
    def fail(run: zb.Run, row: dict) -> None:
        run.log(last=1.5)
        raise RuntimeError("enough")

    try:
        zb.train("CartPole-v1", name="failing", callbacks=fail, **SMALL)
    except RuntimeError as error:
        sys.stdout.write(f"{error}, {zb.Run('failing').metrics()['last'].max()}")


def until_killed(name: str) -> None:
    run = zb.start("CartPole-v1", name=name, **SMALL)
    while not len(run.metrics()):
        time.sleep(0.05)
    sys.stdout.write(f"{run.status().state}\n")
    sys.stdout.flush()
    run.wait()


if __name__ == "__main__":
    {"whole": whole, "failing": failing}.get(sys.argv[1], lambda: until_killed(sys.argv[1]))()
