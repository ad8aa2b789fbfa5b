"""Send low-rank factors of each gradient; the rest is added to the next step's (PowerSGD, arXiv:1905.13727).

A gradient of n x m entries becomes P, n x r, and Q, m x r, each averaged over the ranks; the Q of a step is the start
of the next one. Gradients that this would not make twice as small are reduced plainly, and so are all steps before
`start`. The arithmetic is that of torch's `powerSGD_hook` with its defaults, whose state is kept by bucket and fits no
other division of the gradients.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from flatout.inside.gradient_hooks.gradient_hook import Gradient, GradientHook, annotate, finite

_LEAST_COMPRESSION = 2


class PowerSgdHook(GradientHook):
    kind = "powersgd"

    def __init__(self, ddp: Any, *, rank: int, start: int) -> None:
        super().__init__(ddp)
        self._rank = rank
        self._start = start
        self._errors: dict[str, torch.Tensor] = {}
        self._factors: dict[str, torch.Tensor] = {}  # Q, equal on all ranks

    def is_plain_step(self, step: int) -> bool:
        return step < self._start

    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        del buffer
        low_rank = [gradient for gradient in gradients if self._is_worth_it(gradient.values)]
        plain = [gradient for gradient in gradients if not self._is_worth_it(gradient.values)]
        self._mean([gradient.values for gradient in plain])
        matrices = [self._matrix(gradient) for gradient in low_rank]
        rights = [self._factor(gradient.name, matrix) for gradient, matrix in zip(low_rank, matrices, strict=True)]
        lefts = [matrix @ right for matrix, right in zip(matrices, rights, strict=True)]
        self._mean(lefts)
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        rights = [matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        self._mean(rights)
        for gradient, matrix, left, right in zip(low_rank, matrices, lefts, rights, strict=True):
            mean = left @ right.T
            self._errors[gradient.name] = finite(matrix - mean)
            self._factors[gradient.name] = finite(right)
            gradient.values.copy_(mean.view_as(gradient.values))

    def _is_worth_it(self, values: torch.Tensor) -> bool:
        if values.dim() < 2:
            return False
        rows = values.shape[0]
        columns = values.numel() // rows
        return bool((rows + columns) * self._rank * _LEAST_COMPRESSION < rows * columns)

    def _matrix(self, gradient: Gradient) -> torch.Tensor:
        """Return the gradient with the error of the last step, as a matrix."""
        matrix = gradient.values.reshape(len(gradient.values), -1)
        error = self._errors.get(gradient.name)
        return matrix.clone() if error is None else matrix + error

    def _factor(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        """Return the factor Q to begin with: the last step's, or random numbers that are the same on all ranks."""
        factor = self._factors.get(name)
        if factor is not None:
            return factor
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(matrix.shape[1], self._rank, generator=generator).to(matrix.device)

    def _mean(self, tensors: list[torch.Tensor]) -> None:
        """Replace the tensors by their means over the ranks, with one collective."""
        if not tensors:
            return
        together = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(self.world_size)
        dist.all_reduce(together, group=self.group)
        parts = together.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def state_dict(self) -> dict[str, Any]:
        shared = {"num_steps": self.num_steps, "factors": dict(self._factors)}
        return super().state_dict() | {"shared": shared, "own": {"errors": dict(self._errors)}}

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        self._factors = {name: factor.clone() for name, factor in shared["factors"].items()}

    def load_own(self, own: Mapping[str, Any]) -> None:
        self._errors = {name: error.clone() for name, error in own["errors"].items()}


@annotate
def power_sgd_hook(state: PowerSgdHook, bucket: Any) -> Any:
    return state.run(bucket)
