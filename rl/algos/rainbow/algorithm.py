"""Rainbow: C51 with double, dueling, prioritised and n-step learning."""

from zerobeast.rl.algos.c51.algorithm import C51
from zerobeast.rl.algos.rainbow.config import RainbowConfig


class Rainbow(C51[RainbowConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""
