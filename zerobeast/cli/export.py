"""`beast export RUN`: the policy of a run as a folder for others."""

from zerobeast import commands
from zerobeast.api.export import HOW, hand_on
from zerobeast.api.saved import find, open_policy
from zerobeast.common.config.flags import flags_for
from zerobeast.common.process.terminal import say, write
from zerobeast.common.settings import PLACE, PLAIN, Section, setting

HELP = """beast export RUN [--to safetensors|onnx] [--out FOLDER] [--episodes N] [settings]

  RUN           name of a run, or the path of its folder or of a checkpoint
  --to KIND     safetensors: the weights, which `beast evaluate FOLDER` and zerobeast.load read, the default;
                onnx: the acting step as a graph, compared with torch; or both, with a comma
  --out FOLDER  a new folder; by default export-<agent steps> in that of the run
  --episodes N  evaluate the policy now; by default the card has the run's own evaluation of it, if there is one

The folder has a model card and the layout of the Hugging Face hub; nothing in it is pickled. The run's video of this
policy goes with it. Needs the extra zerobeast[export].
"""


class ExportFlags(Section):
    """Flags of the command itself."""

    to: str = setting("safetensors", "safetensors, onnx, or both with a comma", decides=PLAIN)
    out: str = setting("", "folder to write", decides=PLACE)
    episodes: int = setting(0, "whole episodes to evaluate the policy with; 0: none", ge=0, le=1_000_000)


def main(argv: list[str]) -> int:
    """Run `beast export`. Raises BeastError if the run cannot be exported."""
    run, flags = commands.about(argv, HELP)
    place = find(run, flags, ExportFlags)
    policy = open_policy(place, [*flags, *flags_for(HOW)], own=ExportFlags, read_only=True)
    own = policy.loaded.own
    out = hand_on(policy, own.out, own.to, episodes=own.episodes, say=say)
    write(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return 0
