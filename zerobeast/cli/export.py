"""Export the policy of a run to a folder with a model card, in the layout of the Hugging Face hub.

RUN is the name of a run, or the path of its folder or of a checkpoint. KIND is safetensors: the weights, for
`beast evaluate FOLDER` and zerobeast.load; or onnx: the acting step as a graph, verified against torch; or both, with a
comma. Nothing in the folder is pickled. Without --episodes, the card shows the run's own evaluation of this policy, if
there is one, and the folder includes the run's video of it.

Every setting of the run is a flag here too. Needs the extra zerobeast[export].
"""

import os

from zerobeast import commands
from zerobeast.api.export import EXPORT_SETTINGS, KINDS, export_policy
from zerobeast.api.policies import find_policy, open_policy
from zerobeast.common.config.plain_values import plain_values
from zerobeast.common.config.request import Request
from zerobeast.common.process.terminal import say, write


def main(argv: list[str]) -> int:
    """Run `beast export`. Raises BeastError if the run cannot be exported."""
    parser = commands.make_parser("beast export", __doc__)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--to", default=KINDS[0], metavar="KIND", help="safetensors, onnx or both, with a comma; default %(default)s"
    )
    parser.add_argument(
        "--out", metavar="FOLDER", help="folder to create; default: export-<agent steps> in the run's folder"
    )
    parser.add_argument(
        "--episodes",
        type=commands.parse_positive,
        default=0,
        metavar="N",
        help="evaluate the policy in N episodes for the card",
    )
    own, flags = parser.parse_known_args(argv)
    request = Request.of_flags(flags, os.environ)
    policy = open_policy(
        find_policy(own.run, request.value("root")),
        request.with_values(dict(plain_values(EXPORT_SETTINGS)), "export"),
        read_only=True,
    )
    out = export_policy(policy, own.out, own.to, episodes=own.episodes, say=say)
    write(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    return 0
