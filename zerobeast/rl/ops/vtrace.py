"""V-trace off-policy targets (Espeholt et al. 2018, arXiv:1802.01561), with NEXT_STEP autoreset.

Names follow the paper: rhos are importance ratios pi/mu, cs the trace coefficients, vs the corrected values.

How an episode ends in the sequence (see `zerobeast.common.wire.records`), t being the transition that ends it:

    terminated   discounts[t] = 0: neither a bootstrap nor a correction comes from beyond t
    truncated    discounts[t] = gamma: bootstraps from values[t + 1], the value of the true final observation
    t + 1        void, mask[t + 1] False: delta 0, so vs[t + 1] = values[t + 1] and no correction crosses it
"""

from typing import NamedTuple

import torch
from torch import Tensor

MAX_LOG_RHO = 20.0  #: exp(20) is far beyond every clip and far below float32's infinity


class VTrace(NamedTuple):
    """Targets for the critic, and the two factors of the policy gradient's advantages, without gradient.

    Advantages are normalised before they are weighted: a mean subtracted from the products would act as a weight of its
    own, even on actions with a ratio of 0.

    Advantages are q_t - V(s_t) with q_t = r_t + gamma (lambda vs_t+1 + (1 - lambda) V(s_t+1)): on policy GAE(lambda)
    (Schulman et al. 2016, equation 16). With lambda 1, q_t is that of Espeholt et al. 2018, section 4.2, r_t +
    gamma vs_t+1. Below 1 the paper leaves it open; this q_t is the lambda-return of the action as vs_t is that of
    the state.
    """

    vs: Tensor  #: [T, B] targets of V(s_t); values[t] where void
    advantages: Tensor  #: [T, B] of the actions taken, without their own importance ratio; 0 where void
    weights: Tensor  #: [T, B] min(pg_rho_bar, rho); 0 where void


@torch.no_grad()
def vtrace(  # noqa: PLR0913 - all by keyword, named as in the paper
    *,
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    trace_decay: float = 1.0,
) -> VTrace:
    """Targets and advantages of equation 1, by the recursion of remark 1.

    On policy (log_rhos 0, clips >= 1), vs is the n-step return, and with trace_decay lambda, vs - values and the
    advantages are GAE(lambda).

    Args:
      log_rhos: [T, B] log pi(a_t|s_t) - log mu(a_t|s_t).
      discounts: [T, B] gamma, and 0 where transition t terminated.
      rewards: [T, B] of transition t, clipped or not.
      values: [T + 1, B] V(s_0) .. V(s_T) under the learner's parameters; the last one only bootstraps.
      mask: [T, B] bool, False where transition t is void.
      rho_bar: clip on rho in delta; the fixed point is the value of a policy between mu and pi.
      c_bar: clip on the trace coefficients; changes the variance, not the fixed point.
      pg_rho_bar: clip on rho in the policy gradient.
      trace_decay: lambda of remark 2; it acts on the trace alone, never on the bootstrap.
    """
    shapes = log_rhos.shape, discounts.shape, mask.shape
    assert shapes == 3 * (rewards.shape,), "expected log_rhos, discounts, rewards and mask all [T, B]"
    assert values.shape == (len(rewards) + 1, *rewards.shape[1:]), "expected values [T + 1, B]"
    rhos = log_rhos.clamp(-MAX_LOG_RHO, MAX_LOG_RHO).exp()
    deltas = _only(mask, rhos.clamp(max=rho_bar) * (rewards + discounts * values[1:] - values[:-1]))
    traces = _only(mask, discounts * rhos.clamp(max=c_bar) * trace_decay)

    correction, corrections = torch.zeros_like(values[0]), []
    for delta, trace in zip(reversed(deltas.unbind()), reversed(traces.unbind()), strict=True):
        correction = torch.addcmul(delta, trace, correction)
        corrections.append(correction)
    vs = values[:-1] + torch.stack(corrections[::-1])

    beyond = torch.lerp(values[1:], torch.cat([vs[1:], values[-1:]]), trace_decay)  # exactly vs if trace_decay is 1
    advantages, weights = rewards + discounts * beyond - values[:-1], rhos.clamp(max=pg_rho_bar)
    return VTrace(vs, _only(mask, advantages), _only(mask, weights))


def _only(mask: Tensor, entries: Tensor) -> Tensor:
    """Entries, set to 0 where void: multiplying by the mask would let a NaN through."""
    return entries.masked_fill(~mask, 0.0)
