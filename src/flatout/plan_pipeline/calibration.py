"""Apply `flatout plan --calibrate FILE`: correct a search context by measured runs, a recording, a log, or ceilings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flatout.errors import InputError
from flatout.plan.ceilings import is_ceilings, with_ceilings
from flatout.plan.constants import from_logs
from flatout.plan.fixed_parameters import only
from flatout.plan.inputs import FIELDS, RECOMPUTE, SCHEDULES, CostModelInputs
from flatout.plan.layouts import Columns, all_layouts
from flatout.plan.run_calibration import corrected_by, memory_corrected_by, runs_of_rows
from flatout.plan.runs import MeasuredRun, usual_software
from flatout.plan.search_context import IDENTIFYING, SearchContext
from flatout.profile import is_recording, read_recording
from flatout.records.recording import Recording
from flatout.training_log_pipeline import median_step_s, series_of

_DEPENDENT = ("dp", "num_micro")  # these follow from the other layout parameters


def calibrated(
    context: SearchContext, path: Path, fixed: Sequence[str], note: Callable[[str], object]
) -> SearchContext:
    """Return the context corrected by the measurements in the file.

    Raises InputError for any other kind of file, and for a recording or log whose layout is not given by `fixed`.
    """
    if path.is_dir():
        run = _recorded_run(context, path, fixed)
        return _corrected(context, [run])
    series = series_of(path)
    if series is not None:
        note(f"note: `{path}` is taken for a training of --model on --cluster: a log of {series.format} names neither")
        return _corrected(context, [_run_of(context, fixed, "log", median_step_s(series), None)])
    if is_ceilings(path):
        constants = from_logs(context.calibration.logs)
        cluster, matmul_share = with_ceilings(context.spec.cluster, context.matmul_share, path, constants)
        return replace(context, spec=replace(context.spec, cluster=cluster), matmul_share=matmul_share)
    runs, num_rows = runs_of_rows(path)
    if len(runs) < num_rows:
        note(
            f"note: of {num_rows} rows in `{path}`, {num_rows - len(runs)} are not used: a needed column is empty, "
            "the GPU is unknown, the layout does not divide, or there is neither a step time nor a peak"
        )
    # The plan is for the software that the runs were measured with.
    return replace(_corrected(context, runs), software=usual_software(runs))


def _corrected(context: SearchContext, runs: list[MeasuredRun]) -> SearchContext:
    """Return the context with time and memory corrected by the runs."""
    return replace(
        context,
        calibration=corrected_by(runs, context.calibration),
        memory=memory_corrected_by(runs, context.memory),
        measured=tuple(tuple(run.columns[name] for name in IDENTIFYING) for run in runs if not run.ran_out_of_memory),
    )


def _recorded_run(context: SearchContext, path: Path, fixed: Sequence[str]) -> MeasuredRun:
    """Return the recording's step as a run of this model, cluster and batch, with the layout given by `fixed`."""
    if not is_recording(path):
        raise InputError(
            f"`{path}` is not a recording of Flatout",
            hint="--calibrate takes a CSV, a recording, or the output of flatout bench --json",
        )
    recording = read_recording(path)
    step_time_s = recording.measured.step_s
    if step_time_s is None:
        reason = recording.measured.reasons.get("step_s", "step times were not stable")
        raise InputError(f"`{path}` has no step time: {reason}", hint="record more steps: flatout profile --steps 40")
    _check_cluster(context, recording, path)
    return _run_of(context, fixed, "recording", step_time_s, recording.measured.peak_memory_bytes)


def _run_of(
    context: SearchContext, fixed: Sequence[str], source: str, step_time_s: float, peak_memory_bytes: float | None
) -> MeasuredRun:
    """Return a measured step of this model, cluster and batch, with the layout given by `fixed`."""
    inputs = context.inputs(_only_layout(context, fixed), slice(None))
    return MeasuredRun(
        source=source,
        group="",
        columns={name: _number(inputs, name) for name in FIELDS},
        step_time_s=step_time_s,
        peak_memory_bytes=peak_memory_bytes,
        ran_out_of_memory=False,
        software=context.software,
    )


def _check_cluster(context: SearchContext, recording: Recording, path: Path) -> None:
    num_ranks = len(recording.ranks) + len(recording.missing_ranks)
    cluster = context.spec.cluster
    if num_ranks != cluster.num_gpus:
        raise InputError(
            f"a recording to calibrate with must be of --cluster, but `{path}` is of {num_ranks} ranks and "
            f"{cluster.name} has {cluster.num_gpus} GPUs",
            hint="pass the cluster, model, batch and sequence of the recording; runs of several sizes go into a CSV",
        )


def _only_layout(context: SearchContext, fixed: Sequence[str]) -> Columns:
    """Return the only layout with the fixed parameters. Raises InputError if there are several."""
    layouts = only(context.spec, all_layouts(context.spec), tuple(fixed))
    count = len(layouts["tp"])
    if count == 1:
        return layouts
    free = [name for name, values in layouts.items() if len(set(values.tolist())) > 1 and name not in _DEPENDENT]
    example = f"--fix {free[0]}={_fixed_value(free[0], layouts[free[0]][0])}"
    raise InputError(
        f"--fix must name the one layout of the training, but {count:,} layouts have what is fixed",
        hint=f"not fixed yet: {', '.join(free)}; for example: {example}",
    )


def _number(inputs: CostModelInputs, name: str) -> float:
    """Return a field of the inputs of one layout, whether it is a scalar or a column of one row."""
    value = getattr(inputs, name)
    return float(value.item() if hasattr(value, "item") else value)


def _fixed_value(parameter: str, value: float) -> str:
    """Return the value of a layout parameter as text for --fix."""
    names = {"recompute": RECOMPUTE, "schedule": SCHEDULES}.get(parameter)
    return names[int(value)] if names else f"{value:.0f}"
