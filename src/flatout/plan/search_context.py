"""Hold the data that all layouts in a search share, and evaluate the model for columns of layouts.

Workload and machine are scalars. Layouts are columns, in chunks that fit into a core's cache, so that the same model is
evaluated without a loop over layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.plan.calibrate import Calibration
from flatout.plan.constants import from_logs
from flatout.plan.fits import SAFE, MemoryCalibration, out_of_memory_probability
from flatout.plan.inputs import CostModelInputs, machine_columns, software_columns, workload_columns
from flatout.plan.layouts import Columns, TrainingSpec, input_columns
from flatout.plan.memory import memory
from flatout.plan.stages import StageLoads, has_different_layers, stage_loads, with_stages
from flatout.plan.step_time import step_time
from flatout.records.plan import Software

CHUNK = 8192
# What makes a run one of this search's layouts.
IDENTIFYING = (
    *("layers", "hidden", "seq", "gpus", "tp", "sp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero", "shard"),
    *("micro_batch", "num_micro", "selective", "full", "gpipe", "zero_bubble"),
)
Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchContext:
    """The training job, the software's behaviour, measured matmul shares, and the calibration."""

    spec: TrainingSpec
    precision: str
    matmul_share: dict[str, float]
    software: Software
    calibration: Calibration
    memory: MemoryCalibration = field(default_factory=MemoryCalibration)
    measured: tuple[tuple[float, ...], ...] = ()  # of each run that calibrated: the values of `IDENTIFYING`
    risk: float = SAFE  # layouts are offered below this probability of running out of memory
    target: str = ""  # the framework that must be able to run each layout, or `any`; empty: every valid layout counts

    def inputs(self, columns: Columns, rows: slice | Rows) -> CostModelInputs:
        """Return the cost model's inputs for some rows of the layouts."""
        spec = self.spec
        shared: dict[str, Any] = {
            **workload_columns(spec.workload, spec.seq, spec.document, spec.training, spec.images),
            **machine_columns(spec.cluster, self.precision, self.matmul_share),
            **software_columns(self.software),
        }
        inputs = CostModelInputs(
            **{name: float(value) for name, value in shared.items()}, **input_columns(columns, rows)
        )
        return self.with_stages(inputs) if has_different_layers(spec.workload) else inputs

    def with_stages(self, inputs: CostModelInputs) -> CostModelInputs:
        """Return the inputs with the heaviest stage of each layout.

        A search needs this where layers differ. Where they are alike, it counts the largest stage at the place of the
        first, which is too much only if the first one has fewer layers than the next.
        """
        spec = self.spec
        return with_stages(inputs, spec.workload, spec.seq, spec.document, from_logs(self.calibration.logs))

    def stage_loads(self, inputs: CostModelInputs) -> StageLoads | None:
        """Return what each stage of one layout holds in mean layers; None if it has one stage."""
        spec = self.spec
        return stage_loads(inputs, spec.workload, spec.seq, spec.document, from_logs(self.calibration.logs))


def measured_rows(context: SearchContext, columns: Columns) -> Rows:
    """Return the rows whose layouts were measured."""
    if not context.measured:
        return np.zeros(0, dtype=np.intp)
    inputs = context.inputs(columns, slice(None))
    count = len(columns["tp"])
    values = np.stack([np.broadcast_to(getattr(inputs, name), (count,)) for name in IDENTIFYING], axis=1)
    is_measured = np.any([np.all(values == np.array(run), axis=1) for run in context.measured], axis=0)
    return np.flatnonzero(is_measured)


class Evaluated(NamedTuple):
    """The predictions for layouts, one row each."""

    times: Array  # seconds per step
    totals: Array  # bytes of the rank that uses the most memory
    probabilities: Array  # of running out of memory


def evaluate_layouts(context: SearchContext, columns: Columns) -> Evaluated:
    """Return the predictions for every row."""
    count = len(columns["tp"])
    times, totals, probabilities = np.empty(count), np.empty(count), np.empty(count)
    constants = from_logs(context.calibration.logs)
    for start in range(0, count, CHUNK):
        rows = slice(start, min(start + CHUNK, count))
        inputs = context.inputs(columns, rows)
        times[rows] = step_time(inputs, constants).total_s
        estimate = memory(inputs, context.memory.constants)
        totals[rows] = estimate.total
        probabilities[rows] = out_of_memory_probability(inputs, context.memory, estimate)
    return Evaluated(times * calibration_factor(context, columns), totals, probabilities)


def calibration_factor(context: SearchContext, columns: Columns) -> float:
    """Return the calibration's factor on all step times: all layouts share machine, model and software."""
    if not len(columns["tp"]):
        return 1.0
    first = context.inputs(columns, np.zeros(1, dtype=np.intp))
    return float(np.exp(context.calibration.offset(first)[0]))


def any_fits(context: SearchContext, columns: Columns) -> bool:
    """Whether at least one layout is safe from running out of memory."""
    if not len(columns["tp"]):
        return False
    return bool((evaluate_layouts(context, columns).probabilities < context.risk).any())
