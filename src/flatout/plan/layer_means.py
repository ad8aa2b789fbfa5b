"""The mean layer of a model, as the cost model sees it: layers of several kinds become one with their mean widths."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.plan.counts import matrices_per_ffn, score_multiply_adds
from flatout.plan.models.uniform import layer_kinds
from flatout.records.layers import LayerKind, Matrix
from flatout.records.plan import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeans:
    """Numbers of one layer, as means over all layers; of a feed-forward network, over the layers that have its kind."""

    workload: Workload
    kinds: tuple[LayerKind, ...]
    in_weights: float
    out_weights: float
    score_width: float
    kv_width: float
    recurrence: float
    dense_width: float
    shared_width: float
    expert_width: float
    other_parameters: float

    def windowed(self, attended: int) -> float:
        """Return the share of the scores that the windows leave, for sequences or documents of this length."""
        is_causal = self.workload.is_causal
        complete = attended * (0.5 if is_causal else 1.0)
        left = sum(kind.num_layers * score_multiply_adds(kind, attended, is_causal=is_causal) for kind in self.kinds)
        everything = self.score_width * self.workload.num_layers * complete
        return left / everything if everything else 1.0


def layer_means(workload: Workload) -> LayerMeans:
    """Return the mean layer of a workload."""
    kinds = layer_kinds(workload)
    num_layers, num_moe = workload.num_layers, workload.num_moe_layers

    def mean(value_of: str) -> float:
        return float(sum(kind.num_layers * getattr(kind, value_of) for kind in kinds)) / num_layers

    def weights(*parts: str) -> float:
        return sum(kind.num_layers * matrix.weights for kind in kinds for matrix in _in(kind, parts))

    per_width = matrices_per_ffn(workload) * workload.hidden
    biases = sum(
        kind.num_layers * matrix.copies * matrix.outputs
        for kind in kinds
        for matrix in kind.matrices
        if matrix.has_bias
    )
    return LayerMeans(
        workload=workload,
        kinds=kinds,
        in_weights=weights("in") / num_layers,
        out_weights=weights("out") / num_layers,
        score_width=mean("score_width") + mean("cross_width"),
        kv_width=mean("kv_width"),
        recurrence=mean("recurrence"),
        dense_width=weights("ffn") / per_width / max(num_layers - num_moe, 1),
        shared_width=weights("shared") / per_width / max(num_moe, 1),
        expert_width=weights("experts") / per_width / max(num_moe, 1),
        other_parameters=mean("other_parameters") + biases / num_layers,
    )


def _in(kind: LayerKind, parts: tuple[str, ...]) -> list[Matrix]:
    return [matrix for matrix in kind.matrices if matrix.part in parts]
