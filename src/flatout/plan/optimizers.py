"""The optimizers that a plan knows: the bytes that one keeps per trained parameter, and the cost of its update.

In mixed precision, each keeps a fp32 master weight of 4 bytes. What it keeps besides depends on the optimizer:

- Adam: two fp32 moments (Rajbhandari et al., arXiv 1910.02054: K = 12).
- 8-bit Adam: two moments of 1 byte, with one fp32 scale per 256 values (Dettmers et al., arXiv 2110.02861).
- Lion: one fp32 moment (Chen et al., arXiv 2302.06675).
- Adafactor: row and column sums of the second moment, no first moment (Shazeer and Stern, arXiv 1804.04235).
- Muon: one fp32 moment for the layers' matrices, Adam for everything else (Jordan, https://kellerjordan.github.io/posts/muon).
- SGD: one fp32 moment.

In pure bf16 there is no master weight, and the moments have the type of the weights, 2 bytes, unless the optimizer
quantizes them: torch's optimizers create them by `zeros_like(parameter)`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Bytes per trained parameter."""

    state_bytes: float  # kept: the fp32 master weight and the moments
    moved_bytes: float  # read and written in one update, with the gradient and the 16-bit weight
    # The same in pure bf16: the update reads gradient, weight and moments, and writes the last two.
    pure_state_bytes: float
    pure_moved_bytes: float
    # Muon orthogonalizes each matrix by five Newton-Schulz iterations, of three multiplications each.
    is_orthogonalized: bool = False


MOMENT_8BIT = 1.0 + 4.0 / 256
ADAM = Optimizer(state_bytes=12.0, moved_bytes=30.0, pure_state_bytes=4.0, pure_moved_bytes=14.0)
OPTIMIZERS = {
    "adam": ADAM,
    "adam-8bit": Optimizer(
        state_bytes=4.0 + 2.0 * MOMENT_8BIT,
        moved_bytes=18.0,
        pure_state_bytes=2.0 * MOMENT_8BIT,
        pure_moved_bytes=10.0,
    ),
    "adafactor": Optimizer(state_bytes=4.0, moved_bytes=18.0, pure_state_bytes=0.0, pure_moved_bytes=6.0),
    "lion": Optimizer(state_bytes=8.0, moved_bytes=22.0, pure_state_bytes=2.0, pure_moved_bytes=10.0),
    "muon": Optimizer(
        state_bytes=8.0, moved_bytes=22.0, pure_state_bytes=2.0, pure_moved_bytes=10.0, is_orthogonalized=True
    ),
    "sgd": Optimizer(state_bytes=8.0, moved_bytes=22.0, pure_state_bytes=2.0, pure_moved_bytes=10.0),
}
