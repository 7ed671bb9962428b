"""Our own torsos, as packages register theirs; `zerobeast.rl.nets.torsos` has the networks."""

from __future__ import annotations

from zerobeast.common.settings.networks import TorsoSpec
from zerobeast.common.settings.run import MIN_SHALLOW_SIDE

_MAKE = "zerobeast.rl.nets.torsos:by_array"

AUTO = MLP = TorsoSpec(_MAKE)
MINATAR = TorsoSpec(_MAKE, smallest_image=1)
SHALLOW = TorsoSpec(_MAKE, smallest_image=MIN_SHALLOW_SIDE, threads=True)
DEEP = TorsoSpec(_MAKE, smallest_image=1, threads=True, fills_a_core=True)
