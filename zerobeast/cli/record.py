"""Record episodes of the policy of a run as a video.

RUN is the name of a run, the path of its folder, or a checkpoint: RUN:best, RUN:AGENT_STEPS or a file. Next to the
environment's picture, the video shows the return so far, the policy's value estimate, and the probabilities or values
of the actions, if the policy has any; the action taken is orange. The environment renders itself, as gymnasium's do
with render_mode rgb_array, so no display is needed. Atari games are shown in colour.

By default the video is videos/<agent steps>.mp4 in the folder of the run, or <name>-<agent steps>.mp4 next to a
checkpoint file that is not in a run's folder. Episode i starts with seed S + i, like environment i of
`beast evaluate --seed S`, which has at most 16 environments. Without --seed, S is the seed of the run's own
evaluations. With --greedy, the video shows the first episode of that environment, except for rounding differences in
batches; sampled actions are the same only with `beast evaluate --seed S --episodes 1`.

The defaults are the run's `evaluate` settings. Every setting of the run is a flag here too, such as
--env.sticky_actions 0.25 or, for MuJoCo, --env.kwargs '{"width": 240, "height": 240}'.
"""

import sys

from zerobeast import commands
from zerobeast.api.policies import find_policy, open_policy
from zerobeast.api.results import record_policy
from zerobeast.cli.evaluate import parse_play_flags
from zerobeast.common.process.terminal import write

SHOW_STEPS = 500  #: between two lines about the progress


def main(argv: list[str]) -> int:
    """Run `beast record`. Raises BeastError if there is no video."""
    parser = commands.make_parser("beast record", __doc__)
    parser.add_argument(
        "--episodes", type=commands.parse_positive, default=1, metavar="N", help="episodes per environment; default 1"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="file to write: .mp4, or .gif of at most 2 MB; default: see above"
    )
    own, request = parse_play_flags(parser, argv)
    policy = open_policy(find_policy(own.run, request.value("root")), request)
    path, found = record_policy(policy, own.out, own.episodes, _announce)
    for number, (value, length) in enumerate(zip(found.returns, found.lengths, strict=True), 1):
        write(f"episode {number}: return {value:.2f}, {length:,} agent steps")
    if bounded := sum(found.bounded):
        write(f"{bounded} of them cut off at {policy.config.evaluate.max_steps:,} agent steps")
    write(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


def _announce(episode: int, steps: int) -> None:
    if steps % SHOW_STEPS == 0:
        write(f"episode {episode}, step {steps:,}", sys.stderr)
