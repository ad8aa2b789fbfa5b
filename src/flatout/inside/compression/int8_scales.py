"""Round a matrix to int8 with a scale for each row."""

from __future__ import annotations

import torch

_MOST = 127
_LEAST_SCALE = 1e-12


def per_row_int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix in int8, shape (rows, columns), and the scales, shape (rows,), of the matrix's type."""
    scale = (matrix.abs().amax(dim=1).float().clamp(min=_LEAST_SCALE) / _MOST).to(matrix.dtype)
    # In bf16 the quotient would be rounded before it is rounded to a level: above 64 to every second one, mostly.
    rounded = torch.round(matrix.float() / scale.float().clamp(min=_LEAST_SCALE)[:, None]).clamp(-_MOST, _MOST)
    return rounded.to(torch.int8), scale
