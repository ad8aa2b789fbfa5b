"""Synthetic jobs whose answer is known, and the changes to try on them."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.change.catalogue import all_changes
from flatout.predict.predict import predict, situation_of
from flatout.predict.situation import Situation
from flatout.records.change import Change, JobFacts
from flatout.records.job import JobAttribution
from flatout.records.prediction import NoPrediction, Prediction
from flatout.testing import TraceBuilder

FACTS = JobFacts(
    num_ranks=2,
    ranks_per_host=2,
    device="cuda",
    backend="nccl",
    transport="socket",
    cores_allowed=16.0,
    wrapper="ddp",
    passes_per_step=2,
    loader_workers=0,
    optimizer="AdamW",
    optimizer_is_fused=False,
    optimizer_is_foreach=False,
    zero_grad_sets_to_none=False,
    is_autocast=False,
    threads_per_rank=1,
)


def attributed(*traces: TraceBuilder) -> JobAttribution:
    return attribute_job([attribute_rank(trace.to_table(), with_track=True) for trace in traces])


def situation(*traces: TraceBuilder, facts: JobFacts = FACTS) -> Situation:
    job = attributed(*traces)
    result = situation_of(job, facts, 1e9)  # not shorter than traced: host times stay
    assert not isinstance(result, NoPrediction), result.reason
    return result


def change(name: str, facts: JobFacts = FACTS) -> Change:
    return next(each for each in all_changes(facts) if each.name == name)


def predicted(made: Situation, name: str) -> Prediction:
    result = predict(made, change(name, made.facts))
    assert isinstance(result, Prediction), result
    return result


def reason(made: Situation, name: str) -> str:
    result = predict(made, change(name, made.facts))
    assert isinstance(result, NoPrediction), result
    return result.reason


def loading_job(load_us: float, compute_us: float, num_steps: int = 3) -> TraceBuilder:
    """Loads, launches one kernel, and waits for it: nothing overlaps."""
    trace = TraceBuilder(rank=0, world_size=1)
    length = load_us + compute_us + 20
    for number in range(num_steps):
        at = number * length
        trace.step(number + 1, at, length)
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, load_us)
        trace.launch("gemm", launch_at=at + load_us, launch_duration=5, start=at + load_us + 10, duration=compute_us)
        trace.runtime("cudaDeviceSynchronize", at + load_us + 6, compute_us + 6)
    return trace


def reducing_job(passes: int, reduce_us: float, late_us: Sequence[float] = (0.0, 0.0)) -> list[TraceBuilder]:
    """Two ranks that reduce after each pass and wait for it; `late_us` is each rank's additional compute."""
    step_us = passes * (100 + max(late_us) + reduce_us + 20)
    traces = []
    for rank, late in enumerate(late_us):
        trace = TraceBuilder(rank=rank, world_size=2)
        for number in range(3):
            at = number * step_us
            trace.step(number + 1, at, step_us)
            for _ in range(passes):
                trace.annotation("DistributedDataParallel.forward", at, 5)
                trace.launch("gemm", launch_at=at + 5, launch_duration=5, start=at + 12, duration=88 + late)
                begin = at + 102 + late
                end = at + 102 + max(late_us) + reduce_us
                trace.collective(
                    "allreduce",
                    launch_at=at + 12,
                    launch_duration=5,
                    start=begin,
                    duration=end - begin,
                    num_elements=1 << 20,
                )
                trace.runtime("cudaDeviceSynchronize", at + 20, end - at - 18)
                at += 100 + max(late_us) + reduce_us + 20
        traces.append(trace)
    return traces
