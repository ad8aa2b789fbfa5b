"""Judge what was measured for NCCL by the step of a job: a tuning that tries only changes of NCCL."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.errors import UsageError
from flatout.nccl_tuner.command import NcclCommand
from flatout.nccl_tuner.in_tuning import NcclRequest
from flatout.nccl_tuner.measure import Say
from flatout.records.tuning import TuneResult
from flatout.tune.command import TuneCommand
from flatout.tune.options import TuneOptions


def tuned_by_step(
    command: tuple[str, ...], measuring: NcclCommand, budget_s: float, typed_command: Sequence[str], say: Say
) -> tuple[TuneResult, list[str]]:
    """Tune the command, and return the result with the lines of what was written. Raises UsageError."""
    for option, value in (("--recording", measuring.recording), ("--ranks", measuring.num_ranks)):
        if value is not None:
            raise UsageError(f"`{option}` and COMMAND exclude each other: the command's own trace says what to measure")
    if measuring.backend == "gloo":
        raise UsageError("`--backend gloo` and COMMAND exclude each other: no setting of gloo can be set from outside")
    request = NcclRequest(
        is_only=True,
        time_s=measuring.time_s,
        transport=measuring.transport,
        fabric=str(measuring.fabric) if measuring.fabric is not None else None,
        uses_plugin=measuring.uses_plugin,
    )
    tuning = TuneCommand(
        command=command,
        folder=measuring.folder,
        options=TuneOptions(budget_s=budget_s, nccl=request),
        force=measuring.force,
    )
    result = tuning.tune(say)
    return result, tuning.write(result, typed_command)
