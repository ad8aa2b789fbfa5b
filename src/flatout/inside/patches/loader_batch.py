"""Make the batches of DataLoaders of another size: the same samples in the same order, cut at other places.

A loader whose batches the script makes itself, by a sampler of batches or one sample at a time, stays as it is.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from flatout.inside.patches.arguments import Construct, hook_constructor, value
from flatout.inside.patches.report import Report


def loader_batch(report: Report, *, size: int) -> None:
    report.waits("no DataLoader that makes batches was made")

    @report.guarded
    def change(bound: Any) -> None:
        makes_batches = value(bound, "batch_sampler") is None and value(bound, "batch_size") is not None
        if not makes_batches:
            report.note("a loader takes its batches from the script, and keeps them")
            return
        bound.arguments["batch_size"] = size
        report.did("loaders")

    def make(made: Any, bound: Any, construct: Construct) -> None:
        change(bound)
        construct(bound)

    hook_constructor(DataLoader, make)
