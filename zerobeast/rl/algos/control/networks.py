"""Networks of algorithms that learn Q(s, a) of real actions and a policy that ascends it: dense layers on features.

What is no image is a feature as it is, and so is everything with `net.torso mlp`: policy and critics then share no
weights. An image, or the whole observation if `net.torso` names a package's torso, has an encoder that both share. It
learns from the critics' loss alone, because the policy's makes learning unstable (Yarats et al. 2021, "Improving sample
efficiency in model-free reinforcement learning from images", arXiv:1910.01741), and has no slow copy, as in DrQ-v2
(arXiv:2107.09645).

Dense layers are initialised as torch's are, with U(-1, 1) / sqrt(inputs): as in the code of TD3 and of
Stable-Baselines3, and as in Lillicrap et al. 2016 except for the last layers. None takes last actions or rewards.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from zerobeast.common.settings import NetConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.rl.nets import Network, StepInput, make_body, without_autocast
from zerobeast.rl.nets.dense import Dense, Layer
from zerobeast.rl.nets.norms import BatchNorm
from zerobeast.rl.replay_settings import BoxSettings


class Perceptron(Dense):
    """Dense layers or residual blocks, relu by default, and a linear one.

    A batch norm normalises the inputs too, as in CrossQ (Bhatt et al. 2024, arXiv:1902.05605).

    Args:
      n_in: inputs.
      n_out: outputs.
      net: widths, norm and activation of the layers.
      k: networks whose layers are stacked; 0: one that is not.
    """

    def __init__(self, n_in: int, n_out: int, net: NetConfig, k: int = 0) -> None:
        sizes = [n_in, *net.widths(BoxSettings.dense_width)]
        make: Layer = partial(StackedLinear, k) if k else nn.Linear
        super().__init__(sizes, net.activation, make=make, norm=net.norm, blocks=net.residual_blocks, k=k)
        self.out = make(sizes[-1], n_out)
        self.in_norm = BatchNorm(n_in, affine=False) if net.norm == "batch" else None

    def forward(self, x: Tensor, j: int = 0) -> Tensor:
        """[N, n_in] -> [N, n_out] float32; of the first j stacked networks, if there are any, [j, N, n_out]."""
        x = x if self.in_norm is None else self.in_norm(x)
        x = super().forward(x.expand(j, -1, -1) if j else x)
        with without_autocast(x.device):
            out: Tensor = self.out(x.float())
            return out


class BoxPolicy(Network):
    """The encoder, and the policy from its features to the parameters of real actions. Nothing else is published.

    Args:
      config: widths of the hidden layers, and the encoder.
      env: its observations.
      n_out: parameters of an action.
    """

    def __init__(self, config: NetConfig, env: EnvSpec, n_out: int) -> None:
        super().__init__()
        blind = config.model_copy(update={"last_action_reward": "never", "core": "none"})
        self.vectors = make_body(blind, env, bare=True)
        self.core_size = self.vectors.core_size  # of a package's, for which it is refused
        self.mlp = Perceptron(self.vectors.out_size, n_out, config)

    def encode(self, inputs: StepInput) -> Tensor:
        """Features [T B, size] float32 of T steps of B environments."""
        features: Tensor = self.vectors(inputs, self.initial_state(inputs.first.shape[1]))[0][0]
        return features.flatten(0, 1)

    def forward(self, features: Tensor) -> Tensor:
        """[N, size] -> [N, n_out] float32."""
        out: Tensor = self.mlp(features)
        return out


class StackedLinear(nn.Module):
    """k dense layers of one shape, computed as one product.

    Args:
      k: how many.
      n_in, n_out: widths of each.
    """

    def __init__(self, k: int, n_in: int, n_out: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_in)
        self.weight = nn.Parameter(torch.empty(k, n_in, n_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(k, 1, n_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """[j, N, n_in] -> [j, N, n_out], by the first j layers."""
        j, k = len(x), len(self.weight)
        weight, bias = (self.weight, self.bias) if j == k else (self.weight[:j], self.bias[:j])
        if weight.shape[-1] == 1:  # matrix products with a single column take five times as long on a CPU
            return (x * weight.mT).sum(-1, keepdim=True) + bias
        return torch.baddbmm(bias, x, weight)


class Critics(Perceptron):
    """k estimates of Q(s, a) that share no weights.

    Args:
      k: how many.
      n_in: features and components of an action together.
      net: widths, norm and activation of the hidden layers.
      atoms: None: one number per estimate. K: K logits, of a distribution over returns (Bellemare et al. 2017).
    """

    def __init__(self, k: int, n_in: int, net: NetConfig, atoms: int | None = None) -> None:
        super().__init__(n_in, atoms or 1, net, k)
        self._k, self._scalar = k, atoms is None

    def forward(self, features: Tensor, actions: Tensor, j: int | None = None) -> Tensor:  # type: ignore[override]
        """Estimate Q(s, a).

        Args:
          features: [N, size].
          actions: [N, d] in units of their box.
          j: evaluate only the first j critics; None: all.

        Returns:
          [j, N] float32, or [j, N, K] with atoms.
        """
        estimates = super().forward(torch.cat([features, actions], -1), j or self._k)
        return estimates.squeeze(-1) if self._scalar else estimates
