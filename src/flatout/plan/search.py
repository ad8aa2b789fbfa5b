"""Search all valid layouts; report the best ones with intervals, and why each neighbour of the best layout is worse."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from flatout.catalog.targets import runners
from flatout.errors import InputError
from flatout.plan.adapters import trained_parameters
from flatout.plan.calibrate import Z_90, predict_logs
from flatout.plan.constants import from_logs
from flatout.plan.counts import num_parameters, training_flops_per_token
from flatout.plan.fits import out_of_memory_probability
from flatout.plan.fixed_parameters import only
from flatout.plan.infeasible import no_valid_layout, too_large
from flatout.plan.inputs import RECOMPUTE, Column
from flatout.plan.layouts import Columns, TrainingSpec, all_layouts, layout_at
from flatout.plan.memory import memory
from flatout.plan.neighbours import neighbours, sensitivity, why_worse
from flatout.plan.search_context import (
    Array,
    Rows,
    SearchContext,
    any_fits,
    calibration_factor,
    evaluate_layouts,
    measured_rows,
)
from flatout.plan.step_time import step_time
from flatout.plan.targets import none_runnable, runnable
from flatout.records.plan import ExcludedLayouts, Layout, Plan, PlannedLayout

MOST_IN_FRONT = 20
SMALLER = 0.995  # each layout of the front needs at least 0.5 % less memory than the previous layout
HARDLY_FASTER = 1.05  # a prediction must be better by more than this to be listed instead of a measured layout
MOST_LOOKED_AT = 20_000  # number of fastest rows to examine for layouts that differ


def plan(context: SearchContext, *, num_layouts: int = 10, fixed: tuple[str, ...] = ()) -> Plan:
    """Search the layouts that have the `fixed` parameters (such as `tp=8`) and return the plan.

    InputError: no layout is valid, or none fits into memory.
    """
    began = time.perf_counter()
    if any(text.partition("=")[0] == "offload" for text in fixed):
        context = _with_host_memory(context)
    columns, excluded = _runnable_layouts(context, fixed)
    if not len(columns["tp"]):
        raise none_runnable(context.spec, context.target, excluded, fixed)
    times, totals, probabilities = evaluate_layouts(context, columns)
    is_safe = probabilities < context.risk
    search_s = time.perf_counter() - began
    if not is_safe.any():
        # Host memory is slow, so it is used only if nothing fits without it.
        with_host = _with_host_memory(context)
        if not context.spec.offloads and any_fits(with_host, _runnable_layouts(with_host, fixed)[0]):
            return plan(with_host, num_layouts=num_layouts, fixed=fixed)
        raise too_large(context, totals, probabilities, fixed)
    safe = np.flatnonzero(is_safe)
    order = safe[np.lexsort((totals[safe], times[safe]))]  # among equally fast layouts, smaller ones first
    rows = _distinct(columns, order, num_layouts)
    rows = _with_measured(columns, rows, order, times, measured_rows(context, columns))
    best = int(rows[0])
    layouts = _planned(context, columns, rows)
    around = _planned(context, columns, neighbours(columns, best, times))
    around.sort(key=lambda neighbour: neighbour.step_time_s)
    spec = context.spec
    return Plan(
        workload=spec.workload.name,
        cluster=spec.cluster.name,
        num_parameters=num_parameters(spec.workload),
        num_trained_parameters=_num_trained(spec),
        optimizer=spec.training.optimizer,
        gradients=spec.training.gradients,
        is_pure_bf16=spec.training.is_pure_bf16,
        global_batch=spec.global_batch,
        seq=spec.seq,
        precision=context.precision,
        num_layouts=len(times),
        num_fitting=int(is_safe.sum()),
        search_s=search_s,
        layouts=tuple(layouts),
        neighbours=tuple(
            msgspec.structs.replace(neighbour, why=why_worse(neighbour, layouts[0], context.risk))
            for neighbour in around
        ),
        worth_measuring=_different(layouts),
        pareto=_without_beaten(_planned(context, columns, _front(times, totals, order))),
        sensitivity=sensitivity(context, columns, best),
        risk=context.risk,
        calibrated_with=context.calibration.num_runs if context.calibration.kinds else 0,
        target=context.target,
        excluded=excluded,
    )


def _with_host_memory(context: SearchContext) -> SearchContext:
    """Return the context extended by layouts that keep the optimizer in host memory."""
    return replace(context, spec=replace(context.spec, offloads=True))


def _runnable_layouts(context: SearchContext, fixed: tuple[str, ...]) -> tuple[Columns, tuple[ExcludedLayouts, ...]]:
    """Return the valid layouts with the fixed parameters that the target can run, and why others are excluded."""
    columns = _valid_layouts(context, fixed)
    return runnable(context.spec, columns, target=context.target, precision=context.precision)


def _valid_layouts(context: SearchContext, fixed: tuple[str, ...]) -> Columns:
    """Return the valid layouts with the fixed parameters."""
    columns = all_layouts(context.spec)
    if not len(columns["tp"]):
        raise no_valid_layout(context.spec)
    columns = only(context.spec, columns, fixed)
    software = context.software
    if not software.fused_attention or software.selective_share or software.selects_modules:
        return columns
    # Selective recomputation repeats attention's scores, which fused kernels never store: it equals no recomputation.
    is_not_selective = columns["recompute"] != RECOMPUTE.index("selective")
    if not is_not_selective.any():
        raise InputError(
            "recompute=selective repeats what fused attention never stores, so for software in general it equals "
            "recompute=none",
            hint="--fix recompute=none; or name a framework that repeats more: --for megatron, nemo or torchtitan",
        )
    return {name: values[is_not_selective] for name, values in columns.items()}


def _front(times: Array, totals: Array, order: Rows) -> Rows:
    """Return the Pareto front: the rows that need less memory than every faster row. `order` sorts rows by time."""
    held = totals[order]
    least_so_far = np.minimum.accumulate(held)
    is_smaller = np.concatenate([[True], held[1:] < SMALLER * least_so_far[:-1]])
    front: Rows = order[is_smaller]
    if len(front) <= MOST_IN_FRONT:
        return front
    spaced = np.linspace(0, len(front) - 1, MOST_IN_FRONT).astype(np.intp)
    return np.asarray(front[spaced], dtype=np.intp)


def _without_beaten(front: Sequence[PlannedLayout]) -> tuple[PlannedLayout, ...]:
    """Return the layouts that need less memory than every faster one, now that each stage's own memory is counted."""
    least = float("inf")
    kept = []
    for layout in front:
        if layout.memory_bytes < least:
            kept.append(layout)
            least = layout.memory_bytes
    return tuple(kept)


def _distinct(columns: Columns, order: Rows, count: int) -> Rows:
    """Return `count` rows in the given order: the first of each combination of TP, PP and EP.

    For the fastest layout of some degrees there are many that differ in chunks, schedule or sharding and are as fast
    within the prediction's error: with them, the list would hide the other degrees. If there are too few degrees, rows
    follow that also differ in recomputation or tokens per rank.
    """
    looked_at = order[:MOST_LOOKED_AT]
    # Layouts with the same tokens per rank, from shorter pieces of more sequences, are the same in effect.
    tokens = columns["micro_batch"] / columns["cp"]
    by_degrees = [columns[name] for name in ("tp", "pp", "ep")]
    rows = _first_of_each(by_degrees, looked_at, count)
    if len(rows) < count:
        rows += _first_of_each([*by_degrees, tokens, columns["recompute"]], looked_at, count)
    if len(set(rows)) < count:
        rows += _first_of_each([*by_degrees, tokens, columns["recompute"], columns["vpp"]], looked_at, count)
    kept = set(list(dict.fromkeys(rows))[:count])
    return np.array([row for row in looked_at if int(row) in kept], dtype=np.intp)


def _with_measured(columns: Columns, rows: Rows, order: Rows, times: Array, measured: Rows) -> Rows:
    """Return the rows with measured layouts in place of those that have the same degrees and are hardly faster."""
    by_degrees = {tuple(columns[name][row] for name in ("tp", "pp", "ep")): int(row) for row in rows[::-1]}
    replaced = {int(row): int(row) for row in rows}
    is_safe = set(order.tolist())
    for row in measured.tolist():
        listed = by_degrees.get(tuple(columns[name][row] for name in ("tp", "pp", "ep")))
        if listed is not None and row in is_safe and times[row] <= times[listed] * HARDLY_FASTER:
            replaced[listed] = row
    kept = np.array(list(dict.fromkeys(replaced.values())), dtype=np.intp)
    return np.asarray(kept[np.argsort(times[kept], kind="stable")], dtype=np.intp)


def _first_of_each(keys: Sequence[Array], rows: Rows, count: int) -> list[int]:
    """Return the first of the rows with each combination of the keys' values, at most `count`."""
    first: dict[tuple[float, ...], int] = {}
    for row in rows:
        first.setdefault(tuple(float(values[row]) for values in keys), int(row))
        if len(first) == count:
            break
    return list(first.values())


def _different(planned: Sequence[PlannedLayout]) -> tuple[Layout, ...]:
    """Return three of the best layouts, with different degrees so that they do not share the same prediction error."""
    layouts = [each.layout for each in planned]
    by_degrees: dict[tuple[int, ...], Layout] = {}
    for layout in layouts:
        by_degrees.setdefault((layout.tp, layout.pp, layout.cp, layout.ep), layout)
    chosen = list(by_degrees.values())
    rest = [layout for layout in layouts if layout not in chosen]
    return tuple([*chosen, *rest][:3])


def _planned(context: SearchContext, columns: Columns, rows: Rows) -> list[PlannedLayout]:
    """Return the rows as records with all their predictions."""
    if not len(rows):
        return []
    inputs = context.inputs(columns, rows)
    predicted = step_time(inputs, from_logs(context.calibration.logs))
    of_stages = context.with_stages(inputs)
    held = memory(of_stages, context.memory.constants)
    probability = out_of_memory_probability(of_stages, context.memory, held)
    factor = calibration_factor(context, columns)
    logs, deviations = predict_logs(inputs, context.calibration)
    totals_s = np.exp(logs)
    lows_s, highs_s = np.exp(logs - Z_90 * deviations), np.exp(logs + Z_90 * deviations)
    spec = context.spec
    num_gpus, tokens = spec.cluster.num_gpus, spec.global_batch * spec.seq
    trains_weights = not spec.training.lora_rank
    flops = training_flops_per_token(spec.workload, spec.seq, trains_weights=trains_weights) * tokens
    peak = _peak_flops_per_s(context)
    planned = []
    for number, row in enumerate(rows):
        total_s = float(totals_s[number])
        layout = layout_at(columns, int(row))
        planned.append(
            PlannedLayout(
                layout=layout,
                step_time_s=total_s,
                step_time_interval_s=(float(lows_s[number]), float(highs_s[number])),
                tokens_per_s_per_gpu=tokens / total_s / num_gpus,
                gpu_hours_per_billion_tokens=total_s * num_gpus / tokens * 1e9 / 3600,
                mfu=flops / total_s / num_gpus / peak,
                memory_bytes=float(held.total[number]),
                out_of_memory_probability=float(probability[number]),
                parts_s={name: _at(part, number) * factor for name, part in predicted.parts_s.items()},
                memory_parts_bytes={name: _at(part, number) for name, part in held.parts.items()},
                runs_on=runners(layout, spec.workload, context.precision, spec.training),
            )
        )
    return planned


def _peak_flops_per_s(context: SearchContext) -> float:
    """Return the GPU's peak in the context's precision, or in 16 bits if it does not support that precision."""
    peaks = context.spec.cluster.peak_flops_per_s
    return peaks.get(context.precision) or peaks.get("bf16") or peaks["fp16"]


def _at(column: Column, row: int) -> float:
    """Return a row's value; a scalar applies to every row."""
    return float(column if np.ndim(column) == 0 else column[row])


def _num_trained(spec: TrainingSpec) -> int | None:
    """Return the number of trained parameters; None if all are trained."""
    is_partial = spec.training.lora_rank or spec.training.frozen
    return sum(trained_parameters(spec.workload, spec.training)) if is_partial else None
