"""Print how a cache was used, in one or two sentences."""

from __future__ import annotations

from flatout.records.data_cache import CacheUse
from flatout.report.terminal import TextStyle
from flatout.units import num_bytes, percent


def cache_text(use: CacheUse, style: TextStyle) -> str:
    """Return the hit rate, what was read from where, and what the cache holds."""
    holds = f"{use.num_copies:,} copies, {num_bytes(use.copied_bytes)}"
    lines = style.wrapped(f"Cache {use.folder}: {holds}.")
    if use.hit_rate is None:
        lines += style.wrapped("No file that it covers was read yet.")
    else:
        counts = use.counts
        rate = f"{percent(use.hit_rate)} of {counts.num_hits + counts.num_misses:,} reads were served from copies"
        saved = f"{num_bytes(counts.hit_bytes)} did not come from the source, {num_bytes(counts.missed_bytes)} did"
        lines += style.wrapped(f"{rate}: {saved}. {counts.num_admitted:,} files were copied.")
    lines += [line for problem in use.problems for line in style.wrapped(f"Note: {problem}.")]
    return "\n".join(lines)
