"""Change DistributedDataParallel: sizes of its buckets, gradients as views into the buckets, static graph."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from flatout.inside.first_bucket import first_bucket, why_not
from flatout.inside.patches.arguments import bind, value
from flatout.inside.patches.report import Report


def ddp(report: Report, *, first_bucket_mib: int | None = None, **wanted: Any) -> None:
    if not torch.distributed.is_available():
        report.note("this torch has no torch.distributed")
        return
    from torch.nn.parallel import DistributedDataParallel

    report.waits("no DistributedDataParallel was made")
    original = DistributedDataParallel.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = bind(original, (self, *args), kwargs)
        except TypeError:
            original(self, *args, **kwargs)
            return
        own = {name: value(bound, name) for name in wanted}
        bound.arguments.update(wanted)
        try:
            with first_bucket(first_bucket_mib) as effect:
                original(*bound.args, **bound.kwargs)
        except Exception:  # noqa: BLE001 - if the script's own way fails too, it says so
            report.failed("making a DistributedDataParallel")
            bound.arguments.update(own)
            original(*bound.args, **bound.kwargs)
            return
        problem = why_not(self) if first_bucket_mib is not None else None
        if problem is not None:
            report.note(problem)
            if not wanted:
                return
        has_other_first = effect.is_other and problem is None
        report.did("wrapped" if own != wanted or has_other_first else "already_so")

    DistributedDataParallel.__init__ = init
