"""Identify the GPU work that is communication, and the operation and size of each communication kernel.

They come from the kernel's own arguments, or else from the host's `record_param_comms` around or before its launch
(sends and receives are recorded before the batch that launches them), or else from the kernel's name and stream alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flatout.attribute import names
from flatout.attribute.intervals import Flags, ThreadTimes, Times, covers, union
from flatout.attribute.launches import GpuWork
from flatout.records.events import NULL, CollectiveArgs, EventTable, Kind
from flatout.records.timeline import BEFORE_RECORDING, CommunicationCall, CommunicationKernels

DTYPE_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1,
    "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
}  # fmt: skip
NOT_A_TRANSFER = {"wait", "init", "end", ""}


def is_communication(table: EventTable, work: GpuWork) -> Flags:
    """Return True for each GPU event that is a communication kernel or a copy made by a copy-engine collective."""
    by_name = names.communication_kernels(table.names)[table.name[work.event]]
    kernel = table.kind[work.event] == Kind.KERNEL
    has_args = table.collective[work.event] != NULL
    copies = np.flatnonzero(~kernel & work.is_linked)
    in_collective = np.zeros(len(work), dtype=np.bool_)
    if len(copies):
        annotations = names.matching(table.names, names.COLLECTIVE_ANNOTATION)[table.name] & (
            table.kind == Kind.USER_ANNOTATION
        )
        if annotations.any():
            axis = ThreadTimes(int(table.start_ns[0]), int(table.end_ns.max()))
            thread = table.thread[annotations]
            intervals = union(axis(thread, table.start_ns[annotations]), axis(thread, table.end_ns[annotations]))
            calls = work.launch[copies]
            in_collective[copies] = covers(*intervals, axis(table.thread[calls], table.start_ns[calls]))
    return np.asarray((kernel & by_name) | has_args | in_collective)


def communication_kernels(
    table: EventTable, work: GpuWork, is_comm: Flags, syncs: tuple[Times, Times]
) -> CommunicationKernels:
    """Return a rank's communication in order of start time.

    On the CPU, collective annotations are used instead of kernels. `syncs` are the sorted starts and ends of the calls
    in which the host waits for the device.
    """
    if len(work) == 0:
        return _cpu_collectives(table)
    rows = np.flatnonzero(is_comm)
    recorded = _recorded_before_launch(table, work, rows)
    annotated = _annotated_operations(table, work, rows)
    calls: list[CommunicationCall] = []
    for kernel, row in enumerate(rows):
        event = work.event[row]
        own_arguments = table.collective[event]
        arguments = [own_arguments] if own_arguments != NULL else recorded.get(int(row), [])
        sequence = int(table.sequence[event])
        calls += [_call(kernel, table.collectives[index], sequence) for index in arguments]
        if not arguments:
            operation = annotated.get(int(row)) or names.operation(table.names[table.name[event]])
            calls.append(_unknown_call(kernel, operation))
    return CommunicationKernels(
        start_ns=work.start_ns[rows],
        end_ns=work.end_ns[rows],
        launched_ns=work.launched_ns[rows],
        stream=table.stream[work.event[rows]],
        calls=tuple(calls),
        next_launch_ns=_next_launches(work, is_comm, syncs),
    )


def _next_launches(work: GpuWork, is_comm: Flags, syncs: tuple[Times, Times]) -> Times:
    """Return when the work after each communication kernel was launched, where the host did not wait for it."""
    end_ns = work.end_ns[is_comm]
    others = np.flatnonzero(~is_comm)
    following = np.searchsorted(work.start_ns[others], end_ns, side="left")
    has_next = following < len(others)
    launched_ns = np.full(len(end_ns), BEFORE_RECORDING, dtype=np.int64)
    launched_ns[has_next] = work.launched_ns[others[following[has_next]]]
    sync_start_ns, sync_end_ns = syncs
    num_begun = np.searchsorted(sync_start_ns, end_ns, side="left")
    num_ended = np.searchsorted(sync_end_ns, end_ns, side="left")
    launched_ns[num_begun > num_ended] = BEFORE_RECORDING
    return launched_ns


def _recorded_before_launch(table: EventTable, work: GpuWork, rows: NDArray[np.int64]) -> dict[int, list[int]]:
    """Return the rows of `table.collectives` that the host recorded for kernels without arguments.

    For each such kernel, these are the rows that the launching thread recorded since its previous communication launch.
    """
    bare = rows[(table.collective[work.event[rows]] == NULL) & work.is_linked[rows]]
    if len(bare) == 0:
        return {}
    is_record = (table.collective != NULL) & (table.kind == Kind.CPU_OP)
    is_transfer = np.array([c.operation not in NOT_A_TRANSFER for c in table.collectives], dtype=np.bool_)
    is_record[is_record] = is_transfer[table.collective[is_record]]
    records = np.flatnonzero(is_record)
    launched = rows[work.is_linked[rows]]
    result: dict[int, list[int]] = {}
    for thread in np.unique(table.thread[work.launch[bare]]):
        mine = records[table.thread[records] == thread]
        launches = launched[table.thread[work.launch[launched]] == thread]
        launches = launches[np.argsort(work.launched_ns[launches], kind="stable")]
        until = np.searchsorted(table.start_ns[mine], work.launched_ns[launches], side="right")
        begin = np.append(0, until[:-1])
        for row, first, last in zip(launches, begin, until, strict=True):
            result[int(row)] = [int(i) for i in table.collective[mine[first:last]]]
    return result


def _annotated_operations(table: EventTable, work: GpuWork, rows: NDArray[np.int64]) -> dict[int, str]:
    """Return the collective named by the host's annotation around the launch, for each kernel without arguments."""
    bare = rows[(table.collective[work.event[rows]] == NULL) & work.is_linked[rows]]
    is_annotation = names.matching(table.names, names.COLLECTIVE_ANNOTATION)[table.name]
    spans = np.flatnonzero(is_annotation & (table.kind == Kind.USER_ANNOTATION))
    if len(bare) == 0 or len(spans) == 0:
        return {}
    calls = work.launch[bare]
    launched, threads = table.start_ns[calls], table.thread[calls]
    span_end, span_thread = table.start_ns[spans] + table.duration_ns[spans], table.thread[spans]
    until = np.searchsorted(table.start_ns[spans], launched, side="right")
    result: dict[int, str] = {}
    for row, time, thread, at in zip(bare.tolist(), launched.tolist(), threads.tolist(), until.tolist(), strict=True):
        for span in range(at - 1, max(at - 9, -1), -1):  # annotations that began just before the launch
            if span_thread[span] == thread and span_end[span] >= time:
                operation = names.operation(table.names[table.name[spans[span]]])
                if operation != "unknown":
                    result[row] = operation
                break
    return result


def _call(kernel: int, args: CollectiveArgs, sequence: int) -> CommunicationCall:
    operation = names.operation(args.operation)
    sizes = [n for n in (args.num_input_elements, args.num_output_elements) if n is not None]
    num_elements = max(sizes) if sizes else None
    width = DTYPE_BYTES.get(args.dtype or "")
    peer = {"send": args.dst_rank, "recv": args.src_rank}.get(operation)
    if peer is not None and args.group_ranks and 0 <= peer < len(args.group_ranks):
        peer = args.group_ranks[peer]
    return CommunicationCall(
        kernel=kernel,
        operation=operation,
        group=args.group_name,
        ranks=args.group_ranks or None,
        group_size=args.group_size,
        root=args.src_rank if operation in ("broadcast", "scatter") else args.dst_rank,
        peer=peer,
        num_elements=num_elements,
        num_bytes=num_elements * width if num_elements is not None and width else None,
        sequence=sequence if sequence != NULL else None,
        group_description=args.group_description,
    )


def _unknown_call(kernel: int, operation: str) -> CommunicationCall:
    return CommunicationCall(
        kernel=kernel, operation=operation, group=None, ranks=None, group_size=None, root=None, peer=None,
        num_elements=None, num_bytes=None, sequence=None,
    )  # fmt: skip


def _cpu_collectives(table: EventTable) -> CommunicationKernels:
    rows = np.flatnonzero(
        names.matching(table.names, names.COLLECTIVE_ANNOTATION)[table.name] & (table.kind == Kind.USER_ANNOTATION)
    )
    end: Times = table.start_ns[rows] + table.duration_ns[rows]
    calls = []
    for kernel, row in enumerate(rows):
        call = _unknown_call(kernel, names.operation(table.names[table.name[row]]))
        index = table.collective[row]
        calls.append(_call(kernel, table.collectives[index], int(table.sequence[row])) if index != NULL else call)
    return CommunicationKernels(
        start_ns=table.start_ns[rows],
        end_ns=end,
        launched_ns=table.start_ns[rows],
        stream=table.thread[rows].astype(np.int64),
        calls=tuple(calls),
    )
