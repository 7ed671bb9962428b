"""What V-MPO learns besides the policy: a temperature, and the weights of divergences (Song et al. 2019, section 4)."""

from torch import Tensor, nn

from zerobeast.rl.algos.vmpo.config import VMPOConfig
from zerobeast.rl.learning import Dual


class Multipliers(nn.Module):
    """The temperature and the weights, as parameters of an optimiser of their own.

    Args:
      config: their initial values and limits.
      real: whether actions are continuous, so that means and deviations have a limit each.
    """

    def __init__(self, config: VMPOConfig, *, real: bool) -> None:
        super().__init__()
        limits = {"kl_mean": config.kl_mean_limit, "kl_std": config.kl_std_limit} if real else {"kl": config.kl_limit}
        self.eta = Dual(config.eta, config.eta_limit)
        self.alphas = {name: Dual(config.kl_weight, limit) for name, limit in limits.items()}  #: as in `kl_parts`
        for name, dual in self.alphas.items():
            self.add_module(name, dual)

    def weights(self, advantages: Tensor, log_weights: Tensor) -> Tensor:
        """psi (equation 3): how much each of n actions is imitated; [n], without gradient.

        Args:
          advantages: [n].
          log_weights: [n] log w, the importance weight of each action: 0 if it was drawn from the target.
        """
        return (advantages / self.eta.value + log_weights).softmax(0).detach()

    def temperature_loss(self, advantages: Tensor, log_weights: Tensor) -> Tensor:
        """Equation 4: at its minimum, the KL of psi from normalised w is at its limit. Arguments as for `weights`.

        The largest advantage is factored out, so that large numbers do not cancel at a low temperature.
        """
        largest, eta = advantages.max(), self.eta.value
        log_mean = ((advantages - largest) / eta + log_weights).logsumexp(0) - log_weights.logsumexp(0)
        return eta * (self.eta.limit + log_mean) + largest

    def project(self) -> None:
        """Keep them positive; call after each optimiser step."""
        for dual in (self.eta, *self.alphas.values()):
            dual.project()
