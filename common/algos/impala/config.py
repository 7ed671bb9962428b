"""Settings of IMPALA. Torch-free: every service reads the whole tree."""

from __future__ import annotations

from typing import Literal

from common.config.setting import Section, setting


class ImpalaConfig(Section):
    """V-trace actor-critic. Sources: Espeholt et al. 2018, table G.1, where nothing else is said."""

    discount: float = setting(0.99, "gamma", ge=0, le=1)
    entropy_cost: float = setting(0.01, "weight of the entropy bonus", ge=0)
    baseline_cost: float = setting(0.5, "weight of the value loss", ge=0)
    reward_clipping: Literal["abs_one", "none"] = setting("abs_one", "abs_one: to [-1, 1], in the learner only")
    reward_scale: float = setting(1.0, "factor on rewards, in the learner only, before clipping", gt=0)
    reduction: Literal["sum", "mean"] = setting("sum", "over time and batch; the paper and TorchBeast sum")
    rho_bar: float = setting(1.0, "V-trace clip on importance ratios, equation 1", gt=0)
    c_bar: float = setting(1.0, "V-trace clip on trace coefficients, equation 1", gt=0)
    pg_rho_bar: float = setting(1.0, "clip on the ratio in the policy gradient", gt=0)
    trace_decay: float = setting(1.0, "lambda on the trace coefficients, remark 2", ge=0, le=1)
    optimizer: Literal["rmsprop", "rmsprop_tf", "adam"] = setting("rmsprop", "rmsprop_tf: TensorFlow 1's semantics")
    learning_rate: float = setting(6e-4, "at the start", gt=0)
    schedule: Literal["linear", "constant"] = setting("linear", "linear: to 0 at total_steps")
    alpha: float = setting(0.99, "RMSProp's decay (the code of the paper)", ge=0, lt=1)
    momentum: float = setting(0.0, "RMSProp's momentum", ge=0, lt=1)
    epsilon: float = setting(0.01, "RMSProp's or Adam's", gt=0)
    max_grad_norm: float = setting(40.0, "clip on the global norm of the gradient", gt=0)
