"""PPO's loss on a minibatch (Schulman et al. 2017, equations 7 and 9)."""

from torch import Tensor

from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.ppo.config import PPOConfig
from zerobeast.rl.algos.ppo.samples import Samples
from zerobeast.rl.ops import losses
from zerobeast.rl.ops.distributions import Family
from zerobeast.rl.protocol import Metrics


def loss(config: PPOConfig, family: Family, net: PolicyAndValue, samples: Samples) -> tuple[Tensor, Metrics]:
    """The weighted sum of the three terms, and its parts, all means over valid steps.

    The part `kl` is the exact divergence of the policy from the one before the batch.
    """
    (logits, values), _ = net(samples.inputs, samples.core_state)
    policy, before = (family.of(each, samples.inputs.action_mask) for each in (logits, samples.logits))
    mask = samples.mask
    log_ratios = policy.log_prob(samples.actions) - samples.behaviour
    pg = losses.clipped_surrogate_loss(
        log_ratios=log_ratios, advantages=samples.advantages, clip=config.clip, mask=mask, reduction="mean"
    )
    if config.value_clip:
        baseline = losses.clipped_baseline_loss(
            values=values,
            before=samples.values,
            targets=samples.targets,
            clip=config.value_clip,
            mask=mask,
            reduction="mean",
        )
    else:
        baseline = losses.baseline_loss(values=values, targets=samples.targets, mask=mask, reduction="mean")
    entropies = policy.entropy()
    entropy = losses.entropy_loss(entropies=entropies, mask=mask, reduction="mean")
    total = pg + config.baseline_cost * baseline + config.entropy_cost * entropy
    ratios = log_ratios.detach().exp()
    return total, {
        "total": total.detach(),
        "pg_loss": pg.detach(),
        "baseline_loss": baseline.detach(),
        "entropy": -entropy.detach(),
        "kl": losses.masked_reduce(before.kl(policy).detach(), mask, "mean"),
        "clipped": losses.masked_reduce(((ratios - 1).abs() > config.clip).float(), mask, "mean"),
    }
