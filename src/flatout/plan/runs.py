"""Read a CSV of measured runs, in the format of the published runs, into the inputs of the cost model, one row per run.

A row is used for time if its shape, layout, micro-batch, global batch and step time are known, and for memory if its
peak is known. Missing values are filled in by the catalogue's rules for frameworks, never from the measured value.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flatout.errors import InputError
from flatout.input_files import open_csv
from flatout.plan.inputs import (
    CostModelInputs,
    layout_columns,
    machine_columns,
    software_columns,
    stacked,
    workload_columns,
)
from flatout.plan.run_layout import layout_of, says_recompute, software_of
from flatout.plan.run_machine import cluster_of, precision_of
from flatout.plan.run_model import document_tokens_of, model_of
from flatout.plan.run_row import RunRow
from flatout.records.plan import Software

NEEDED = ("layers", "hidden", "heads", "seq_len", "gpu", "num_gpus", "tp", "pp", "micro_batch", "global_batch")
# Beginning of a row's `task` if the complete model is trained.
_TRAINING = ("pretrain", "SFT", "fine")
_YES = ("1", "true", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A row that can be replayed."""

    source: str
    group: str
    columns: dict[str, float]
    step_time_s: float | None
    peak_memory_bytes: float | None
    ran_out_of_memory: bool
    software: Software = field(default_factory=Software)
    says_recompute: bool = True  # otherwise its columns have no recomputation


def read_runs(path: Path) -> tuple[list[MeasuredRun], int]:
    """Return the runs that can be replayed, and the number of rows in the file.

    Raise InputError if the file is unreadable or is not a table of measured runs.
    """
    try:
        with open_csv(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            missing = [name for name in NEEDED if name not in columns]
            if missing:
                raise InputError(
                    f"`{path}` must have the columns of measured runs, but lacks: {', '.join(missing)}",
                    hint="docs/how-to/plan.md lists the columns",
                )
            rows = [RunRow({column: cells[column] for column in columns}) for cells in reader]
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"`{path}` is not valid CSV: {error}") from error
    runs = [_run(row) for row in rows]
    return [run for run in runs if run is not None], len(rows)


def as_inputs(runs: Sequence[MeasuredRun]) -> CostModelInputs:
    """Stack the runs, one row each."""
    return stacked([run.columns for run in runs])


def usual_software(runs: list[MeasuredRun]) -> Software:
    """Return the software that most of the runs used."""
    return Counter(run.software for run in runs).most_common(1)[0][0]


def _run(row: RunRow) -> MeasuredRun | None:
    """Return the row's run; None if a value that the model needs is unknown."""
    if not _has_what_is_needed(row) or not row.is_possible():
        return None
    software = software_of(row)
    workload, machine, layout = model_of(row), cluster_of(row), layout_of(row, software)
    if workload is None or machine is None or layout is None:
        return None
    measured = _measured(row)
    if measured is None:
        return None
    if layout.offload:  # the file has no data on host memory and its link
        measured = measured._replace(step_time_s=None, peak_bytes=None)
    cluster, shares = machine
    columns = {
        **workload_columns(workload, row.whole("seq_len"), document_tokens_of(row)),
        **machine_columns(cluster, precision_of(row), shares),
        **software_columns(software),
        **layout_columns(layout),
    }
    return MeasuredRun(
        source=row.text("source_family") or row.text("source") or "unnamed",
        group=row.text("group"),
        columns={name: float(value) for name, value in columns.items()},
        step_time_s=measured.step_time_s,
        peak_memory_bytes=measured.peak_bytes,
        ran_out_of_memory=measured.ran_out_of_memory,
        software=software,
        says_recompute=says_recompute(row),
    )


class _Measured(NamedTuple):
    step_time_s: float | None
    peak_bytes: float | None
    ran_out_of_memory: bool


def _measured(row: RunRow) -> _Measured | None:
    """Return what was measured of the run; None if nothing was."""
    step_time_s = row.number("step_time_s") or row.number("step_time_s_derived")
    peak_gb = row.number("peak_mem_gb")
    ran_out_of_memory = row.lower("oom") in _YES
    if step_time_s is None and peak_gb is None and not ran_out_of_memory:
        return None
    peak_bytes = None if peak_gb is None else peak_gb * 2**30
    return _Measured(None if ran_out_of_memory else step_time_s, peak_bytes, ran_out_of_memory)


def _has_what_is_needed(row: RunRow) -> bool:
    """Whether the row trains a complete model and has the necessary numbers."""
    task = row.text("task") or "pretrain"
    numbers = [row.number(name) for name in NEEDED if name != "gpu"]
    return task.startswith(_TRAINING) and all(number is not None and number >= 1 for number in numbers)
