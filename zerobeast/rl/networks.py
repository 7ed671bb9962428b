"""Our own torsos, as packages register theirs; `zerobeast.rl.nets.torsos` has the networks."""

from dataclasses import replace

from zerobeast.common.settings import MIN_SHALLOW_SIDE
from zerobeast.common.settings.net import TorsoSpec

AUTO = MLP = TorsoSpec("zerobeast.rl.nets.torsos:build_by_array", bare="zerobeast.rl.nets.torsos:build_images_alone")
MINATAR = replace(AUTO, smallest_image=1)
SHALLOW = replace(AUTO, smallest_image=MIN_SHALLOW_SIDE, threads=True)
DEEP = FOOTBALL = replace(AUTO, smallest_image=1, threads=True, fills_a_core=True)
