"""Bus bandwidth of a collective, as nccl-tests defines it (doc/PERFORMANCE.md).

`algbw = S / t`, and `busbw = algbw * factor`, so that the value can be compared with the speed of the links for any
number of ranks. S is the size of the larger buffer: for all-gather the output, for reduce-scatter the input.
"""

from __future__ import annotations

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def bus_factor(collective: str, num_ranks: int) -> float:
    """Return the factor from S / t to bus bandwidth. Raises ValueError for a collective not in `COLLECTIVES`."""
    n = num_ranks
    match collective:
        case "all_reduce":
            return 2 * (n - 1) / n
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (n - 1) / n
        case "broadcast" | "send_recv":
            return 1.0
    raise ValueError(f"no collective: {collective}")
