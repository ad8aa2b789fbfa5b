"""A table of measured choices for collectives: which algorithm, protocol and number of channels, by size and group.

It is neutral: it names collectives and choices in Flatout's words, and holds nothing of one way to apply it. Today
NCCL asks a tuner plugin; settings of a single call can be written from the same rows.
"""

from __future__ import annotations

import msgspec

COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
MIN_CHANNELS, MAX_CHANNELS = 1, 64
MAX_BYTES = (1 << 64) - 1


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """The choice for one collective and a range of sizes. A size is that of the larger buffer, in bytes.

    An algorithm, a protocol or a number of channels that is None stays the library's own choice.
    """

    collective: str
    min_bytes: int
    max_bytes: int | None = None  # inclusive; None: without limit
    num_ranks: int | None = None  # of the group; None: any
    num_nodes: int | None = None
    algorithm: str | None = None
    protocol: str | None = None
    max_channels: int | None = None

    @property
    def last_byte(self) -> int:
        """Return the largest size, also of a row without a limit."""
        return MAX_BYTES if self.max_bytes is None else self.max_bytes

    def overlaps(self, other: TableRow) -> bool:
        """Whether both rows can apply to one call."""
        if self.collective != other.collective or not _can_be_equal(self.num_ranks, other.num_ranks):
            return False
        if not _can_be_equal(self.num_nodes, other.num_nodes):
            return False
        return self.min_bytes <= other.last_byte and other.min_bytes <= self.last_byte

    def applies_to(self, collective: str, num_bytes: int, num_ranks: int, num_nodes: int) -> bool:
        is_in_range = self.min_bytes <= num_bytes <= self.last_byte
        has_group = self.num_ranks in (None, num_ranks) and self.num_nodes in (None, num_nodes)
        return self.collective == collective and is_in_range and has_group


class CollectiveTable(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[TableRow, ...] = ()

    def row_for(self, collective: str, num_bytes: int, num_ranks: int, num_nodes: int) -> TableRow | None:
        """Return the row that applies to a call; None if the library decides itself."""
        for row in self.rows:
            if row.applies_to(collective, num_bytes, num_ranks, num_nodes):
                return row
        return None


def _can_be_equal(first: int | None, second: int | None) -> bool:
    return first is None or second is None or first == second
