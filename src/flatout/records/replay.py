"""The result of replaying a job history under scheduling policies: measures, series over time, differences."""

from __future__ import annotations

import msgspec


class SizeWait(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting of the jobs in one range of sizes: all time without GPUs from submission to the end."""

    gpus: str  # "1", "2-4", ...
    num_jobs: int
    mean_s: float
    p99_s: float


class TeamUse(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours that a team held, by use, and their price if it is known."""

    team: str
    num_jobs: int
    useful_gpu_hours: float
    idle_gpu_hours: float  # held without use
    lost_gpu_hours: float  # lost work and restarts
    jct_mean_s: float
    dollars: float | None = None


class ReplaySeries(msgspec.Struct, frozen=True, kw_only=True):
    """Means over equal spans of time, and samples of the GPUs in use on each node."""

    start_s: float  # in the time of the history
    span_s: float  # duration covered by one value
    allocated: tuple[float, ...]  # GPUs
    useful: tuple[float, ...]
    queued_jobs: tuple[float, ...]
    node_sample_s: float  # between two samples
    node_samples: tuple[tuple[float, ...], ...] = ()  # samples x nodes (at most 128): GPUs in use


class PolicyReplay(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on the history. Shares refer to all GPUs from the first submission to the last end."""

    policy: str
    summary: str
    is_oracle: bool = False  # the policy knows all durations: a bound, not a candidate
    num_jobs: int
    jct_mean_s: float  # from submission to the end
    jct_p50_s: float
    jct_p99_s: float
    wait_mean_s: float
    wait_by_size: tuple[SizeWait, ...]
    utilization: float  # GPUs that are allocated
    goodput: float  # GPUs doing work that is kept
    makespan_s: float
    longest_wait_s: float  # longest uninterrupted wait of any job
    num_starved: int  # jobs with an uninterrupted wait longer than `starved_after_s`
    fairness_p50: (
        float  # finish-time fairness rho: completion time / completion time with a fair share; lower is better
    )
    fairness_p99: float
    fragmentation: float  # GPUs that are free while a job waits
    preemptions: int  # jobs stopped or resized by the policy
    failures: int  # of nodes
    useful_gpu_hours: float
    idle_gpu_hours: float
    lost_gpu_hours: float  # work since the last checkpoint of a stopped job
    restart_gpu_hours: float
    energy_kwh: float | None  # None: the power of a type isn't known
    dollars: float | None
    teams: tuple[TeamUse, ...]
    jobs_per_s: float  # speed of the replay itself
    notes: tuple[str, ...]
    series: ReplaySeries


class MeasureDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of one measure between a policy and the first policy, over all seeds.

    Without an interval, `reason` says why.
    """

    measure: str  # "jct_mean", "jct_p99", "wait_mean", "goodput" or "lost"
    unit: str  # "ratio" (baseline / policy), or for policy minus baseline: "s", "share" or "GPU-hours"
    value: float | None
    low: float | None  # of the 95 % interval
    high: float | None
    # "submissions": jobs count in the window of their submission; "time": events count when they happened
    windows_of: str
    reason: str | None = None


class PolicyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A policy compared with the first policy: ratios of times, with 95 % intervals over seeds and windows."""

    policy: str
    baseline: str
    measure: str
    ratio: float  # baseline / policy: 2 is twice as good
    low: float | None  # None: too few windows for an interval
    high: float | None
    verdict: str  # better, worse, equivalent or undecided
    num_seeds: int
    num_windows: int
    # including this one; goodput is measured from the first to the last submission
    measures: tuple[MeasureDifference, ...] = ()


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The contract `flatout/replay`."""

    source: str
    num_gpus: int
    num_nodes: int
    span_s: float  # from the first to the last submission
    # GPU-seconds of the jobs divided by those of the cluster in `span_s`; None: all were submitted at once
    load: float | None
    checkpoint_s: float
    restart_s: float
    starved_after_s: float
    left_out: dict[str, int]
    assumptions: tuple[str, ...]
    policies: tuple[PolicyReplay, ...]
    differences: tuple[PolicyDifference, ...]
