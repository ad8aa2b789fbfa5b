"""All valid layouts evaluated, the best ones with intervals, and why each neighbour of the winner lost.

Workload and machine are scalars, layouts are columns in pieces that fit into a core's cache: the same model as
everywhere, without a loop over layouts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from flatout.errors import InputError
from flatout.plan import case as cases
from flatout.plan.calibrate import Calibration, predict_logs
from flatout.plan.case import Case
from flatout.plan.constants import from_logs
from flatout.plan.counts import num_parameters, training_flops_per_token
from flatout.plan.fits import SAFE, out_of_memory_probability
from flatout.plan.layouts import DIALS, Columns, Job, all_layouts, case_columns, degrees, layout_at, only
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.step_time import step_time
from flatout.records.plan import Layout, Plan, PlannedLayout, Software
from flatout.units import num_bytes, percent, seconds

CHUNK = 8192
NINE_IN_TEN = 1.6449
MOST_IN_FRONT = 20
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all layouts of a search share."""

    job: Job
    precision: str
    matmul_share: dict[str, float]
    software: Software
    calibration: Calibration

    def case(self, columns: Columns, rows: slice | npt.NDArray[np.intp]) -> Case:
        """So many rows of the search."""
        fixed: dict[str, Any] = {
            **cases.workload_columns(self.job.workload, self.job.seq, self.job.document),
            **cases.machine_columns(self.job.cluster, self.precision, self.matmul_share),
            **cases.software_columns(self.software),
        }
        return Case(**{name: float(value) for name, value in fixed.items()}, **case_columns(columns, rows))


def evaluate_layouts(setting: Setting, columns: Columns) -> tuple[Array, Array]:
    """Seconds a step and bytes of the fullest rank, of every row."""
    count = len(columns["tp"])
    times, totals = np.empty(count), np.empty(count)
    constants = from_logs(setting.calibration.logs)
    for start in range(0, count, CHUNK):
        rows = slice(start, min(start + CHUNK, count))
        case = setting.case(columns, rows)
        times[rows] = step_time(case, constants).total_s
        totals[rows] = memory(case, MemoryConstants()).total
    return times * factor(setting, columns), totals


def factor(setting: Setting, columns: Columns) -> float:
    """What calibration multiplies every step time of a search by: its layouts share machine, model and software."""
    if not len(columns["tp"]):
        return 1.0
    return float(np.exp(setting.calibration.offset(setting.case(columns, np.zeros(1, dtype=np.intp)))[0]))


def plan(setting: Setting, *, num_layouts: int = 10, fixed: tuple[str, ...] = ()) -> Plan:
    """Search, among those with the `fixed` dials (`tp=8`). InputError: no layout is valid, or none fits into memory."""
    began = time.perf_counter()
    if any(text.partition("=")[0] == "offload" for text in fixed):
        setting = replace(setting, job=replace(setting.job, offloads=True))
    job = setting.job
    columns = all_layouts(job)
    if not len(columns["tp"]):
        raise _no_layout(job)
    columns = only(job, columns, fixed)
    if setting.software.fused_attention and not setting.software.selective_share:
        # Selective recomputation redoes attention's scores, which fused kernels never store: the same as none.
        columns = {name: values[columns["recompute"] != 1] for name, values in columns.items()}
    times, totals = evaluate_layouts(setting, columns)
    everything = setting.case(columns, slice(None))
    probability = out_of_memory_probability(everything, MemoryConstants(), totals)
    is_safe = probability < SAFE
    spent = time.perf_counter() - began
    if not is_safe.any() and not job.offloads:
        # The host's memory is slow: it is taken only where nothing fits without it.
        with_host = replace(setting, job=replace(job, offloads=True))
        if _fits(with_host, only(job, all_layouts(with_host.job), fixed)):
            return plan(with_host, num_layouts=num_layouts, fixed=fixed)
    if not is_safe.any():
        raise _too_large(setting, columns, totals, fixed)
    order = np.flatnonzero(is_safe)
    order = order[np.lexsort((totals[order], times[order]))]  # of what is as fast, the smaller first
    best = int(order[0])
    rows = _distinct(columns, order, num_layouts)
    found = _planned(setting, columns, np.array(rows, dtype=np.intp))
    neighbours = _neighbours(columns, best, times)
    around = _planned(setting, columns, np.array(neighbours, dtype=np.intp)) if neighbours else []
    return Plan(
        workload=job.workload.name,
        cluster=job.cluster.name,
        num_parameters=num_parameters(job.workload),
        global_batch=job.global_batch,
        seq=job.seq,
        precision=setting.precision,
        num_layouts=len(times),
        num_fitting=int(is_safe.sum()),
        search_s=spent,
        layouts=tuple(found),
        neighbours=tuple(
            msgspec.structs.replace(one, why=_why(one, found[0]))
            for one in sorted(around, key=lambda each: each.step_time_s)
        ),
        worth_measuring=tuple(_different(found)),
        pareto=tuple(_planned(setting, columns, _front(times, totals, order))),
        sensitivity=_sensitivity(setting, columns, best),
        calibrated_with=setting.calibration.num_runs if setting.calibration.kinds else 0,
    )


def _front(times: Array, totals: Array, order: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Of the rows in the order of their times, those that need less memory than every faster one."""
    held = totals[order]
    least = np.minimum.accumulate(held)
    is_less = np.concatenate([[True], held[1:] < 0.995 * least[:-1]])  # a gain below half a per cent is none
    front = np.asarray(order[is_less], dtype=np.intp)
    if len(front) <= MOST_IN_FRONT:
        return front
    return np.asarray(front[np.linspace(0, len(front) - 1, MOST_IN_FRONT).astype(np.intp)], dtype=np.intp)


def _distinct(columns: Columns, order: npt.NDArray[np.intp], count: int) -> list[int]:
    """The first rows that differ in more than how the same time is reached: one schedule of each kind."""
    rows: list[int] = []
    seen = set()
    for row in order[:20_000]:
        # As many tokens of a sequence on a rank from a shorter piece of more sequences is no other layout in effect.
        tokens = columns["micro_batch"][row] / columns["cp"][row]
        key = (tokens, *(columns[name][row] for name in ("tp", "pp", "vpp", "ep", "recompute")))
        if key not in seen:
            seen.add(key)
            rows.append(int(row))
        if len(rows) == count:
            break
    return rows


def _different(found: list[PlannedLayout]) -> list[Layout]:
    """Three of the best whose degrees differ, so that what is wrong of one need not be wrong of all."""
    chosen: dict[tuple[int, ...], Layout] = {}
    for one in found:
        layout = one.layout
        chosen.setdefault((layout.tp, layout.pp, layout.cp, layout.ep), layout)
    rest = [one.layout for one in found if one.layout not in chosen.values()]
    return [*chosen.values(), *rest][:3]


def _planned(setting: Setting, columns: Columns, rows: npt.NDArray[np.intp]) -> list[PlannedLayout]:
    case = setting.case(columns, rows)
    constants = from_logs(setting.calibration.logs)
    scale = factor(setting, columns)
    predicted = step_time(case, constants)
    logs, deviations = predict_logs(case, setting.calibration)
    held = memory(case, MemoryConstants())
    probability = out_of_memory_probability(case, MemoryConstants(), held.total)
    job = setting.job
    tokens = job.global_batch * job.seq
    flops = training_flops_per_token(job.workload, job.seq) * tokens
    peaks = job.cluster.peak_flops_per_s
    peak = peaks.get(setting.precision) or peaks.get("bf16") or peaks["fp16"]
    planned = []
    for number, row in enumerate(rows):
        total = float(np.exp(logs[number]))
        planned.append(
            PlannedLayout(
                layout=layout_at(columns, int(row)),
                step_time_s=total,
                step_time_interval_s=(
                    float(np.exp(logs[number] - NINE_IN_TEN * deviations[number])),
                    float(np.exp(logs[number] + NINE_IN_TEN * deviations[number])),
                ),
                tokens_per_s_per_gpu=tokens / total / job.cluster.num_gpus,
                gpu_hours_per_billion_tokens=total * job.cluster.num_gpus / tokens * 1e9 / 3600,
                mfu=flops / total / job.cluster.num_gpus / peak,
                memory_bytes=float(held.total[number]),
                out_of_memory_probability=float(probability[number]),
                parts_s={name: _at(part, number) * scale for name, part in predicted.parts_s.items()},
                memory_parts_bytes={name: _at(part, number) for name, part in held.parts.items()},
            )
        )
    return planned


def _at(values: Any, row: int) -> float:
    return float(np.broadcast_to(values, (row + 1,))[row]) if np.ndim(values) == 0 else float(values[row])


def _neighbours(columns: Columns, best: int, times: Array) -> list[int]:
    """Rows that differ from the best in one dial, for degrees by the next value up or down; DP follows."""
    differs = {name: columns[name] != columns[name][best] for name in DIALS}
    count = np.zeros(len(times), dtype=np.int8)
    for each in differs.values():
        count += each
    rows: list[int] = []
    for name in DIALS:
        # Sequence parallelism needs TP, and interleaving a pipeline: they may go along.
        free = {name, *{"tp": ("sp",), "pp": ("vpp",)}.get(name, ())}
        allowed = np.zeros(len(times), dtype=np.int8)
        for other in free:
            allowed += differs[other]
        candidates = np.flatnonzero(differs[name] & (count == allowed))
        values = columns[name][candidates]
        here = columns[name][best]
        for side in (values[values < here], values[values > here]):
            if len(side):
                nearest = side.max() if side[0] < here else side.min()
                at = candidates[values == nearest]
                rows.append(int(at[np.argmin(times[at])]))
    return rows


def _why(one: PlannedLayout, winner: PlannedLayout) -> str:
    """What a neighbour pays more for than the winner, or that it does not fit."""
    if one.out_of_memory_probability >= SAFE:
        return (
            f"runs out of memory with a probability of {percent(one.out_of_memory_probability)} "
            f"({num_bytes(one.memory_bytes)} expected)"
        )
    more = {name: one.parts_s[name] - winner.parts_s[name] for name in one.parts_s}
    name = max(more, key=lambda each: more[each])
    slower = one.step_time_s / winner.step_time_s - 1.0
    if slower < 0.005:
        return "as fast, within half a per cent"
    return f"{percent(slower)} slower: {seconds(more[name])} more {name.replace('_', ' ')}"


def _sensitivity(setting: Setting, columns: Columns, best: int) -> dict[str, float]:
    """What the winner's step time is multiplied by if one property of the machine doubles."""
    rows = np.array([best], dtype=np.intp)
    constants = from_logs(setting.calibration.logs)

    def seconds_on(**changed: float) -> float:
        case = setting.case(columns, rows)
        fields = {name: getattr(case, name) for name in cases.FIELDS}
        return float(step_time(Case(**(fields | changed)), constants).total_s[0])

    case = setting.case(columns, rows)
    base = seconds_on()
    return {
        "network_bandwidth_x2": seconds_on(nic=case.nic * 2) / base,
        "nvlink_bandwidth_x2": seconds_on(link=case.link * 2) / base,
        "memory_bandwidth_x2": seconds_on(
            memory_rate=case.memory_rate * 2, balance=case.balance / 2, half_balance=case.half_balance / 2
        )
        / base,
        "matmul_rate_x2": seconds_on(
            matmul_peak=case.matmul_peak * 2,
            half_peak=case.half_peak * 2,
            balance=case.balance * 2,
            half_balance=case.half_balance * 2,
        )
        / base,
    }


def _no_layout(job: Job) -> InputError:
    """The rule that no layout obeys: the batch must split over the replicas."""
    gpus, batch = job.cluster.num_gpus, job.global_batch
    near = next((n for step in range(1, gpus) for n in (gpus - step, gpus + step) if n > 0 and _any(job, n)), None)
    hint = f"the nearest number of GPUs that works is {near}" if near else "change --global-batch"
    return InputError(
        f"no layout of `{job.workload.name}` divides: tp * pp * cp * dp must equal {gpus} GPUs, with tp dividing "
        f"{job.workload.num_heads} heads, pp at most {job.workload.num_layers} layers, and dp dividing a global batch "
        f"of {batch}",
        hint=hint,
    )


def _any(job: Job, num_gpus: int) -> bool:
    other = msgspec.structs.replace(job.cluster, num_gpus=num_gpus)
    changed = Job(workload=job.workload, cluster=other, global_batch=job.global_batch, seq=job.seq)
    return any(job.global_batch % (num_gpus // (tp * pp * cp)) == 0 for tp, pp, cp, _ in degrees(changed))


def _fits(setting: Setting, columns: Columns) -> bool:
    if not len(columns["tp"]):
        return False
    _, held = evaluate_layouts(setting, columns)
    case = setting.case(columns, slice(None))
    return bool((out_of_memory_probability(case, MemoryConstants(), held) < SAFE).any())


def _too_large(setting: Setting, columns: Columns, totals: Array, fixed: tuple[str, ...]) -> InputError:
    job = setting.job
    least = int(np.argmin(totals))
    gpus = job.cluster.num_gpus
    fitting = None
    for doubling in range(1, 12):
        more = msgspec.structs.replace(job.cluster, num_gpus=gpus << doubling)
        # As a plan on so many would: with the optimizer in the host's memory, if nothing else fits.
        other = replace(setting, job=replace(job, cluster=more, offloads=True))
        if _fits(other, all_layouts(other.job)):
            fitting = gpus << doubling
            break
    with_host = replace(setting, job=replace(job, offloads=True))
    if fixed and _fits(with_host, all_layouts(with_host.job)):
        hint = f"other layouts fit on {gpus} GPUs: leave out --fix {' --fix '.join(fixed)}"
    elif fixed and fitting:
        hint = f"other layouts than those with {', '.join(fixed)} fit on {fitting:,} GPUs of this kind"
    else:
        hint = _fitting_hint(fitting)
    return InputError(
        f"`{job.workload.name}` ({num_parameters(job.workload):,} parameters) must fit into "
        f"{num_bytes(job.cluster.memory_bytes)} a GPU, but the smallest of {len(totals):,} layouts on {gpus} GPUs "
        f"needs {num_bytes(float(totals[least]))}",
        hint=hint,
    )


def _fitting_hint(fitting: int | None) -> str:
    return (
        f"it fits on {fitting:,} GPUs of this kind"
        if fitting
        else "no number of these GPUs up to 2,048 times as many holds it"
    )
