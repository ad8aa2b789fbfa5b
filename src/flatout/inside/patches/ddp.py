"""Change DistributedDataParallel: sizes of its buckets, gradients as views into the buckets, static graph."""

from __future__ import annotations

from typing import Any

import torch

from flatout.inside.first_bucket import first_bucket, why_not
from flatout.inside.patches.arguments import Construct, hook_constructor, value
from flatout.inside.patches.report import Report


def ddp(report: Report, *, first_bucket_mib: int | None = None, **wanted: Any) -> None:
    if not torch.distributed.is_available():
        report.note("this torch has no torch.distributed")
        return
    from torch.nn.parallel import DistributedDataParallel

    report.waits("no DistributedDataParallel was made")

    def make(made: Any, bound: Any, construct: Construct) -> None:
        own = {name: value(bound, name) for name in wanted}
        bound.arguments.update(wanted)
        try:
            with first_bucket(first_bucket_mib) as effect:
                construct(bound)
        except Exception:  # noqa: BLE001 - if the script's own way fails too, it says so
            report.failed("making a DistributedDataParallel")
            bound.arguments.update(own)
            construct(bound)
            return
        problem = why_not(made) if first_bucket_mib is not None else None
        if problem is not None:
            report.note(problem)
            if not wanted:
                return
        has_other_first = effect.is_other and problem is None
        report.did("wrapped" if own != wanted or has_other_first else "already_so")

    hook_constructor(DistributedDataParallel, make)
