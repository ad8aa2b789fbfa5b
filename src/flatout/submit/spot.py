"""Choose the partitions of a job that could run on spot machines, from a trace, prices and a deadline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout.cost_pipeline import S_PER_H, PriceOptions, SpotRequest, advise_spot
from flatout.errors import UsageError
from flatout.submit.job import JobRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOptions:
    """How to choose between a partition of spot machines and the job's own partition."""

    trace: Path
    partition: str | None = None
    work_hours: float | None = None
    gpu_type: str | None = None


def choose_partitions(request: JobRequest, options: SpotOptions) -> tuple[JobRequest, str]:
    """Return the request with its partitions chosen (both if the advice is a mix), and why.

    Raises UsageError for options that are missing, and if the advice is spot for a job that cannot resume.
    """
    has_partitions = options.partition is not None and request.partitions
    if not has_partitions or request.deadline_s is None or options.work_hours is None:
        raise UsageError("`--spot-trace` needs --spot-partition, --partition, --deadline and --work-hours")
    assert options.partition is not None
    advice = advise_spot(
        SpotRequest(
            trace=options.trace,
            work_s=options.work_hours * S_PER_H,
            deadline_s=request.deadline_s,
            num_instances=request.num_nodes or 1,
            gpus_per_instance=request.gpus_per_node or 1,
        ),
        PriceOptions(gpu_type=options.gpu_type),
    )
    if advice.advice in ("spot", "mix") and not request.can_resume:
        raise UsageError(
            f"the advice is {advice.advice}, whose machines can be preempted, but the job is not declared to resume "
            "from its checkpoint",
            hint="pass --resume if it does; without --spot-trace it waits for --partition",
        )
    partitions = {
        "spot": (options.partition,),
        "mix": (options.partition, *request.partitions),
        "on-demand": request.partitions,
        None: request.partitions,
    }
    why = f"{advice.advice or 'on demand'}: {advice.why}"
    if advice.advice == "mix":
        why += "; Slurm starts it in the partition that is free first, and does not move it afterwards"
    return msgspec.structs.replace(request, partitions=partitions[advice.advice]), why
