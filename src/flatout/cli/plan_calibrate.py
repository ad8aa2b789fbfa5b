"""`flatout plan --calibrate FILE`: a setting corrected by what was measured: runs, a recording, or ceilings."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.errors import InputError

if TYPE_CHECKING:
    from flatout.plan.runs import Run
    from flatout.plan.search import Setting


def calibrated(setting: Setting, path: Path, fixed: Sequence[str]) -> Setting:
    """By what the file is. InputError: none of the three, or a recording without its layout."""
    from flatout.plan.ceilings import is_ceilings, with_ceilings
    from flatout.plan.constants import from_logs
    from flatout.plan.run_calibration import corrected_by, timed_of_rows
    from flatout.plan.runs import usual_software

    if path.is_dir():
        return replace(setting, calibration=corrected_by([_recorded(setting, path, fixed)], setting.calibration))
    if is_ceilings(path):
        cluster, shares = with_ceilings(
            setting.job.cluster, setting.matmul_share, path, from_logs(setting.calibration.logs)
        )
        return replace(setting, job=replace(setting.job, cluster=cluster), matmul_share=shares)
    timed, rows_read = timed_of_rows(path)
    if len(timed) < rows_read:
        print(
            f"note: of {rows_read} rows in `{path}`, {rows_read - len(timed)} are not used: a needed column is empty, "
            "the GPU is unknown, the layout does not divide, or there is no step time",
            file=sys.stderr,
        )
    # The plan is for the software that the runs were measured with.
    return replace(setting, calibration=corrected_by(timed, setting.calibration), software=usual_software(timed))


def _recorded(setting: Setting, path: Path, fixed: Sequence[str]) -> Run:
    """The recording's step as a run of this model, cluster and batch; `--fix` says its layout."""
    from flatout.plan.case import FIELDS
    from flatout.plan.layouts import all_layouts, only
    from flatout.plan.runs import Run
    from flatout.profile import is_recording, read_recording

    if not is_recording(path):
        raise InputError(
            f"`{path}` is no recording of Flatout", hint="--calibrate takes a CSV, a recording, or flatout bench --json"
        )
    recording = read_recording(path)
    step = recording.measured.step_s
    if step is None:
        why = recording.measured.reasons.get("step_s", "no step settled")
        raise InputError(f"`{path}` has no step time: {why}", hint="record more steps: flatout profile --steps 40")
    num_gpus = len(recording.ranks) + len(recording.missing_ranks)
    if num_gpus != setting.job.cluster.num_gpus:
        raise InputError(
            f"a recording to calibrate with must be of --cluster, but `{path}` is of {num_gpus} ranks and "
            f"{setting.job.cluster.name} has {setting.job.cluster.num_gpus} GPUs",
            hint="give the cluster, model, batch and sequence of the recording; runs of several sizes go into a CSV",
        )
    columns = only(setting.job, all_layouts(setting.job), tuple(fixed))
    count = len(columns["tp"])
    if count != 1:
        free = [
            name
            for name, values in columns.items()
            if len(set(values.tolist())) > 1 and name not in ("dp", "num_micro")
        ]
        raise InputError(
            f"--fix must name the one layout of the recording, but {count:,} layouts have what is fixed",
            hint=f"not fixed yet: {', '.join(free)}; for example: "
            f"--fix {free[0]}={_word(free[0], columns[free[0]][0])}",
        )
    case = setting.case(columns, slice(None))
    return Run(
        source="recording",
        group="",
        columns={
            name: float(getattr(case, name).item() if hasattr(getattr(case, name), "item") else getattr(case, name))
            for name in FIELDS
        },
        step_time_s=step,
        peak_memory_bytes=recording.measured.peak_memory_bytes,
        ran_out_of_memory=False,
        software=setting.software,
    )


def _word(dial: str, value: float) -> str:
    """A dial's value as --fix takes it."""
    from flatout.plan.case import RECOMPUTE, SCHEDULES

    names = {"recompute": RECOMPUTE, "schedule": SCHEDULES}.get(dial)
    return names[int(value)] if names else f"{value:.0f}"
