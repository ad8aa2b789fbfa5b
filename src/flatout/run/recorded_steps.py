"""`flatout run --recording`: read shares of the step from a recording of the same job, for the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import InputError
from flatout.keep.step_breakdown import StepShares


def recorded_shares(path: Path) -> StepShares:
    """Return the shares of communication and waiting in the complete steps of all ranks together.

    Raises InputError for a recording without a complete step.
    """
    diagnosis = diagnose_paths([path]).diagnosis
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
