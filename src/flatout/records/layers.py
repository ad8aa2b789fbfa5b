"""The records of a model's layers: their matrices, how they mix tokens, and the towers that read images."""

from __future__ import annotations

import msgspec


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that a token is multiplied with."""

    name: str  # as in the model's own code: `q_proj`, `up_proj`, ...
    part: str  # `in` (before tokens are mixed), `out` (after it), `ffn`, `shared`, `experts` or `router`
    inputs: int
    outputs: int
    has_bias: bool = False
    copies: int = 1  # one for each expert
    used: int = 1  # copies that one token is multiplied with

    @property
    def weights(self) -> int:
        """Return the elements of one copy without its bias."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Return the parameters of all copies."""
        bias = self.outputs if self.has_bias else 0
        return self.copies * (self.weights + bias)

    @property
    def idle_parameters(self) -> int:
        """Return the parameters of the copies that one token does not use."""
        bias = self.outputs if self.has_bias else 0
        return (self.copies - self.used) * (self.weights + bias)


class LayerKind(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of a model that are alike. All numbers are for one layer."""

    mixing: str  # `attention`, `window`, `chunk`, `recurrence`, or `none`
    num_layers: int
    matrices: tuple[Matrix, ...]
    other_parameters: int = 0  # norms, convolutions and the like: parameters that are in no matrix
    window: int = 0  # tokens that a token attends to at most; 0: all
    score_width: int = 0  # query and value elements of all heads: multiply-adds per token and attended token
    kv_width: int = 0  # elements of one token's keys and values
    is_bidirectional: bool = False  # an encoder's layer in a model whose other layers are causal
    cross_width: int = 0  # as `score_width`, for attention to an encoder or an image
    cross_attended: int = 0  # tokens of that encoder or image; 0: as many as the sequence has
    recurrence: int = 0  # multiply-adds per token of a recurrence, which do not depend on the sequence
    num_distinct: int = 0  # sets of weights that these layers share; 0: each layer has its own

    @property
    def num_stored(self) -> int:
        """Return the number of layers whose parameters are stored."""
        return self.num_distinct or self.num_layers

    @property
    def parameters(self) -> int:
        """Return the parameters of one layer."""
        return sum(matrix.parameters for matrix in self.matrices) + self.other_parameters

    @property
    def active_weights(self) -> int:
        """Return the weights of matrices that one token is multiplied with in one layer."""
        return sum(matrix.used * matrix.weights for matrix in self.matrices)


class Tower(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a model that reads something else than the tokens: images or sound."""

    name: str  # `vision` or `audio`
    parameters: int  # with what connects it to the layers
    multiply_adds: int = 0  # forward, for one image or sound
    kept_elements: int = 0  # positions of one image or sound times the width, over all layers
