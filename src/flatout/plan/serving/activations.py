"""The memory that an engine keeps for the activations of one step, which vLLM measures at its start in a profile run.

In: a model, the GPUs that share it, and the largest step. Out: bytes on one GPU. Two moments compete. In a layer, the
down projection: every token holds its hidden state, the residual and the output, and the inner values of the
feed-forward, which the GPUs share. In sampling: the logits of every request, with their probabilities and sorted
copies, which each GPU has in full, in addition to the hidden states.

`catalog/serving_memory.toml` has what profile runs measured; the formula is within 7 % of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.plan.serving.model import ServedModel
from flatout.records.layers import LayerKind, Matrix

# Bytes of a logit in sampling: 16 and 32 bits, probability, sorted value, its place. vLLM 0.11 kept 38.3 to 38.6 for
# 1,024 requests of five models with tables of 128,256 to 201,088 words; vLLM 0.6 kept 39.2 for 256 of Llama 3 8B.
LOGIT_BYTES = 38.4
_FEED_FORWARD = ("ffn", "shared", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStep:
    """The most that an engine computes in one step."""

    tokens: int = 8192  # without chunked prefill the longest prompt that it accepts
    requests: int = 256  # whose next tokens it samples


def activation_bytes(model: ServedModel, group: int, element_bytes: float, step: LargestStep) -> float:
    """Return the bytes on one of the `group` GPUs."""
    widest = max(_elements(kind, model.hidden, group) for kind in model.kinds)
    in_layers = step.tokens * widest * element_bytes
    in_sampling = step.requests * model.vocab * LOGIT_BYTES + step.tokens * model.hidden * element_bytes
    return max(in_layers, in_sampling)


def _elements(kind: LayerKind, hidden: int, group: int) -> float:
    """Return what one token holds in a layer of this kind on one GPU."""
    inner = sum(_inner(matrix, hidden) / group for matrix in kind.matrices if matrix.part in _FEED_FORWARD)
    of_experts = sum(
        matrix.used * hidden for matrix in kind.matrices if matrix.part == "experts" and matrix.outputs == hidden
    )
    return 3 * hidden + inner + of_experts


def _inner(matrix: Matrix, hidden: int) -> int:
    """Return the inner values that a matrix makes, or reads if it leads back to the hidden state."""
    return matrix.used * (matrix.inputs if matrix.outputs == hidden else matrix.outputs)
