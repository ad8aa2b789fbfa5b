"""Count how many tokens of a call the call before it has processed already. Only tokens on the CPU are read.

In: the arguments of a model's calls. Out: the number of leading tokens of the first sequence that are those of the
last call with more than one token. A model that generates with a cache gets one token a call, so the sequence of its
prompt is the one that is kept. Tokens on a GPU are not read, because that would wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flatout.inside.protocol import MOST_KNOWN_TOKENS

_KEYS = ("input_ids", "tokens", "decoder_input_ids")
_INTEGERS = frozenset((torch.int64, torch.int32))


class TokenReuse:
    """Call `take` with the arguments of each call."""

    def __init__(self) -> None:
        self._last: list[int] = []

    def take(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
        """Return how many leading tokens are those of the last call; None if no tokens of this one can be read."""
        tokens = _tokens_of(args, kwargs)
        if tokens is None:
            return None
        before, self._last = self._last, tokens
        shorter = min(len(before), len(tokens))
        if before[:shorter] == tokens[:shorter]:
            return shorter
        return next(place for place in range(shorter) if before[place] != tokens[place])


def _tokens_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int] | None:
    candidates = [*args[:1], *(kwargs[key] for key in _KEYS if key in kwargs)]
    for candidate in candidates:
        if type(candidate) is not torch.Tensor or candidate.dtype not in _INTEGERS:
            continue
        if candidate.dim() != 2 or candidate.shape[1] < 2 or candidate.device.type != "cpu":
            continue
        first: list[int] = candidate[0, :MOST_KNOWN_TOKENS].tolist()
        return first
    return None
