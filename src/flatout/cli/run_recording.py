"""`flatout run --recording`: what a recording of the same job says of a step, for the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flatout.keep.within import Recorded


def recorded(path: Path) -> Recorded:
    """Shares of the step, of all ranks' whole steps together. Raises InputError where there is none."""
    from flatout.diagnosis_pipeline import diagnose_paths
    from flatout.errors import InputError
    from flatout.keep.within import Recorded

    diagnosis = diagnose_paths([path]).diagnosis
    steps = [step for rank in diagnosis.ranks for step in rank.steps]
    whole_s = sum(step.window_s for step in steps)
    if not whole_s:
        raise InputError(f"{path} has no whole step, of which there could be shares", hint="record three steps or more")

    def share(names: Iterable[str]) -> float:
        return sum(step.parts_s[name] for step in steps for name in names) / whole_s

    wait, unsplit = share(["wait"]), share(["communication_unsplit"])
    is_split = not unsplit and not diagnosis.job.missing_ranks
    return Recorded(
        num_ranks=diagnosis.job.world_size or diagnosis.job.num_ranks,
        communication=share(["transfer"]) + unsplit + (0.0 if is_split else wait),
        wait=wait if is_split else None,
    )
