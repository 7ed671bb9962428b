"""`beast record RUN`: episodes of the saved policy as a video."""

import sys

from zerobeast import commands
from zerobeast.api.results import recorded
from zerobeast.api.saved import find, open_policy
from zerobeast.cli.evaluate import ACTIONS, spelt_out
from zerobeast.common.errors import ConfigError
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import PLACE, Section, setting

HELP = """beast record RUN [--episodes N] [--out FILE] [--max_steps N] [--levels A,B] [--seed S]
                  [--greedy | --sample] [settings]

  RUN             name of a run, the path of its folder, or a checkpoint: RUN:best, RUN:AGENT_STEPS or a file
  --episodes N    episodes of each of its environments, 1 by default
  --out FILE      .mp4, or a .gif of at most 2 MB; by default videos/<agent steps>.mp4 in the folder of the run, or
                  <name>-<agent steps>.mp4 beside a file of another place
  --max_steps N   agent steps after which an episode is cut off, 30,000 by default
  --levels A,B    environments to play in instead of the run's own, as for beast evaluate
  --seed S        of environments and actions: episode i begins with seed S + i, as environment i of beast evaluate,
                  which has at most 16. With --greedy it is the first episode of that environment, as far as rounding
                  in a batch allows; drawn actions are the same only in beast evaluate --episodes 1
  --greedy        take the likeliest or best action: the default, unless the run has evaluate.actions sampled
  --sample        draw actions as in training after its first random steps

Beside what the environment shows are the return so far, the value that the policy expects, and the probabilities or
values of its actions, if it has any; the action that was taken is orange. The environment draws itself, as gymnasium's
do with render_mode rgb_array, without a display too; Atari games are shown in colour. Settings of the run can be
changed, such as --env.sticky_actions 0.25 or, for MuJoCo, --env.kwargs '{"width": 240, "height": 240}'.
"""
SHOW_STEPS = 500  #: between two lines about the progress


class RecordFlags(Section):
    """Flags of the command itself."""

    episodes: int = setting(1, "episodes of each environment", ge=1, le=1_000)
    out: str = setting("", "the video, .mp4 or .gif", decides=PLACE)


def main(argv: list[str]) -> int:
    """Run `beast record`. Raises BeastError if there is no video."""
    run, given = commands.about(argv, HELP)
    flags = [flag if flag.startswith("--episodes") else spelt_out(flag) for flag in given]
    if set(ACTIONS.values()) <= set(flags):
        raise ConfigError("--greedy and --sample exclude each other")
    policy = open_policy(find(run, flags, RecordFlags), flags, own=RecordFlags)
    own = policy.loaded.own
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
