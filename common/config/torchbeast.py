"""TorchBeast's flags (monobeast.py, polybeast.py and its two halves), so that its users can keep their commands.

Flags for algorithm settings apply to the algorithm that `algo` names. A setting whose flag is not given keeps this
project's default; `--preset torchbeast` gives TorchBeast's. `--num_actors` counts environments there, one to a process;
here they are spread evenly over the groups of the local actors, and the count is rounded up to fill them.
"""

from pathlib import Path

import yaml

PRESET = "torchbeast"
ALGO = "<algo>"  #: section of the algorithm that the run uses

_FLAGS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SAME, NEEDLESS = _FLAGS["same"], _FLAGS["needless"]  #: names of settings; flags that set nothing here, and why
FIXED = {"disable_cuda": {"broker.device": "cpu", "learner.device": "cpu"}}  #: switches that stand for values
MODE = "mode"  #: train, or test, which `beast train` understands
ACTORS = "num_actors"
FLAGS = (*SAME, *FIXED, MODE, ACTORS, *NEEDLESS)
