"""Write changes of DistributedDataParallel as lines for the user's code; see `snippet`."""

from __future__ import annotations

from flatout.emit.package_snippets import Lines, function, keywords
from flatout.records.change import Patch, Scalar


def ddp(patch: Patch) -> Lines:
    parameters = dict(patch.parameters)
    first_mib = parameters.pop("first_bucket_mib", None)
    return function(
        "wrap(model, **yours)",
        *_first_bucket(first_mib, parameters.get("bucket_cap_mb")),
        f"tuned = dict({keywords(parameters)})",
        "return torch.nn.parallel.DistributedDataParallel(model, **(yours | tuned))",
    )


def _first_bucket(first_mib: Scalar | None, others_mib: Scalar | None) -> Lines:
    """Return what sets the size of the first bucket, which is not an argument of DistributedDataParallel."""
    if first_mib is None:
        return []
    if others_mib is None:
        return [
            "# torch reads this where bucket_cap_mb is not given.",
            f"torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = {first_mib!r} << 20",
        ]
    return [
        f"# torch 2.13 takes the first bucket as bucket_cap_mb_list=[{first_mib!r}, {others_mib!r}]; before, the first",
        "# bucket is as large as the others where bucket_cap_mb is given. `flatout run` sets it with both.",
    ]


def ddp_no_sync(patch: Patch) -> Lines:
    return function(
        "accumulate(ddp_model, batches, loss_of)",
        f"# One step of {patch.parameters['passes']} passes: gradients are reduced in the last pass only.",
        "for number, batch in enumerate(batches, 1):",
        "    is_last = number == len(batches)",
        "    with contextlib.nullcontext() if is_last else ddp_model.no_sync():",
        "        loss_of(ddp_model, batch).backward()",
    )


def ddp_hook(patch: Patch) -> Lines:
    match patch.parameters["hook"]:
        case "bf16" | "fp16" as half:
            return function(
                "compress(ddp_model)",
                "# DDP accepts this hook with NCCL only; `flatout run` has one for gloo.",
                f"from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import {half}_compress_hook",
                "",
                f"ddp_model.register_comm_hook(None, {half}_compress_hook)",
            )
        case "powersgd":
            return function(
                "compress(ddp_model)",
                "# The state keeps the error of each step: save it with your checkpoints.",
                "from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook",
                "",
                "state = powerSGD_hook.PowerSGDState(",
                f"    process_group=None, matrix_approximation_rank={patch.parameters['rank']!r},",
                f"    start_powerSGD_iter={patch.parameters['start']!r},",
                ")",
                "ddp_model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)",
                "return state",
            )
        case "int8":
            return ["# int8: torch's own hook sends more bytes than fp32 with 8 ranks or more; use `flatout run`."]
        case _:
            return [f"# Top-K {patch.parameters['percent']} %: torch has no hook for it; use `flatout run`."]
