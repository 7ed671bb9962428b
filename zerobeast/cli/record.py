"""Record episodes of the policy of a run as a video.

RUN is the name of a run, the path of its folder, or a checkpoint: RUN:best, RUN:AGENT_STEPS or a file. Beside what the
environment shows are the return so far, the value that the policy expects, and the probabilities or values of its
actions, if it has any; the action that was taken is orange. The environment draws itself, as gymnasium's do with
render_mode rgb_array, without a display too; Atari games are shown in colour.

By default the video is videos/<agent steps>.mp4 in the folder of the run, or <name>-<agent steps>.mp4 beside a file of
another place. Episode i begins with seed S + i, as environment i of beast evaluate --seed S, which has at most 16;
without --seed, S is that of the run's own evaluations. With --greedy it is the first episode of that environment, as
far as rounding in a batch allows; drawn actions are the same only in beast evaluate --seed S --episodes 1.

What is not given is as in `evaluate` of the run's settings. Every setting of the run is a flag here too, such as
--env.sticky_actions 0.25 or, for MuJoCo, --env.kwargs '{"width": 240, "height": 240}'.
"""

import sys

from zerobeast import commands
from zerobeast.api.results import recorded
from zerobeast.api.saved import find, open_policy
from zerobeast.cli.evaluate import playing
from zerobeast.common.process.terminal import write

SHOW_STEPS = 500  #: between two lines about the progress


def main(argv: list[str]) -> int:
    """Run `beast record`. Raises BeastError if there is no video."""
    parser = commands.parser("beast record", __doc__)
    parser.add_argument(
        "--episodes", type=commands.positive, default=1, metavar="N", help="of each environment; default 1"
    )
    parser.add_argument("--out", metavar="FILE", help=".mp4, or a .gif of at most 2 MB; default: see above")
    own, request = playing(parser, argv)
    policy = open_policy(find(own.run, request.value("root")), request)
    path, found = recorded(policy, own.out, own.episodes, _announce)
    for number, (value, length) in enumerate(zip(found.returns, found.lengths, strict=True), 1):
        write(f"episode {number}: return {value:.2f}, {length:,} agent steps")
    if bounded := sum(found.bounded):
        write(f"{bounded} of them cut off at {policy.config.evaluate.max_steps:,} agent steps")
    write(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


def _announce(episode: int, steps: int) -> None:
    if steps % SHOW_STEPS == 0:
        write(f"episode {episode}, step {steps:,}", sys.stderr)
