"""Settings of A2C."""

from zerobeast.common.settings import AlgorithmSpec
from zerobeast.rl import settings as s


class A2CConfig(s.VTraceSettings):
    """Advantage actor-critic. Sources: the defaults of OpenAI Baselines' a2c, unless noted.

    Policy gradient with the advantages of n-step returns (Mnih et al. 2016, section 4). Off-policy steps are corrected
    by V-trace, with both clips at 1. On policy its ratios are 1, which leaves the n-step returns.
    """

    trace_decay: s.TraceDecay = 1.0  # n-step returns, as in the paper; below 1 GAE(lambda)
    baseline_cost: s.BaselineCost = 0.5
    reduction: s.Reduction = "mean"
    optimizer: s.Optimizer = "rmsprop_tf"
    learning_rate: s.LearningRate = 7e-4
    epsilon: s.Epsilon = 1e-5
    max_grad_norm: s.MaxGradNorm = 0.5


SPEC = AlgorithmSpec("a2c", A2CConfig, "zerobeast.rl.algos.policy_gradient.vtrace_loss:VTraceActorCritic")
