"""Choose which layers stay as they are: those whose compression changes the output most for the bytes that it saves.

In: what each layer alone does. Out: sets of layers to try, the smallest first. Nothing here judges: a set that passes
on the search data is benchmarked and judged like any other variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flatout.compress.backend import Sensitivity

# Variants that replace one layer after another, so that each can be measured alone.
SEARCHABLE = frozenset(
    {
        *("int8-dynamic", "int8-static", "int8-weights", "int4-weights", "fp8"),
        *("torchao-int8-dynamic", "torchao-int8-weights", "torchao-int4-weights"),
        *("torchao-fp8-dynamic", "torchao-fp8-weights"),
    }
)


def skipped_layers(found: Mapping[str, Sensitivity]) -> Iterator[tuple[str, ...]]:
    """Yield sets of layers to keep unchanged: the worst, the worst two, four, and so on, but never all."""
    worst_first = sorted(found, key=lambda name: -found[name].error / max(found[name].saved_bytes, 1))
    count = 1
    while count < len(worst_first):
        yield tuple(worst_first[:count])
        count *= 2
