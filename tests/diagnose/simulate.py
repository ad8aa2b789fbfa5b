"""Jobs whose ranks really wait for each other, for property tests: a small simulation writes their traces.

A rank has a host, a compute stream and a communication stream. The host runs ahead; a collective starts on a rank when
its host has launched it and the compute launched before it is done, and ends on all ranks at once, some time after the
last of them has started. All times are in us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from flatout.testing import TraceBuilder

LAUNCH = 2.0  # of one kernel, by the host
LATENCY = 3.0  # from its launch to its start


class Simulation:
    """The ranks of one job and how far each has got. `numbers[i]` is the rank that the i-th of them is."""

    def __init__(self, world_size: int, *, numbers: Sequence[int] | None = None, base_ns: Sequence[int] = ()) -> None:
        self.numbers = list(numbers or range(world_size))
        bases = list(base_ns) or [0] * world_size
        self.traces = [TraceBuilder(r, world_size, base_ns=b) for r, b in zip(self.numbers, bases, strict=True)]
        self.host = [0.0] * world_size
        self.compute_free = [0.0] * world_size
        self.communication_free = [0.0] * world_size
        self._step_begin = [0.0] * world_size

    def begin_step(self, i: int) -> None:
        self._step_begin[i] = self.host[i]

    def end_step(self, i: int, number: int) -> None:
        self.traces[i].step(number, self._step_begin[i], self.host[i] - self._step_begin[i])

    def compute(self, i: int, duration: float, name: str = "gemm_tensorop") -> None:
        begin = self._launch(i)
        start = max(self.host[i] + LATENCY, self.compute_free[i])
        self.traces[i].launch(name, begin, LAUNCH, start, duration)
        self.compute_free[i] = start + duration

    def load_data(self, i: int, duration: float) -> None:
        self.traces[i].data_loading(self.host[i], duration)
        self.host[i] += duration

    def python(self, i: int, duration: float) -> None:
        self.host[i] += duration

    def allocate(self, i: int, duration: float) -> None:
        self.traces[i].malloc(self.host[i], duration)
        self.host[i] += duration

    def synchronise(self, i: int) -> None:
        until = max(self.host[i] + LAUNCH, self.compute_free[i], self.communication_free[i])
        self.traces[i].sync("cudaStreamSynchronize", self.host[i], until - self.host[i])
        self.host[i] = until

    def collective(self, operation: str, members: Sequence[int], transfer: float, *, group: str = "0") -> None:
        """A collective of the members, by place."""
        begins = [self._launch(i) for i in members]
        ready = [max(self.host[i] + LATENCY, self.compute_free[i], self.communication_free[i]) for i in members]
        starts = [at + 1 + 0.013 * i for i, at in zip(members, ready, strict=True)]  # no two at once
        end = max(starts) + transfer
        for i, begin, start in zip(members, begins, starts, strict=True):
            self.traces[i].collective(
                operation,
                begin,
                start,
                end - start,
                launch_duration=LAUNCH,
                group=group,
                group_ranks=tuple(sorted(self.numbers[k] for k in members)),
            )
            self.communication_free[i] = end

    def await_collectives(self, i: int) -> None:
        """The compute launched from now on needs the results of the collectives launched so far."""
        self.compute_free[i] = max(self.compute_free[i], self.communication_free[i])

    def _launch(self, i: int) -> float:
        begin = self.host[i]
        self.host[i] += LAUNCH
        return begin


Program = list[list[tuple[Any, ...]]]  # steps of (method, arguments)


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, Program]:
    """The number of ranks, and for each step what they do: their own work between collectives of all or of some.

    Times of different ranks never agree by chance: each has its own fraction of a microsecond.
    """
    world_size = draw(st.integers(2, 4))
    groups = [tuple(range(world_size))]
    if world_size == 4:
        groups += draw(st.sampled_from(([], [(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 1, 2)])))
    elif world_size == 3:
        groups += draw(st.sampled_from(([], [(0, 1), (1, 2)])))
    durations = st.sampled_from((20, 50, 90, 200, 350))
    actions = st.sampled_from(("compute", "compute", "load_data", "python", "allocate", "synchronise", None))
    steps: Program = []
    for _ in range(draw(st.integers(1, 3))):
        step: list[tuple[Any, ...]] = []
        for _ in range(draw(st.integers(1, 3))):
            for i in range(world_size):
                for _ in range(draw(st.integers(0, 2))):
                    action = draw(actions)
                    if action == "synchronise":
                        step.append((action, i))
                    elif action is not None:
                        step.append((action, i, draw(durations) + 0.101 * (i + 1)))
            step.append(("compute", None, 30))
            group = draw(st.sampled_from(groups))
            step.append(("collective", group, draw(st.sampled_from((15, 60)))))
            if draw(st.booleans()):
                step.append(("await_collectives", None))
        step.append(("collective", groups[0], 40))
        step.append(("await_collectives", None))
        steps.append(step)
    return world_size, steps


def simulated(
    program: tuple[int, Program], *, numbers: Sequence[int] | None = None, base_ns: Sequence[int] = ()
) -> list[TraceBuilder]:
    """The traces of a program. `numbers` renumbers the ranks, `base_ns` moves the clock of each."""
    world_size, steps = program
    simulation = Simulation(world_size, numbers=numbers, base_ns=base_ns)
    for number, step in enumerate(steps, 1):
        for i in range(world_size):
            simulation.begin_step(i)
        for method, who, *arguments in step:
            if method == "collective":
                name = "0" if len(who) == world_size else "group"
                simulation.collective("allreduce", who, *arguments, group=name)
            else:
                for i in range(world_size) if who is None else (who,):
                    extra = [arguments[0] + 0.007 * (i + 1)] if arguments else []
                    getattr(simulation, method)(i, *extra)
        for i in range(world_size):
            simulation.python(i, 5)
            simulation.end_step(i, number)
    return simulation.traces
