"""Normalisation between a layer and its activation, `net.norm`:

    layer   each example by its own mean and deviation (Ba et al. 2016, arXiv:1607.06450)
    batch   each number by its mean and deviation over the batch (Ioffe & Szegedy 2015, arXiv:1502.03167)

A batch norm uses running statistics, which are part of the weights, wherever a policy acts, is evaluated or exported,
and also while it learns, except inside `batch_statistics`. So the mode of a module never decides what it computes.

    with batch_statistics(critics):
        values = critics(features, actions)         # by the statistics of this batch
    ...                                             # a step of the optimiser
    adopt_statistics(critics)                       # if it was applied: they join the running ones, those of all ranks
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from zerobeast.rl.nets.precision import without_autocast
from zerobeast.rl.ops import ranks

MakeNorm = Callable[[int], nn.Module | None]  #: the norm after a layer of so many outputs; None: there is none
MOMENTUM = 0.01  #: share of a batch in the running statistics, as in CrossQ (Bhatt et al. 2024, arXiv:1902.05605)
EPSILON = 1e-5


class Norm(nn.Module):
    """Base: n numbers, or channels, of each example, of k networks side by side; afterwards a learned affine map.

    Args:
      n: how many.
      k: networks whose layers are stacked; 0: one that is not.
      affine: whether there is an affine map.
    """

    def __init__(self, n: int, k: int = 0, *, affine: bool = True) -> None:
        super().__init__()
        self.k = k
        shape = (k, 1, n) if k else (n,)
        self.weight = nn.Parameter(torch.ones(shape)) if affine else None
        self.bias = nn.Parameter(torch.zeros(shape)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """[N, n], [N, n, H, W] or, of the first j stacked networks, [j, N, n] -> the same, in the format of `x`."""
        weight, bias = (each if each is None or not self.k else each[: len(x)] for each in (self.weight, self.bias))
        with without_autocast(x.device):
            return self.normalize(x.float(), weight, bias).to(x.dtype)

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The same in float32, with the affine map of these networks."""
        raise NotImplementedError


class LayerNorm(Norm):
    """Of an image, all its numbers share a mean and a deviation; each channel has its own affine map."""

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """See `Norm`."""
        if x.dim() == 4:
            return functional.group_norm(x, 1, weight, bias, EPSILON)
        if not self.k:
            return functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)
        normal = functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
        return normal if weight is None or bias is None else torch.addcmul(bias, normal, weight)


class BatchNorm(Norm):
    """Of an image, a channel is one number in all its places."""

    mean: Tensor  #: [(k) n] float32, running
    variance: Tensor  #: likewise
    by_batch: bool = False  #: whether the statistics are those of the batch
    next: tuple[Tensor, Tensor] | None = None  #: the running ones with those of the last batch

    def __init__(self, n: int, k: int = 0, *, affine: bool = True) -> None:
        super().__init__(n, k, affine=affine)
        self.register_buffer("mean", torch.zeros(n * (k or 1)))
        self.register_buffer("variance", torch.ones(n * (k or 1)))

    def normalize(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """See `Norm`."""
        if self.k:
            j, _, n = x.shape
            flat = x.permute(1, 0, 2).reshape(-1, j * n)  # the numbers of all networks side by side
            return self._over_batch(flat, weight, bias).view(-1, j, n).permute(1, 0, 2)
        return self._over_batch(x, weight, bias)

    def _over_batch(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """[N, n, ...] -> the same."""
        weight, bias = (each if each is None else each.flatten() for each in (weight, bias))
        mean, variance = self.mean, self.variance
        if self.by_batch:
            self.next = mean, variance = mean.clone(), variance.clone()
        n = x.shape[1]  # less than all if not all networks are computed
        return functional.batch_norm(
            x, mean[:n], variance[:n], weight, bias, training=self.by_batch, momentum=MOMENTUM, eps=EPSILON
        )


def norm_maker(kind: str, k: int = 0) -> MakeNorm:
    """What makes the norms that `net.norm` names, of k stacked networks."""
    kinds: dict[str, MakeNorm] = {
        "none": lambda _: None,
        "layer": lambda n: LayerNorm(n, k),
        "batch": lambda n: BatchNorm(n, k),
    }
    return kinds[kind]


@contextmanager
def batch_statistics(*modules: nn.Module) -> Iterator[None]:
    """Have batch norms use the statistics of what passes through them."""
    norms = _batch_norms(*modules)
    for norm in norms:
        norm.by_batch = True
    try:
        yield
    finally:
        for norm in norms:
            norm.by_batch = False


@torch.no_grad()
def adopt_statistics(*modules: nn.Module) -> None:
    """Add the statistics of the last batch to the running ones: those of all ranks, whose shares have the same size."""
    norms = [norm for norm in _batch_norms(*modules) if norm.next is not None]
    if not norms:
        return
    means, variances = zip(*(norm.next for norm in norms if norm.next is not None), strict=True)
    one = torch.ones((), device=norms[0].mean.device)
    _, mean, variance = ranks.merge_moments(one, torch.cat(means), torch.cat(variances), "batch norms")
    torch._foreach_copy_([norm.mean for norm in norms], torch.split(mean, [len(each) for each in means]))
    torch._foreach_copy_([norm.variance for norm in norms], torch.split(variance, [len(each) for each in means]))
    for norm in norms:
        norm.next = None


def _batch_norms(*modules: nn.Module) -> list[BatchNorm]:
    return [part for module in modules for part in module.modules() if isinstance(part, BatchNorm)]
