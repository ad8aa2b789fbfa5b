"""Hypothesis strategies: small random traces of one rank and of several, structurally plausible.

Plausible: events of a host thread nest; one stream runs its work in the order of the launches (kernels may overlap),
and no two works of a stream start at once. Times are whole microseconds of a small range, so that boundaries coincide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from flatout.testing import TraceBuilder
from flatout.testing.trace_builder import AUTOGRAD_THREAD, MAIN_THREAD

WORKER_THREAD = 3  # of the host, and launches nothing
MIB = 1024 * 1024
SYNC_CALLS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipDeviceSynchronize")
ALLOCATOR_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "cuMemCreate", "cuMemMap", "cudaMallocAsync")
OTHER_CALLS = ("cudaMallocHost", "cudaFreeHost", "cudaHostAlloc", "cudaEventQuery", "cudaStreamWaitEvent")
CHECKPOINTS = ("torch.save", "flatout:checkpoint", "dcp.save")
PYTHON_LOADER = "torch/utils/data/dataloader.py(701): __next__"
PYTHON_CHECKPOINT = "torch/serialization.py(943): save"

gaps = st.integers(0, 9)
lengths = st.integers(1, 12)
rarely_none = st.one_of(lengths, lengths, lengths, st.integers(0, 1))  # lengths of GPU work, sometimes 0


class Script:
    """Writes a trace in the order of the host's time: where the host threads and the streams have got to."""

    def __init__(self, draw: st.DrawFn, trace: TraceBuilder, threads: tuple[int, ...]) -> None:
        self.draw = draw
        self.trace = trace
        self.threads = threads
        self.now = dict.fromkeys(threads, 0)
        self.stream_end: dict[int, int] = {}  # when a stream's work ends, so far
        self.stream_start: dict[int, int] = {}  # when its last work started

    def spend(self, thread: int, duration: int) -> int:
        """Let the thread pass `duration`; when it began."""
        start = self.now[thread]
        self.now[thread] += duration
        return start

    def place(self, stream: int, earliest: int) -> tuple[int, int]:
        """Start and duration of the next work of a stream: behind the last one, or now and then over its end."""
        overlaps = self.draw(st.integers(0, 9)) == 0
        free = self.stream_start.get(stream, -99) + 1 if overlaps else self.stream_end.get(stream, -99)
        start = max(earliest, free, self.stream_start.get(stream, -99) + 1)
        duration = self.draw(rarely_none)
        self.stream_start[stream] = start
        self.stream_end[stream] = max(self.stream_end.get(stream, -99), start + duration)
        return start, duration

    def launch_delay(self) -> int:
        return self.draw(st.one_of(st.integers(0, 3), st.integers(0, 30)))

    # --- what one thread can do next

    def rest(self, thread: int) -> None:
        self.spend(thread, self.draw(gaps))

    def operate(self, thread: int) -> None:
        duration = self.draw(lengths)
        self.trace.op("aten::view", self.spend(thread, duration), duration, thread=thread)

    def launch(self, thread: int) -> None:
        duration = self.draw(lengths)
        begin = self.spend(thread, duration)
        stream = self.draw(st.sampled_from((7, 7, 20)))
        start, length = self.place(stream, begin + self.launch_delay())
        op = self.draw(st.sampled_from((None, "aten::mm")))
        self.trace.launch("gemm", begin, duration, start, length, stream=stream, thread=thread, op=op)

    def lose(self, thread: int) -> None:
        """A launch of which the profiler lost the kernel."""
        duration = self.draw(lengths)
        self.trace.runtime("cudaLaunchKernel", self.spend(thread, duration), duration, thread=thread)

    def launch_graph(self, thread: int) -> None:
        duration = self.draw(lengths)
        begin = self.spend(thread, duration)
        first = self.place(7, begin + self.launch_delay())
        second = self.place(7, first[0] + self.draw(lengths))
        self.trace.graph_launch(begin, duration, [("gemm", *first), ("relu", *second)], thread=thread)

    def unlinked(self, thread: int) -> None:
        stream = self.draw(st.sampled_from((7, 7, 20, 21)))
        start, duration = self.place(stream, self.now[thread] + self.launch_delay())
        name = self.draw(st.sampled_from(("gemm", "multimem_all_reduce_kernel")))
        self.trace.kernel(name, start, duration, stream=stream)

    def copy(self, thread: int) -> None:
        direction, is_pageable = self.draw(st.sampled_from(("HtoD", "DtoH", "DtoD"))), self.draw(st.booleans())
        self.copy_of(thread, direction, is_pageable, self.draw(st.sampled_from((4096, 65 * MIB))))

    def copy_of(self, thread: int, direction: str, is_pageable: bool, num_bytes: int) -> None:
        begin = self.now[thread]
        start, length = self.place(7, begin + self.launch_delay())
        call = self.draw(st.sampled_from(("cudaMemcpyAsync", "cudaMemcpyAsync", "cudaMemcpy")))
        waits = call == "cudaMemcpy" or (direction == "DtoH" and is_pageable)
        duration = max(1, start + length - begin + self.draw(st.integers(0, 2))) if waits else self.draw(lengths)
        self.spend(thread, duration)
        self.trace.copy(
            direction,
            num_bytes=num_bytes,
            launch_at=begin,
            launch_duration=duration,
            start=start,
            duration=length,
            pageable=is_pageable,
            call=call,
            thread=thread,
        )

    def save(self, thread: int) -> None:
        """A burst of copies to pageable memory, each in its operator: a checkpoint where they are large enough."""
        num_bytes = self.draw(st.sampled_from((20 * MIB, 32 * MIB, 40 * MIB)))
        for _ in range(self.draw(st.integers(1, 3))):
            begin = self.now[thread]
            self.spend(thread, 1)
            self.copy_of(thread, "DtoH", True, num_bytes)
            self.spend(thread, 1)
            self.trace.op("aten::copy_", begin, self.now[thread] - begin, thread=thread)
            self.rest(thread)
        self.rest(thread)

    def set_memory(self, thread: int) -> None:
        duration = self.draw(lengths)
        begin = self.spend(thread, duration)
        start, length = self.place(7, begin + self.launch_delay())
        self.trace.memset(
            num_bytes=64, launch_at=begin, launch_duration=duration, start=start, duration=length, thread=thread
        )

    def collective(self, thread: int) -> None:
        duration = self.draw(lengths)
        begin = self.spend(thread, duration)
        start, length = self.place(19, begin + self.launch_delay())
        operation = self.draw(st.sampled_from(("allreduce", "broadcast", "_allgather_base")))
        self.trace.collective(operation, begin, start, length, launch_duration=duration, thread=thread)

    def copy_of_collective(self, thread: int) -> None:
        begin = self.now[thread]
        self.spend(thread, 1)
        self.copy_of(thread, "DtoD", False, 4096)
        self.spend(thread, 1)
        self.trace.annotation("nccl:all_gather", begin, self.now[thread] - begin, thread=thread)

    def synchronise(self, thread: int) -> None:
        """Either until the GPU has nothing left, or for any time."""
        drained = max([self.now[thread], *self.stream_end.values()]) - self.now[thread] + self.draw(st.integers(0, 3))
        duration = max(1, self.draw(st.one_of(st.just(drained), lengths)))
        name = self.draw(st.sampled_from(SYNC_CALLS))
        self.trace.sync(name, self.spend(thread, duration), duration, thread=thread)

    def call(self, thread: int) -> None:
        duration = self.draw(lengths)
        name = self.draw(st.sampled_from(ALLOCATOR_CALLS * 2 + OTHER_CALLS))
        self.trace.runtime(name, self.spend(thread, duration), duration, thread=thread)

    def load_data(self, thread: int) -> None:
        duration = self.draw(lengths)
        begin = self.spend(thread, duration)
        if self.draw(st.booleans()):
            self.trace.data_loading(begin, duration, thread=thread)
        else:
            self.trace.python(PYTHON_LOADER, begin, duration, thread=thread)

    def checkpoint(self, thread: int) -> None:
        duration = self.draw(lengths)
        begin = self.spend(thread, duration)
        name = self.draw(st.sampled_from((*CHECKPOINTS, PYTHON_CHECKPOINT)))
        if name == PYTHON_CHECKPOINT:
            self.trace.python(name, begin, duration, thread=thread)
        else:
            self.trace.annotation(name, begin, duration, thread=thread)

    def fill_buffer(self, thread: int) -> None:
        self.trace.overhead(self.now[thread] + self.draw(gaps), self.draw(lengths))

    def mark_device(self, thread: int) -> None:
        self.trace.gpu_annotation("ProfilerStep#1", self.now[thread], self.draw(lengths))
        self.trace.gpu_sync(self.now[thread] + self.draw(gaps), self.draw(lengths))

    def act(self, actions: Sequence[Callable[[int], None]], thread: int) -> None:
        """One action, now and then inside an operator or an annotation."""
        wrapping = self.draw(st.sampled_from((None, None, None, "op", "annotation")))
        begin = self.now[thread]
        if wrapping is not None:
            self.spend(thread, self.draw(st.integers(0, 2)))
        self.draw(st.sampled_from(actions))(thread)
        if wrapping is not None:
            self.spend(thread, self.draw(st.integers(0, 2)))
            duration = self.now[thread] - begin
            if wrapping == "op":
                self.trace.op("aten::linear", begin, duration, thread=thread)
            else:
                self.trace.annotation("Optimizer.step#AdamW.step", begin, duration, thread=thread)

    def gpu_actions(self) -> Sequence[Callable[[int], None]]:
        return [
            self.rest, self.operate, self.launch, self.launch, self.launch, self.launch_graph, self.unlinked, self.copy,
            self.save, self.set_memory, self.collective, self.copy_of_collective, self.synchronise, self.synchronise,
            self.call, self.call, self.load_data, self.load_data, self.checkpoint,
            self.lose, self.fill_buffer, self.mark_device,
        ]  # fmt: skip


@st.composite
def gpu_traces(draw: st.DrawFn) -> TraceBuilder:
    """One rank with GPU work: with a lead-in or none, up to three steps, two launching threads and a worker."""
    trace = TraceBuilder(rank=0, world_size=4)
    script = Script(draw, trace, (MAIN_THREAD, AUTOGRAD_THREAD, WORKER_THREAD))
    for _ in range(
        draw(st.integers(0, 2))
    ):  # begun before the recording: no launch, may have started before the window
        stream = draw(st.sampled_from((7, 19)))
        start, duration = script.place(stream, draw(st.integers(-10, 5)))
        trace.kernel(draw(st.sampled_from(("gemm", "ncclDevKernel_AllReduce"))), start, duration, stream=stream)
    run_steps(script, script.gpu_actions())
    others = script.gpu_actions()
    for _ in range(draw(st.integers(0, 3))):
        script.rest(AUTOGRAD_THREAD)
        script.act(others, AUTOGRAD_THREAD)
    idlers: list[Callable[[int], None]] = [script.operate, script.load_data, script.checkpoint, script.call]
    for _ in range(draw(st.integers(0, 2))):
        script.spend(WORKER_THREAD, draw(st.integers(0, 40)))
        draw(st.sampled_from(idlers))(WORKER_THREAD)
    return trace


def run_steps(script: Script, actions: Sequence[Callable[[int], None]]) -> None:
    """The main thread: some actions before the first step, in each, between them and after the last."""
    draw, trace = script.draw, script.trace
    num_steps = draw(st.integers(0, 3))
    first_number = draw(st.integers(0, 10))
    as_operators = draw(st.integers(0, 9)) == 0  # as in traces of 2021
    for _ in range(draw(st.integers(0, 2 if num_steps else 8))):
        script.act(actions, MAIN_THREAD)
    for number in range(first_number, first_number + num_steps):
        begin = script.now[MAIN_THREAD]
        for _ in range(draw(st.integers(1, 6))):
            script.act(actions, MAIN_THREAD)
        script.spend(MAIN_THREAD, draw(st.integers(1, 5)))
        duration = script.now[MAIN_THREAD] - begin
        if as_operators:
            trace.op(f"ProfilerStep#{number}", begin, duration)
        else:
            trace.step(number, begin, duration)
        script.spend(MAIN_THREAD, draw(st.sampled_from((0, 0, 3))))
    for _ in range(draw(st.integers(0, 2))):
        script.act(actions, MAIN_THREAD)


@st.composite
def cpu_traces(draw: st.DrawFn) -> TraceBuilder:
    """One rank without GPU work: operators, autograd's thread, gloo's thread."""
    trace = TraceBuilder(rank=0, world_size=4)
    script = Script(draw, trace, (MAIN_THREAD, AUTOGRAD_THREAD, WORKER_THREAD))

    def communicate(thread: int) -> None:
        duration = draw(lengths)
        name = draw(st.sampled_from(("gloo:all_reduce", "c10d::allreduce_", "record_param_comms")))
        begin = script.spend(thread, duration)
        if name == "gloo:all_reduce":
            trace.annotation(name, begin, duration, thread=thread)
        else:
            trace.op(name, begin, duration, thread=thread)

    actions = [script.rest, script.operate, script.operate, script.load_data, script.checkpoint, communicate]
    run_steps(script, actions)
    for _ in range(draw(st.integers(0, 4))):
        script.spend(AUTOGRAD_THREAD, draw(st.integers(0, 20)))
        begin = script.now[AUTOGRAD_THREAD]
        draw(st.sampled_from(actions))(AUTOGRAD_THREAD)
        name = draw(st.sampled_from(("autograd::engine::evaluate_function: AddBackward0", "aten::add")))
        trace.op(name, begin, script.now[AUTOGRAD_THREAD] - begin, thread=AUTOGRAD_THREAD)
    for _ in range(draw(st.integers(0, 3))):
        script.spend(WORKER_THREAD, draw(st.integers(0, 20)))
        draw(st.sampled_from([communicate, script.load_data, script.checkpoint]))(WORKER_THREAD)
    return trace


@st.composite
def arbitrary_traces(draw: st.DrawFn) -> TraceBuilder:
    """Events anywhere: no nesting, calls that share a correlation, steps twice and on two threads, broken order."""
    trace = TraceBuilder(rank=0, world_size=4)
    script = Script(draw, trace, (MAIN_THREAD, AUTOGRAD_THREAD, WORKER_THREAD))
    times, threads = st.integers(0, 40), st.sampled_from(script.threads)
    numbers, correlations = st.integers(1, 3), st.integers(901, 904)
    names = st.sampled_from(("nccl:all_reduce", "aten::add", "ProfilerStep#", *CHECKPOINTS))
    taken = set()  # (start, stream): no two at once
    steps = draw(st.sets(numbers))
    for number in steps:
        trace.step(number, 12 * number + draw(st.integers(0, 5)), draw(st.integers(0, 7)))
    if len(steps) > 1 and draw(st.booleans()):  # fewer than on the main thread
        trace.step(draw(numbers), draw(times), draw(lengths), thread=draw(threads))
    for _ in range(draw(st.integers(1, 14))):
        start, duration, thread = draw(times), draw(lengths), draw(threads)
        what = draw(st.integers(0, 9))
        stream = draw(st.sampled_from((7, 20)))
        if what <= 1:
            name = draw(st.sampled_from((*SYNC_CALLS, *ALLOCATOR_CALLS, *OTHER_CALLS, "cudaLaunchKernel")))
            trace.runtime(name, start, duration, thread=thread, correlation=draw(correlations))
        elif what <= 3 and (start, stream) not in taken:
            taken.add((start, stream))
            kernel, length = draw(st.sampled_from(("gemm", "gemm", "nvshmem_put"))), draw(rarely_none)
            trace.kernel(kernel, start, length, stream=stream, correlation=draw(st.none() | correlations))
        elif what == 4 and (start, stream) not in taken:
            taken.add((start, stream))
            trace.copy(
                draw(st.sampled_from(("HtoD", "DtoH", "DtoH"))),
                num_bytes=4096,  # a checkpoint by its signature needs nested events: `gpu_traces` has them
                launch_at=draw(times),
                launch_duration=duration,
                start=start,
                duration=draw(rarely_none),
                pageable=draw(st.booleans()),
                call=draw(st.sampled_from(("cudaMemcpyAsync", "cudaMemcpy"))),
                stream=stream,
                thread=thread,
            )
        elif what == 5:
            trace.annotation(draw(names), start, duration, thread=thread)
        elif what == 6:
            trace.op(draw(names | st.just("c10d::allreduce_")), start, duration, thread=thread)
        elif what == 7:
            trace.overhead(start, duration)
        elif what == 8 and (start, -1) not in taken:
            taken.add((start, -1))
            trace.step(draw(numbers), 60 + start, 0)
        else:
            trace.python(draw(st.sampled_from((PYTHON_LOADER, PYTHON_CHECKPOINT))), start, duration, thread=thread)
    return trace


traces = st.one_of(gpu_traces(), gpu_traces(), gpu_traces(), cpu_traces(), arbitrary_traces())


@st.composite
def group_traces(draw: st.DrawFn, *, first_step: int = 1) -> list[TraceBuilder]:
    """The ranks of one group, each with the same collectives at its own times, over kernels of its own."""
    world_size = draw(st.integers(2, 4))
    operations = draw(
        st.lists(st.sampled_from(("allreduce", "broadcast", "reduce", "barrier")), min_size=1, max_size=5)
    )
    roots = [draw(st.integers(0, world_size - 1)) for _ in operations]
    ranks = []
    for rank in range(world_size):
        trace = TraceBuilder(rank=rank, world_size=world_size)
        script = Script(draw, trace, (MAIN_THREAD,))
        for operation, root in zip(operations, roots, strict=True):
            for _ in range(draw(st.integers(0, 2))):
                draw(st.sampled_from([script.rest, script.operate, script.launch, script.set_memory]))(MAIN_THREAD)
            duration = draw(lengths)
            begin = script.spend(MAIN_THREAD, duration)
            stream = draw(st.sampled_from((19, 19, 27)))
            # Never before an earlier collective of another stream: the order of the starts is the matching.
            after = max([begin, *(start + 1 for key, start in script.stream_start.items() if key in (19, 27))])
            start, length = script.place(stream, after + script.launch_delay())
            trace.collective(
                operation,
                begin,
                start,
                length,
                launch_duration=duration,
                stream=stream,
                root=root if operation in ("broadcast", "reduce") else None,
            )
        script.rest(MAIN_THREAD)
        trace.step(first_step, 0, max(1, script.now[MAIN_THREAD]))
        ranks.append(trace)
    return ranks
