"""A2C: policy gradient with the advantages of n-step returns (Mnih et al. 2016, section 4).

Off-policy steps are corrected by V-trace, with both clips at 1. On policy its ratios are 1, which leaves the n-step
returns.
"""

from zerobeast.rl.algos.a2c.config import A2CConfig
from zerobeast.rl.algos.policy_gradient.vtrace_loss import VTraceActorCritic


class A2C(VTraceActorCritic[A2CConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""
