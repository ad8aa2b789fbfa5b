"""The optimizers that a plan knows: the bytes that one keeps per trained parameter, and the cost of its update.

Each keeps a fp32 master weight of 4 bytes. What it keeps besides depends on the optimizer:

- Adam: two fp32 moments (Rajbhandari et al., arXiv 1910.02054: K = 12).
- 8-bit Adam: two moments of 1 byte, with one fp32 scale per 256 values (Dettmers et al., arXiv 2110.02861).
- Lion: one fp32 moment (Chen et al., arXiv 2302.06675).
- Adafactor: row and column sums of the second moment, no first moment (Shazeer and Stern, arXiv 1804.04235).
- Muon: one fp32 moment for the layers' matrices, Adam for everything else (Jordan, https://kellerjordan.github.io/posts/muon).
- SGD: one fp32 moment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Bytes per trained parameter."""

    state_bytes: float  # kept: the fp32 master weight and the moments
    moved_bytes: float  # read and written in one update, with the gradient and the 16-bit weight
    # Muon orthogonalizes each matrix by five Newton-Schulz iterations, of three multiplications each.
    is_orthogonalized: bool = False


ADAM = Optimizer(state_bytes=12.0, moved_bytes=30.0)
OPTIMIZERS = {
    "adam": ADAM,
    "adam-8bit": Optimizer(state_bytes=4.0 + 2.0 * (1.0 + 4.0 / 256), moved_bytes=18.0),
    "adafactor": Optimizer(state_bytes=4.0, moved_bytes=18.0),
    "lion": Optimizer(state_bytes=8.0, moved_bytes=22.0),
    "muon": Optimizer(state_bytes=8.0, moved_bytes=22.0, is_orthogonalized=True),
    "sgd": Optimizer(state_bytes=8.0, moved_bytes=22.0),
}
