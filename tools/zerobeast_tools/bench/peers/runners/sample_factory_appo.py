"""Sample Factory: APPO, sampling and learning at the same time, every step trained on once."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from meter import Meter  # beside this script
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.train import make_runner
from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

#: What differs from the package's own Atari example. V-trace stays off: with it this version's learner dies.
FLAGS = (
    "--env=atari_pong",
    "--experiment=bench",
    "--restart_behavior=overwrite",
    "--seed=0",
    "--device=cpu",
    "--async_rl=True",
    "--num_workers=2",
    "--num_envs_per_worker=8",
    "--worker_num_splits=2",
    "--rollout=32",
    "--batch_size=512",
    "--num_batches_per_epoch=1",
    "--num_epochs=1",
    "--summaries_use_frameskip=False",  # count agent steps, not the emulator's frames
)


class RateObserver(AlgoObserver):
    """Reports each finished update to the meter."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_training_step(self, runner: Any, _iteration: int) -> None:
        """Called by the runner after each update, just before it checks its limit."""
        if self._meter.saw(runner.env_steps.get(0, 0)):
            runner.cfg.train_for_env_steps = 0


def main() -> int:
    """Train until the measurement is over."""
    meter = Meter.from_flags()
    register_atari_components()
    _, runner = make_runner(parse_atari_args(list(FLAGS)))
    runner.register_observer(RateObserver(meter))
    if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
        return 1
    meter.report(version("sample-factory"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
