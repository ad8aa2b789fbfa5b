"""The slow, obvious reading of the attribution rules, to hold the fast one against.

Goes in: a small EventTable. Comes out: window, steps and the part of every instant, each found by plain loops over all
events for each elementary interval between two event boundaries. It shares no code with `flatout.attribute`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from flatout.records.diagnosis import PART_NAMES
from flatout.records.events import NULL, CollectiveArgs, EventTable, Kind

HOST = (Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.PYTHON)
GPU_WORK = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
BEFORE_THE_RECORDING = float("-inf")
CHECKPOINT_BYTES = 64 * 1024 * 1024
KERNEL_MARKS = (
    "nccl", "rccl", "oneccl", "multimem_", "one_shot_all_reduce", "two_shot_all_reduce", "cross_device_reduce",
    "nvshmem", "deep_ep", "deepep", "msccl", "symm_mem",
)  # fmt: skip

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Event:
    kind: Kind
    name: str
    start: int
    end: int
    thread: tuple[str, str] | None
    device: int
    stream: int
    correlation: int
    num_bytes: int
    collective: CollectiveArgs | None

    def is_open_at(self, time: int) -> bool:
        return self.start <= time < self.end


@dataclass(frozen=True)
class Step:
    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    window: Span
    lead_in: Span
    steps: list[Step]
    segments: list[tuple[int, int, str]]  # neighbours differ in their part

    def part_ns(self) -> dict[str, int]:
        """The whole time of each part that occurs."""
        total: dict[str, int] = {}
        for start, end, part in self.segments:
            total[part] = total.get(part, 0) + end - start
        return total


# --- names


def is_communication_kernel(event: Event) -> bool:
    name = event.name.lower()
    return event.kind == Kind.KERNEL and (event.collective is not None or any(mark in name for mark in KERNEL_MARKS))


def is_collective_operation(name: str) -> bool:
    return name.startswith(("gloo:", "nccl:", "c10d::", "mpi:", "ucc:")) or name == "record_param_comms"


def is_data_loading(event: Event) -> bool:
    if event.kind not in HOST:
        return False
    return ("DataLoader" in event.name and "__next__" in event.name) or (
        event.kind == Kind.PYTHON and "torch/utils/data/" in event.name
    )


def is_checkpoint_annotation(event: Event) -> bool:
    if event.kind not in HOST:
        return False
    if any(mark in event.name for mark in ("torch.save", "flatout:checkpoint", "checkpoint_save", "dcp.save")):
        return True
    return "torch/serialization.py" in event.name and "save" in event.name


def is_allocator_call(event: Event) -> bool:
    if event.kind != Kind.RUNTIME:
        return False
    if event.name in ("cudaMallocHost", "cudaFreeHost", "hipHostMalloc", "hipHostFree", "cudaHostAlloc"):
        return False
    if event.name.startswith(("cudaMalloc", "cudaFree", "hipMalloc", "hipFree")):
        return True
    return event.name in (
        "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemSetAccess", "cuMemAddressReserve",
        "cuMemAddressFree",
    )  # fmt: skip


def is_copy_to_pageable_host(event: Event) -> bool:
    return event.kind == Kind.MEMCPY and "DtoH" in event.name and "Pageable" in event.name


def is_launch_call(event: Event) -> bool:
    return event.kind == Kind.RUNTIME and event.name in ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaGraphLaunch")


def step_number(event: Event) -> int | None:
    if event.kind not in (Kind.USER_ANNOTATION, Kind.CPU_OP) or not event.name.startswith("ProfilerStep#"):
        return None
    digits = event.name.removeprefix("ProfilerStep#")
    return int(digits) if digits.isdigit() else None


# --- one rank


class Rank:
    """All that the rules need of one rank, found event by event."""

    def __init__(self, table: EventTable, num_left_out: int = 0) -> None:
        """`num_left_out` of the first steps are a start, and not counted."""
        self.num_left_out = num_left_out
        self.events: list[Event] = []
        for i in range(table.num_events):
            start, thread, collective = int(table.start_ns[i]), int(table.thread[i]), int(table.collective[i])
            event = Event(
                kind=Kind(int(table.kind[i])),
                name=table.names[int(table.name[i])],
                start=start,
                end=start + int(table.duration_ns[i]),
                thread=None if thread == NULL else table.threads[thread],
                device=int(table.device[i]),
                stream=int(table.stream[i]),
                correlation=int(table.correlation[i]),
                num_bytes=int(table.num_bytes[i]),
                collective=None if collective == NULL else table.collectives[collective],
            )
            self.events.append(event)
        self.host = [event for event in self.events if event.kind in HOST]
        self.work = [event for event in self.events if event.kind in GPU_WORK]
        self.is_cpu_job = not self.work
        self.find_launches()
        self.lost_launches = [call for call in self.events if self.has_lost_its_kernel(call)]
        self.has_unseen_gpu = self.is_cpu_job and self.shows_a_gpu(table.meta.backend)
        self.find_host_steps()
        self.find_window()
        self.find_launching_threads()
        self.find_steps()
        self.checkpoints = self.annotated_checkpoints()
        if not self.is_cpu_job:
            self.checkpoints += self.checkpoints_by_signature()

    # Launches

    def find_launches(self) -> None:
        self.launch: dict[Event, Event] = {}
        for work in self.work:
            if work.correlation == NULL:
                continue
            for call in self.events:
                if call.kind == Kind.RUNTIME and call.correlation == work.correlation:
                    best = self.launch.get(work)
                    if best is None or (call.start, -call.end) < (best.start, -best.end):
                        self.launch[work] = call
        self.launched: dict[Event, float] = {}
        self.launch_end: dict[Event, float] = {}
        for work in self.work:
            known = self.launch.get(work, self.last_launch_before_on_its_stream(work))
            self.launched[work] = BEFORE_THE_RECORDING if known is None else known.start
            self.launch_end[work] = BEFORE_THE_RECORDING if known is None else known.end

    def last_launch_before_on_its_stream(self, work: Event) -> Event | None:
        last = None
        for other in self.work:  # in the table's order: by start
            if other is work:
                break
            if (other.device, other.stream) == (work.device, work.stream) and other in self.launch:
                last = self.launch[other]
        return last

    def has_lost_its_kernel(self, call: Event) -> bool:
        """A launch of which there is no kernel; launches in or around another one are the same launch."""
        started = {work.correlation for work in self.work}
        if not is_launch_call(call) or call.correlation == NULL or call.correlation in started:
            return False
        return not any(
            is_launch_call(other)
            and other.correlation in started
            and other.thread == call.thread
            and (other.is_open_at(call.start) or call.is_open_at(other.start))
            for other in self.events
        )

    def shows_a_gpu(self, backend: str | None) -> bool:
        """Whether a trace without GPU work is that of a GPU all the same."""
        if self.lost_launches or any(event.kind in (Kind.GPU_ANNOTATION, Kind.SYNC) for event in self.events):
            return True
        annotations = [event.name for event in self.events if event.kind == Kind.USER_ANNOTATION]
        if any(name.startswith("nccl:") for name in annotations):
            return True
        if any(name.startswith("gloo:") for name in annotations):
            return False
        return backend == "nccl" or any(event.kind == Kind.RUNTIME for event in self.events)

    def lost_kernel_can_run(self, time: int) -> bool:
        """Whether a kernel that was lost can run at an idle instant: launched before it, and after all that ran."""
        begin = self.gap_around(time)[0]
        last = max((self.launched[work] for work in self.work if work.start < begin), default=BEFORE_THE_RECORDING)
        return any(last < call.start <= time for call in self.lost_launches)

    # Steps and window

    def find_host_steps(self) -> None:
        marks_of: dict[tuple[str, str] | None, list[Event]] = {}
        for event in self.events:
            if step_number(event) is not None:
                marks_of.setdefault(event.thread, []).append(event)
        self.step_threads = set(marks_of)
        self.host_steps: list[Event] = []
        self.main_thread: tuple[str, str] | None = None
        if marks_of:
            self.main_thread = min(marks_of, key=lambda thread: (-len(marks_of[thread]), marks_of[thread][0].start))
            seen = set()
            for event in marks_of[self.main_thread]:
                if step_number(event) not in seen:
                    seen.add(step_number(event))
                    self.host_steps.append(event)
        del self.host_steps[: self.num_left_out]

    def find_window(self) -> None:
        if self.host_steps:
            ends = [step.end for step in self.host_steps] + [work.end for work in self.work]
            self.window = (self.host_steps[0].start, max(ends))
        else:
            all_events = self.host + self.work
            starts, ends = [event.start for event in all_events], [event.end for event in all_events]
            self.window = (min(starts), max(ends)) if all_events else (0, 0)

    def find_launching_threads(self) -> None:
        self.launching_threads = set(self.step_threads) | {call.thread for call in self.launch.values()}

    def find_steps(self) -> None:
        begins: list[int] = []
        for mark in self.host_steps:
            before = [work.end for work in self.work if self.launched[work] < mark.start]
            begins.append(max([mark.start, *before]))
        ends = [*begins[1:], self.window[1]]
        self.steps = [
            Step(number=step_number(mark) or 0, start=begin, end=end)
            for mark, begin, end in zip(self.host_steps, begins, ends, strict=False)
        ]
        self.lead_in = (self.window[0], begins[0] if begins else self.window[0])

    def is_in_host_step(self, time: int) -> bool:
        return any(step.is_open_at(time) for step in self.host_steps)

    # Checkpoint intervals

    def annotated_checkpoints(self) -> list[Span]:
        threads = self.training_threads() if self.is_cpu_job else self.launching_threads
        return [(e.start, e.end) for e in self.host if e.thread in threads and is_checkpoint_annotation(e)]

    def checkpoints_by_signature(self) -> list[Span]:
        spans: list[Span] = []
        for thread in self.launching_threads:
            launched = [(call, work) for work, call in self.launch.items() if call.thread == thread]
            copies = [(call, work) for call, work in launched if is_copy_to_pageable_host(work)]
            copies.sort(key=lambda pair: pair[0].start)
            series: list[list[tuple[Event, Event]]] = []
            for call, work in copies:
                is_cut = not series or any(
                    other.kind == Kind.KERNEL and series[-1][-1][0].start < other_call.start < call.start
                    for other_call, other in launched
                )
                if is_cut:
                    series.append([])
                series[-1].append((call, work))
            calls = [call for call, _ in launched]
            large = [one for one in series if sum(max(work.num_bytes, 0) for _, work in one) > CHECKPOINT_BYTES]
            spans += [self.extended(thread, one[0][0], one[-1][0], calls) for one in large]
        return spans

    def extended(self, thread: tuple[str, str] | None, first: Event, last: Event, calls: list[Event]) -> Span:
        before = [call for call in calls if call.start < first.start]
        begin = max(before, key=lambda call: (call.start, call.end)).end if before else first.start
        ops = [
            event
            for event in self.events
            if event.kind == Kind.CPU_OP and event.thread == thread and step_number(event) is None
        ]
        around = [op for op in ops if op.start <= last.start and last.end <= op.end]
        after = [
            op.start
            for op in ops
            if op.start >= last.end and not any(o is op or o.start <= op.start < o.end for o in around)
        ]
        if after:
            return begin, min(after)
        steps = [step for step in self.host_steps if step.is_open_at(last.start)]
        return begin, max(event.end for event in [*steps, *around, last])

    # GPU state

    def gpu_state(self, time: int) -> str | None:
        running = [work for work in self.work if work.is_open_at(time)]
        if any(work.kind == Kind.KERNEL and not is_communication_kernel(work) for work in running):
            return "compute"
        if any(is_communication_kernel(work) or self.is_copy_of_collective(work) for work in running):
            return "communication"
        return "memory_copy" if running else None

    def is_copy_of_collective(self, work: Event) -> bool:
        if work.kind == Kind.KERNEL:
            return False
        if work.collective is not None:
            return True
        call = self.launch.get(work)
        return call is not None and any(
            event.kind == Kind.USER_ANNOTATION
            and event.thread == call.thread
            and is_collective_operation(event.name)
            and event.is_open_at(call.start)
            for event in self.events
        )

    # Idle gaps

    def gap_around(self, time: int) -> Span:
        """The maximal interval around an idle instant in which no GPU work runs, within the window."""
        begin, end = self.window
        for work in self.work:
            if work.start == work.end:
                continue  # never runs
            if work.end <= time:
                begin = max(begin, work.end)
            if work.start > time:
                end = min(end, work.start)
        return begin, end

    def ready(self, gap: Span) -> int:
        begin, end = gap
        if end == self.window[1]:
            return end
        launch_end = max(self.launch_end[work] for work in self.work if work.start == end)
        return begin if launch_end == BEFORE_THE_RECORDING else min(end, max(begin, int(launch_end)))

    def is_open_on_launching_thread(self, time: int, events: list[Event]) -> bool:
        return any(event.is_open_at(time) and event.thread in self.launching_threads for event in events)

    def is_synchronising(self, call: Event) -> bool:
        if call.kind != Kind.RUNTIME:
            return False
        if call.name in (
            "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize",
            "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize",
            "cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream",
        ):  # fmt: skip
            return True
        return call.name in ("cudaMemcpyAsync", "hipMemcpyAsync") and any(
            started is call and is_copy_to_pageable_host(work) for work, started in self.launch.items()
        )

    def is_drained_by_sync(self, gap_start: int) -> bool:
        for call in self.events:
            if not (self.is_synchronising(call) and call.thread in self.launching_threads):
                continue
            is_inside_step = any(step.start <= call.start and call.end <= step.end for step in self.host_steps)
            if call.start < gap_start <= call.end and (is_inside_step or not self.host_steps):
                return True
        return False

    def idle_part(self, time: int) -> str:
        if self.lead_in[0] <= time < self.lead_in[1]:
            return "unattributed"
        if self.lost_kernel_can_run(time):
            return "unattributed"
        gap = self.gap_around(time)
        is_before_launch = time < self.ready(gap)
        if is_before_launch:
            if any(start <= time < end for start, end in self.checkpoints):
                return "checkpoint"
            if self.is_open_on_launching_thread(time, [e for e in self.events if is_data_loading(e)]):
                return "data_loading"
            if self.waits_for_loader_thread(time, self.launching_threads):
                return "data_loading"
            if self.is_open_on_launching_thread(time, [e for e in self.events if is_allocator_call(e)]):
                return "allocator"
        if self.is_drained_by_sync(gap[0]):
            return "host_sync"
        if not is_before_launch:
            return "launch_latency"
        for event in self.events:
            if event.kind == Kind.OVERHEAD and event.name == "Command Buffer Full" and event.is_open_at(time):
                return "launch_latency"
        if self.is_open_on_launching_thread(time, self.host) or self.is_in_host_step(time):
            return "host_launch"
        return "unattributed"

    def waits_for_loader_thread(self, time: int, threads: set[tuple[str, str] | None]) -> bool:
        """Whether these threads are idle while another one is in a loader's next(), and continue within 6 ms of it."""
        work = [e for e in self.host if e.thread in threads and step_number(e) is None and e.start < e.end]
        loading = [e for e in self.events if is_data_loading(e) and e.thread not in threads]
        if any(event.is_open_at(time) for event in work) or not any(event.is_open_at(time) for event in loading):
            return False
        before = [event.end for event in work if event.end <= time]
        after = [event.start for event in work if event.start > time]
        if not before or not after:
            return False
        returned = [event.end for event in loading if max(before) < event.end <= min(after)]
        return bool(returned) and min(after) - max(returned) <= 6_000_000

    # CPU jobs

    def training_threads(self) -> set[tuple[str, str] | None]:
        if not self.host_steps:
            return {event.thread for event in self.host if event.kind == Kind.CPU_OP}
        return {self.main_thread} | {
            event.thread
            for event in self.host
            if event.kind == Kind.CPU_OP and event.name.startswith("autograd::engine::evaluate_function")
        }

    def cpu_part(self, time: int) -> str:
        threads = self.training_threads()
        is_open = [event for event in self.host if event.is_open_at(time)]
        on_training_thread = [event for event in is_open if event.thread in threads]
        if any(start <= time < end for start, end in self.checkpoints):
            return "checkpoint"
        if any(is_data_loading(event) for event in on_training_thread):
            return "data_loading"
        if self.waits_for_loader_thread(time, threads):
            return "data_loading"
        if self.has_unseen_gpu:
            return "unattributed"
        for event in on_training_thread:
            if event.kind == Kind.CPU_OP and not is_collective_operation(event.name) and step_number(event) is None:
                return "compute"
        if any(is_collective_operation(event.name) for event in is_open):
            return "communication"
        return "host_launch" if on_training_thread or self.is_in_host_step(time) else "unattributed"

    # All instants

    def part_at(self, time: int) -> str:
        return self.cpu_part(time) if self.is_cpu_job else self.gpu_state(time) or self.idle_part(time)

    def elementary_intervals(self) -> list[Span]:
        """The window, cut at each event's start and end: within one, nothing changes."""
        begin, end = self.window
        times = {begin, end} | {e.start for e in self.events} | {e.end for e in self.events}
        inside = sorted(time for time in times if begin <= time <= end)
        return list(pairwise(inside))


def attribute(table: EventTable) -> Timeline:
    """Window, lead-in, steps and parts of one rank, communication not split."""
    timeline = timeline_of(Rank(table))
    num_left_out = num_start_steps(timeline)
    return timeline_of(Rank(table, num_left_out)) if num_left_out else timeline


def num_start_steps(timeline: Timeline) -> int:
    """Return the first steps that each take over twice as long as any later one, if they are a minority."""
    lengths = [step.end - step.start for step in timeline.steps]
    for number in range(len(lengths), 0, -1):
        after = lengths[number:]
        if len(after) < 2 or 2 * number >= len(lengths) or not 0 < 2 * max(after) < min(lengths[:number]):
            continue
        border = timeline.steps[number].start
        excess = dict.fromkeys(PART_NAMES, 0)
        for start, end, part in timeline.segments:
            name = "communication_unsplit" if part == "communication" else part
            before = max(0, min(end, border) - max(start, timeline.steps[0].start))
            excess[name] += before * len(after) - max(0, end - max(start, border)) * number
        most = max(PART_NAMES, key=lambda name: excess[name])  # the first of equal ones
        if timeline.steps[0].number in (0, 1) or most not in ("data_loading", "checkpoint"):
            return number
    return 0


def timeline_of(rank: Rank) -> Timeline:
    segments: list[tuple[int, int, str]] = []
    for start, end in rank.elementary_intervals():
        part = rank.part_at(start)
        if segments and segments[-1][2] == part:
            segments[-1] = (segments[-1][0], end, part)
        else:
            segments.append((start, end, part))
    return Timeline(window=rank.window, lead_in=rank.lead_in, steps=rank.steps, segments=segments)


# --- all ranks of one group


@dataclass(frozen=True)
class ExposedCommunication:
    transfer_ns: int
    wait_ns: int


def split_communication(tables: list[EventTable]) -> dict[int, ExposedCommunication]:
    """Rank -> its exposed transfer and wait. All ranks of one group, collectives matched by their order."""
    ranks = {table.meta.rank or 0: Rank(table) for table in tables}
    collectives = {number: [w for w in rank.work if is_communication_kernel(w)] for number, rank in ranks.items()}
    assert len({len(kernels) for kernels in collectives.values()}) == 1, "as many collectives on each rank"

    result = {}
    for number, rank in ranks.items():
        waits_until = {
            kernel: min(kernel.end, max(kernel.start, last_arrival(number, i, collectives)))
            for i, kernel in enumerate(collectives[number])
        }
        transfer_ns = wait_ns = 0
        times = {time for span in rank.elementary_intervals() for time in span} | set(waits_until.values())
        inside = sorted(time for time in times if rank.window[0] <= time <= rank.window[1])
        for start, end in pairwise(inside):
            if rank.gpu_state(start) != "communication":
                continue
            running = [kernel for kernel in collectives[number] if kernel.is_open_at(start)]
            assert running, "collectives by copy engine have no rule for their wait"
            if any(start >= waits_until[kernel] for kernel in running):
                transfer_ns += end - start
            else:
                wait_ns += end - start
        result[number] = ExposedCommunication(transfer_ns=transfer_ns, wait_ns=wait_ns)
    return result


def last_arrival(number: int, i: int, collectives: dict[int, list[Event]]) -> int:
    """When the last rank that `number` needs for its i-th collective has arrived."""
    args = collectives[number][i].collective
    needed = set(collectives)
    if args is not None and args.operation == "broadcast":
        needed = {args.src_rank} if args.src_rank is not None else needed  # its root needs none but itself
    if args is not None and args.operation == "reduce" and args.dst_rank not in (None, number):
        needed = {number}
    return max(collectives[rank][i].start for rank in needed)
