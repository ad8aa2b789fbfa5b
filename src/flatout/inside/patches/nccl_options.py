"""Set options of NCCL's communicators: the least and the largest number of thread blocks of a collective.

In: `min_ctas` and `max_ctas`, which NCCL takes together only. Out: process groups over NCCL that have them, each read
back from the group. A group for which the script passes options keeps those.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from flatout.inside.patches.arguments import bind
from flatout.inside.patches.report import Report

_CTAS = ("min_ctas", "max_ctas")


def nccl_options(report: Report, **wanted: int) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        report.note("this torch has no NCCL")
        return
    if set(wanted) != set(_CTAS) or wanted["min_ctas"] > wanted["max_ctas"]:
        report.note("NCCL takes min_ctas and max_ctas together only, in this order")
        return
    module: Any = torch.distributed.distributed_c10d
    original = module._new_process_group_helper
    report.waits("no process group over NCCL was made")

    @wraps(original)
    def new_process_group(*args: Any, **kwargs: Any) -> Any:
        bound = bind(original, args, kwargs)
        uses_nccl = "nccl" in str(bound.arguments.get("backend")).lower()
        if not report.is_on or not uses_nccl:
            return original(*args, **kwargs)
        if bound.arguments.get("backend_options") is not None:
            report.note("a process group keeps the script's own options")
            return original(*args, **kwargs)
        bound.arguments["backend_options"] = _options(module, bound.arguments.get("timeout"), wanted)
        made = original(*bound.args, **bound.kwargs)
        _read_back(report, made[0], wanted)
        return made

    module._new_process_group_helper = new_process_group


def _options(module: Any, timeout: Any, wanted: dict[str, int]) -> Any:
    """Return torch's default options with those that are wanted."""
    options = module.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = False
    if timeout is not None:
        options._timeout = timeout  # torch warns if it differs from the group's
    for name, number in wanted.items():
        setattr(options.config, name, number)
    return options


def _read_back(report: Report, group: Any, wanted: dict[str, int]) -> None:
    if group is torch.distributed.GroupMember.NON_GROUP_MEMBER:
        return
    config = group._get_backend(torch.device("cuda")).options.config
    has = {name: getattr(config, name) for name in wanted}
    if has == wanted:
        report.did("groups")
    else:
        report.note(f"a process group has {has['min_ctas']} and {has['max_ctas']} in place of the options")
