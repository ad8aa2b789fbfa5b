"""Collect the facts about a rank that rules need besides its parts: counts, bytes, host times in complete steps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.attribute import names
from flatout.attribute.host import HostStates, data_loading_events, synchronising_calls
from flatout.attribute.intervals import Flags, Times, clip, covered_before, covers, overlap_ns, union
from flatout.attribute.launches import GpuWork
from flatout.attribute.model_calls import call_facts
from flatout.attribute.steps import HostSteps
from flatout.records.diagnosis import Part
from flatout.records.events import NULL, EventTable, Kind
from flatout.records.timeline import CallCount, CommunicationKernels, RankFacts, Segments, StepSpan

SHORT_KERNEL_NS = 10_000
DENSE_GAP_NS = 5_000  # kernels this close together are limited by the GPU's own switching time
MIN_RUN = 20
# A horizontally fused kernel still has to move the same bytes. About this much of a short kernel's time is fixed cost
# (start, drain): the duration of the shortest kernels in the example traces.
FIXED_KERNEL_NS = 1_500
DIRECTIONS = re.compile(r"(HtoD|DtoH|DtoD|PtoP|HtoH)")


def rank_facts(
    table: EventTable,
    work: GpuWork,
    is_comm: Flags,
    states: HostStates,
    marks: HostSteps,
    steps: Sequence[StepSpan],
    segments: Segments,
    communication: CommunicationKernels,
    num_devices: int,
) -> RankFacts:
    """Collect the facts about one rank that drives `num_devices` GPUs; GPU times are means over these GPUs."""
    in_step = _in_host_steps(table, marks)
    launching = states.launching_threads[table.thread]
    on_host = table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.PYTHON) & in_step & launching
    runtime = on_host & (table.kind == Kind.RUNTIME)
    syncs = runtime & synchronising_calls(table, work)
    allocations = runtime & table.name_matches(names.matching(table.names, names.ALLOCATOR))
    loading = on_host & data_loading_events(table)
    pageable, pageable_calls = _pageable(table, work)
    pageable_calls &= in_step
    host_start, host_end = _host_window(table, marks, segments)
    blocked = union(
        *_joined(
            (table.start_ns[syncs], table.end_ns[syncs]),
            (table.start_ns[pageable_calls], table.end_ns[pageable_calls]),
            states.command_buffer_full,
            states.data_loading,
            states.checkpoint,
        )
    )
    blocked = union(*clip(*blocked, host_start, host_end))
    low = _first_counted_ns(steps, segments)
    counted = work.start_ns >= low
    kernels = counted & (table.kind[work.event] == Kind.KERNEL) & ~is_comm
    num_short, saving_ns = _short_kernels(work.start_ns[kernels], work.end_ns[kernels])
    matmul, plain = _matmuls(table, work, kernels)
    optimizer = on_host & table.name_matches(names.matching(table.names, names.OPTIMIZER))
    launches = _launch_rows(table, work, in_step)
    passes = _pass_starts(table, on_host)
    return RankFacts(
        num_host_events=int(on_host.sum()),
        host_s=(host_end - host_start) / 1e9,
        host_blocked_s=int((blocked[1] - blocked[0]).sum()) / 1e9,
        num_launches=len(launches),
        num_kernels=int(kernels.sum()),
        num_short_kernels=num_short,
        short_kernel_saving_s=saving_ns / num_devices / 1e9,
        matmul_s=_busy_s(table, work, matmul) / num_devices,
        plain_matmul_s=_busy_s(table, work, plain) / num_devices,
        plain_matmul_names=_top_names(table, work, plain),
        sync_calls=_by_operator(table, np.flatnonzero(syncs)),
        allocator_calls=_by_name(table, np.flatnonzero(allocations)),
        pageable_copy=_count(table, np.flatnonzero(pageable_calls)),
        pageable_bytes=int(table.num_bytes[work.event[pageable & counted]].clip(min=0).sum()),
        copy_bytes=_copy_bytes(table, work, counted),
        loader=_count(table, np.flatnonzero(loading)),
        loader_name=_most_common_name(table, np.flatnonzero(loading)),
        checkpoint_copy_s=_checkpoint_copies(table, work, states, segments, low) / 1e9,
        optimizer_s=int(table.duration_ns[optimizer].sum()) / 1e9,
        optimizer_gpu_s=_launched_inside_s(table, work, kernels, optimizer) / num_devices,
        num_optimizer_steps=int(optimizer.sum()),
        num_optimizer_launches=_num_inside(table, launches, optimizer),
        num_passes=len(passes),
        communication_pass=np.searchsorted(passes, communication.launched_ns, side="right") - 1,
        input_elements=_input_elements(table, marks),
        wrappers=_wrappers(table),
        calls=call_facts(table, marks, steps, segments),
    )


def _wrappers(table: EventTable) -> tuple[str, ...]:
    return tuple(wrapper for wrapper, pattern in names.WRAPPERS.items() if names.matching(table.names, pattern).any())


def _first_counted_ns(steps: Sequence[StepSpan], segments: Segments) -> int:
    """Return the start of the first step; without steps, the start of the window."""
    if steps:
        return steps[0].start_ns
    return int(segments.start_ns[0]) if len(segments.part) else 0


def _in_host_steps(table: EventTable, marks: HostSteps) -> Flags:
    if not marks.number:
        return np.ones(table.num_events, dtype=np.bool_)
    row = np.searchsorted(marks.start_ns, table.start_ns, side="right") - 1
    return np.asarray((row >= 0) & (table.start_ns < marks.end_ns[np.maximum(row, 0)]))


def _host_window(table: EventTable, marks: HostSteps, segments: Segments) -> tuple[int, int]:
    if marks.number:
        return int(marks.start_ns[0]), int(marks.end_ns[-1])
    if len(segments.part) == 0:
        return 0, 0
    return int(segments.start_ns[0]), int(segments.end_ns[-1])


def _joined(*intervals: tuple[Times, Times]) -> tuple[Times, Times]:
    return np.concatenate([i[0] for i in intervals]), np.concatenate([i[1] for i in intervals])


def _pageable(table: EventTable, work: GpuWork) -> tuple[Flags, Flags]:
    """Return the copies from or to pageable host memory (as GPU work), and the calls that made them (as events)."""
    matching = np.fromiter(("Pageable" in name for name in table.names), np.bool_, len(table.names))
    copies = (table.kind[work.event] == Kind.MEMCPY) & matching[table.name[work.event]]
    calls = np.zeros(table.num_events, dtype=np.bool_)
    calls[work.launch[copies & work.is_linked]] = True
    return copies, calls


def _short_kernels(start: Times, end: Times) -> tuple[int, int]:
    """Return the number of short kernels, and the ns saved excluding dense runs of `MIN_RUN` or more."""
    if len(start) == 0:
        return 0, 0
    short = (end - start) < SHORT_KERNEL_NS
    gap = np.append(np.maximum(start[1:] - end[:-1], 0), DENSE_GAP_NS + 1)
    joined = short[:-1] & short[1:] & (gap[:-1] <= DENSE_GAP_NS)
    run = np.cumsum(np.append(True, ~joined))
    sizes = np.bincount(run)
    dense = short & (sizes[run] >= MIN_RUN)
    in_run_gap = np.where(np.append(joined, False), gap, 0)
    saving = int(np.minimum((end - start)[dense], FIXED_KERNEL_NS).sum() + in_run_gap[dense].sum())
    return int(short.sum()), saving


def _matmuls(table: EventTable, work: GpuWork, kernels: Flags) -> tuple[Flags, Flags]:
    """Return which kernels are matrix multiplications, and which of those do not use tensor cores."""
    is_matmul = names.matching(table.names, names.MATMUL)
    has_tensor_cores = names.matching(table.names, names.TENSOR_CORE)
    name = table.name[work.event]
    matmul = kernels & is_matmul[name]
    return matmul, matmul & ~has_tensor_cores[name]


def _busy_s(table: EventTable, work: GpuWork, rows: Flags) -> float:
    """Return the time during which each device does any of this work, summed over the devices."""
    device = table.device[work.event]
    total_ns = 0
    for number in np.unique(device[rows]):
        of_device = rows & (device == number)
        start, end = union(work.start_ns[of_device], work.end_ns[of_device])
        total_ns += int((end - start).sum())
    return total_ns / 1e9


def _top_names(table: EventTable, work: GpuWork, rows: Flags) -> tuple[str, ...]:
    name = table.name[work.event[rows]]
    if len(name) == 0:
        return ()
    spent = np.bincount(name, weights=(work.end_ns - work.start_ns)[rows])
    return tuple(table.names[i] for i in np.argsort(-spent)[:3] if spent[i] > 0)


def _count(table: EventTable, rows: NDArray[np.int64]) -> CallCount:
    return CallCount(count=len(rows), host_s=int(table.duration_ns[rows].sum()) / 1e9)


def _by_name(table: EventTable, rows: NDArray[np.int64]) -> dict[str, CallCount]:
    return {table.names[name]: _count(table, rows[table.name[rows] == name]) for name in np.unique(table.name[rows])}


def _by_operator(table: EventTable, rows: NDArray[np.int64]) -> dict[str, CallCount]:
    """Count calls by the outermost operator around them on their thread, or by their own name if there is none."""
    calls: dict[str, list[int]] = {}
    for thread in np.unique(table.thread[rows]):
        operators = np.flatnonzero((table.kind == Kind.CPU_OP) & (table.thread == thread))
        reach = np.maximum.accumulate(table.end_ns[operators]) if len(operators) else operators
        for row in rows[table.thread[rows] == thread]:
            time = table.start_ns[row]
            # The first operator that ends after the call is the outermost open operator, if it began before.
            at = int(np.searchsorted(reach, time, side="right"))
            is_open = at < len(operators) and table.start_ns[operators[at]] <= time
            name = table.names[table.name[operators[at] if is_open else row]]
            calls.setdefault(name, []).append(int(row))
    return {name: _count(table, np.array(of_name, dtype=np.int64)) for name, of_name in calls.items()}


def _most_common_name(table: EventTable, rows: NDArray[np.int64]) -> str | None:
    return table.names[int(np.bincount(table.name[rows]).argmax())] if len(rows) else None


def _copy_bytes(table: EventTable, work: GpuWork, counted: Flags) -> dict[str, int]:
    result: dict[str, int] = {}
    copies = counted & (table.kind[work.event] == Kind.MEMCPY)
    for name in np.unique(table.name[work.event[copies]]):
        direction = DIRECTIONS.search(table.names[name])
        rows = work.event[copies][table.name[work.event[copies]] == name]
        key = direction[1] if direction else "other"
        result[key] = result.get(key, 0) + int(table.num_bytes[rows].clip(min=0).sum())
    return result


def _checkpoint_copies(table: EventTable, work: GpuWork, states: HostStates, segments: Segments, low: int) -> int:
    """Return the exposed nanoseconds of copies to the host during checkpoints, in complete steps."""
    to_host = (table.kind[work.event] == Kind.MEMCPY) & table.name_matches(_directed(table, "DtoH"))[work.event]
    start, end = union(work.start_ns[to_host], work.end_ns[to_host])
    in_checkpoint = covers(*states.checkpoint, start)
    exposed = segments.part == Part.MEMORY_COPY
    alone = union(*clip(segments.start_ns[exposed], segments.end_ns[exposed], low, np.iinfo(np.int64).max))
    return overlap_ns(*alone, start[in_checkpoint], end[in_checkpoint])


def _directed(table: EventTable, direction: str) -> Flags:
    return np.fromiter((direction in name for name in table.names), np.bool_, len(table.names))


def _launch_rows(table: EventTable, work: GpuWork, in_step: Flags) -> NDArray[np.int64]:
    rows = np.unique(work.launch[work.is_linked])
    return rows[in_step[rows]]


def _num_inside(table: EventTable, rows: NDArray[np.int64], spans: Flags) -> int:
    """Count the events that begin inside the spans."""
    start, end = union(table.start_ns[spans], table.end_ns[spans])
    times = table.start_ns[rows]
    return int((covered_before(start, end, times + 1) - covered_before(start, end, times)).sum())


def _launched_inside_s(table: EventTable, work: GpuWork, kernels: Flags, spans: Flags) -> float:
    """Return the GPU time of the kernels that were launched inside the spans."""
    start, end = union(table.start_ns[spans], table.end_ns[spans])
    inside = covered_before(start, end, work.launched_ns + 1) > covered_before(start, end, work.launched_ns)
    return _busy_s(table, work, kernels & work.is_linked & inside)


def _pass_starts(table: EventTable, on_host: Flags) -> Times:
    """Return the start of each DistributedDataParallel forward pass.

    If there are none, return the start of each loss operator's backward pass.
    """
    forward = on_host & table.name_matches(names.matching(table.names, names.FORWARD))
    if forward.any():
        return np.asarray(table.start_ns[forward])
    is_loss = np.fromiter(
        (n.startswith(names.BACKWARD_PREFIX) and "LossBackward" in n.replace("Loss2d", "Loss") for n in table.names),
        np.bool_,
        len(table.names),
    )
    return np.asarray(table.start_ns[on_host & (table.kind == Kind.CPU_OP) & is_loss[table.name]])


_EMBEDDING = re.compile(r"^aten::(?:embedding|convolution|conv\dd|linear|addmm)$")


def _input_elements(table: EventTable, marks: HostSteps) -> tuple[int | None, ...]:
    """Return each step's number of elements in the first layer's input: an embedding's indices, or the batch."""
    if not marks.number or not table.shapes:
        return ()
    first = np.flatnonzero(
        names.matching(table.names, _EMBEDDING)[table.name] & (table.shape != NULL) & (table.thread == marks.thread)
    )
    inputs: list[int | None] = []
    for start, end in zip(marks.start_ns, marks.end_ns, strict=True):
        rows = first[(table.start_ns[first] >= start) & (table.start_ns[first] < end)]
        if len(rows) == 0:
            inputs.append(None)
            continue
        layer = table.name[rows[0]]
        weight = _weight(table.shapes[table.shape[rows[0]]])
        # Every accumulation pass feeds the same first layer: count all of them.
        shapes = [table.shapes[table.shape[row]] for row in rows if table.name[row] == layer]
        of_layer = [shape for shape in shapes if _weight(shape) == weight]
        inputs.append(sum(_elements(shape, table.names[layer]) for shape in of_layer))
    return tuple(inputs)


def _weight(shape: str) -> object:
    try:
        sizes = json.loads(shape)
    except ValueError:
        return None
    return sizes[0] if sizes else None


def _elements(shape: str, layer: str) -> int:
    """Count the elements of the layer's data: the second argument of an embedding, the first of other layers."""
    try:
        sizes = json.loads(shape)
        data = sizes[1] if layer == "aten::embedding" else sizes[0]
        return int(np.prod(data, dtype=np.int64)) if data else 0
    except (ValueError, IndexError, TypeError):
        return 0
