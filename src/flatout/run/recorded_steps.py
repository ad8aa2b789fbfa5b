"""`flatout run --recording`: read a recording of the same job, for the ledger and the metrics.

In: its folder. Out: the shares of communication and waiting in its steps, and how long a step's operations take at the
peak rate of its GPUs, from which MFU follows at any step time.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import InputError
from flatout.keep.step_breakdown import StepShares
from flatout.records.diagnosis import Diagnosis, JobSummary
from flatout.records.watch import PeakTime


class RecordedSteps(msgspec.Struct, frozen=True, kw_only=True):
    shares: StepShares
    peak_time: PeakTime | None  # None: the recording does not have the operations, or the GPU's peak is unknown


def recorded_steps(path: Path) -> RecordedSteps:
    """Read a recording. Raise InputError if it has no complete step."""
    diagnosis = diagnose_paths([path]).diagnosis
    return RecordedSteps(shares=_shares(diagnosis, path), peak_time=_peak_time(diagnosis.job))


def _peak_time(job: JobSummary) -> PeakTime | None:
    mfu, step_s = job.regular_mfu, job.regular_step_s
    if not isinstance(mfu, float) or not isinstance(step_s, float):
        return None
    return PeakTime(step_s=mfu * step_s, num_ranks=job.world_size or job.num_ranks)


def _shares(diagnosis: Diagnosis, path: Path) -> StepShares:
    """Return the shares of communication and waiting in the complete steps of all ranks together."""
    steps = [step for rank in diagnosis.ranks for step in rank.steps]
    total_s = sum(step.window_s for step in steps)
    if not total_s:
        raise InputError(f"{path} has no complete step, so its shares are unknown", hint="record at least three steps")

    def share(part_names: Iterable[str]) -> float:
        return sum(step.parts_s[name] for step in steps for name in part_names) / total_s

    wait = share(["wait"])
    unsplit = share(["communication_unsplit"])
    is_split = not unsplit and not diagnosis.job.missing_ranks
    communication = share(["transfer"]) + unsplit
    if not is_split:
        communication += wait
    return StepShares(
        num_ranks=diagnosis.job.world_size or diagnosis.job.num_ranks,
        communication=communication,
        wait=wait if is_split else None,
    )
