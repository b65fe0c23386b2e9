r"""Numbers that are one for each replica, for methods that train stacks as well as plain models.

A model's parameters come policy by policy, each with a leading dimension for the seeds:

    plain                    θ_1 [..], ..., θ_n [..]                                lead = ()
    P policies, S seeds      θ_11 [S, ..], ..., θ_1n [S, ..], θ_21 [S, ..], ...     lead = (P, S)

so a norm over all of them would be one number for runs that have nothing to do with one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.replicas.program import broadcast, dot


@dataclass(frozen=True)
class PerReplica:
    """Norms, products and means of each replica alone; of a plain model they are the usual ones.

    Args:
        lead: (policies, seeds) of a stack, () of a plain model; the shape of every result.

    Example:
        >>> grads = [torch.ones(3, 2), torch.ones(3)]  # of three seeds, under one policy
        >>> PerReplica((1, 3)).norm(grads)
        tensor([[1.7321, 1.7321, 1.7321]])
    """

    lead: tuple[int, ...]

    def dot(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """The inner product of two lists of tensors that go with the parameters, ``[*lead]``."""
        if not self.lead:
            return dot(a, b, ())
        pairs = zip(self._by_policy(a), self._by_policy(b), strict=True)
        return torch.stack([dot(x, y, self.lead[1:]) for x, y in pairs])

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """The length of a list of tensors that go with the parameters, ``[*lead]``."""
        return self.dot(tensors, tensors).sqrt()

    def mean(self, values: Tensor) -> Tensor:
        """The mean of numbers ``[*lead, ...]``, such as losses, ``[*lead]``."""
        if values.shape[: len(self.lead)] != self.lead or values.dim() == len(self.lead):
            raise ValueError(f"Invalid values {tuple(values.shape)} for replicas {self.lead}")
        return values.flatten(len(self.lead)).mean(-1)

    def spread(self, value: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        """``value [*lead]`` once for each of the tensors, in a shape that multiplies it."""
        if not self.lead:
            return [value] * len(tensors)
        return [
            broadcast(of_policy, tensor)
            for of_policy, some in zip(value, self._by_policy(tensors), strict=True)
            for tensor in some
        ]

    def _by_policy(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        size, left = divmod(len(tensors), self.lead[0])
        if left or any(tensor.shape[:1] != self.lead[1:] for tensor in tensors):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise ValueError(f"Invalid tensors {shapes}: not those of replicas {self.lead}")
        return [tensors[i : i + size] for i in range(0, len(tensors), size)]
