"""Classify the activity of a rank's launching threads, as merged intervals that can be searched by time."""

from __future__ import annotations

import msgspec
import numpy as np

from flatout.attribute import names
from flatout.attribute.checkpoints import checkpoint_intervals, pageable_to_host
from flatout.attribute.intervals import Flags, Times, union
from flatout.attribute.launches import GpuWork
from flatout.attribute.loader_thread import waits_for_loader_thread
from flatout.attribute.steps import HostSteps
from flatout.records.events import EventTable, Kind

Intervals = tuple[Times, Times]


class HostStates(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Merged intervals of each kind of host activity, for the launching threads only."""

    checkpoint: Intervals
    data_loading: Intervals
    allocator: Intervals
    command_buffer_full: Intervals
    active: Intervals  # any host event or a host step is open
    sync_start_ns: Times  # of synchronising calls inside host steps, sorted
    sync_end_ns: Times  # the ends of these calls, sorted independently of sync_start_ns
    launching_threads: Flags  # shape (threads,); the training threads if there is no GPU work


def host_states(table: EventTable, work: GpuWork, marks: HostSteps) -> HostStates:
    """Classify the host events of the launching threads and of the thread that marks the steps."""
    launching = _launching_threads(table, work, marks) if len(work) else training_threads(table, marks)
    on_host = table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
    mine = on_host & launching[table.thread]
    runtime = mine & (table.kind == Kind.RUNTIME)

    requests = data_loading_events(table)
    loading = mine & requests
    handed_over = waits_for_loader_thread(table, requests, launching)
    allocating = runtime & names.matching(table.names, names.ALLOCATOR)[table.name]
    full = (table.kind == Kind.OVERHEAD) & table.name_matches(
        np.fromiter((name == names.COMMAND_BUFFER_FULL for name in table.names), np.bool_, len(table.names))
    )
    sync = runtime & synchronising_calls(table, work)
    sync_start, sync_end = table.start_ns[sync], table.end_ns[sync]
    if marks.number:
        inside = np.zeros(len(sync_start), dtype=np.bool_)
        for start, end in zip(marks.start_ns, marks.end_ns, strict=True):
            inside |= (sync_start >= start) & (sync_end <= end)
        sync_start, sync_end = sync_start[inside], sync_end[inside]
    return HostStates(
        checkpoint=checkpoint_intervals(table, work, marks, launching),
        data_loading=union(
            np.concatenate((table.start_ns[loading], handed_over[0])),
            np.concatenate((table.end_ns[loading], handed_over[1])),
        ),
        allocator=_union_of(table, allocating),
        command_buffer_full=_union_of(table, full),
        active=union(
            np.concatenate((table.start_ns[mine], marks.start_ns)), np.concatenate((table.end_ns[mine], marks.end_ns))
        ),
        sync_start_ns=np.sort(sync_start),
        sync_end_ns=np.sort(sync_end),
        launching_threads=launching,
    )


def _launching_threads(table: EventTable, work: GpuWork, marks: HostSteps) -> Flags:
    """Return the threads that launch GPU work, and those that mark steps; shape (threads,)."""
    threads = np.zeros(len(table.threads), dtype=np.bool_)
    threads[table.thread[work.launch[work.is_linked]]] = True
    if marks.thread is not None:
        is_mark = table.name_matches(names.matching(table.names, names.STEP))
        threads[table.thread[is_mark & table.is_kind(Kind.USER_ANNOTATION, Kind.CPU_OP)]] = True
    return threads


def training_threads(table: EventTable, marks: HostSteps) -> Flags:
    """Return the training threads on the CPU: those that mark steps or run backward, or else all that run operators."""
    threads = np.zeros(len(table.threads), dtype=np.bool_)
    operators = table.kind == Kind.CPU_OP
    if marks.thread is None:
        threads[np.unique(table.thread[operators])] = True
        return threads
    backward = np.fromiter((name.startswith(names.BACKWARD_PREFIX) for name in table.names), np.bool_, len(table.names))
    threads[marks.thread] = True
    threads[np.unique(table.thread[operators & backward[table.name]])] = True
    return threads


def data_loading_events(table: EventTable) -> Flags:
    """Return True for each host event in which the next batch is requested from a data loader."""
    annotated = table.name_matches(names.matching(table.names, names.DATA_LOADING))
    python = table.name_matches(names.matching(table.names, names.PYTHON_DATA_LOADING)) & (table.kind == Kind.PYTHON)
    return np.asarray((annotated & table.is_kind(Kind.CPU_OP, Kind.USER_ANNOTATION)) | python)


def synchronising_calls(table: EventTable, work: GpuWork) -> Flags:
    """Return True for each runtime call that returns only when the GPU has caught up."""
    calls = np.asarray(
        table.name_matches(names.matching(table.names, names.SYNCHRONISING)) & (table.kind == Kind.RUNTIME)
    )
    # A copy into pageable memory blocks its caller, whatever the call's name.
    blocking = work.launch[pageable_to_host(table, work) & work.is_linked]
    calls[blocking] = True
    return calls


def _union_of(table: EventTable, rows: Flags) -> Intervals:
    return union(table.start_ns[rows], table.end_ns[rows])
