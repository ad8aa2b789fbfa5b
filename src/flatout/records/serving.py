"""A server under load: the requests, what each one got, the limits, the trials of a tuning and its result.

Times are seconds. A request's times count from when it was due, not from when it was sent: what the client is late is
the server's delay.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.change import Safety
from flatout.records.trial import Covariates
from flatout.records.verdict import Verdict

RequestOutcome = Literal["completed", "failed", "cut", "timed_out"]
Metric = Literal["ttft", "itl", "tpot", "latency"]
METRICS: tuple[Metric, ...] = ("ttft", "itl", "tpot", "latency")
ServingObjective = Literal["goodput", "tokens/s", "energy"]
OBJECTIVES: tuple[ServingObjective, ...] = ("goodput", "tokens/s", "energy")
CauseName = Literal[
    "queueing",
    "kv-cache-full",
    "prefill-stalls-decode",
    "under-batched",
    "host-bound",
    "eager-mode",
    "no-prefix-reuse",
]
CAUSES: tuple[CauseName, ...] = (
    "kv-cache-full",
    "under-batched",
    "no-prefix-reuse",
    "prefill-stalls-decode",
    "host-bound",
    "eager-mode",
    "queueing",
)
ServerOutcome = Literal["completed", "not_started", "ended", "no_answer", "cancelled"]
GateOutcome = Literal["passed", "failed", "unknown"]
TuningEndedBy = Literal["within_limits", "no_cause", "no_knob", "all_tried", "budget", "trials", "interrupted"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a load. `due_s` counts from the start of the load."""

    index: int
    due_s: float
    prompt: str
    max_tokens: int


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request; times count from the start of the load."""

    index: int
    due_s: float
    sent_s: float
    end_s: float
    outcome: RequestOutcome
    first_s: float | None = None  # the first piece of the answer; None: there was none
    piece_s: tuple[float, ...] = ()  # when each piece came
    pieces: tuple[str, ...] = ()
    num_tokens: int | None = None  # of the answer, as the server counts them; None: it does not say
    num_prompt_tokens: int | None = None
    problem: str = ""

    @property
    def tokens(self) -> int:
        """Return the tokens of the answer; a piece counts as one where the server does not say."""
        return len(self.pieces) if self.num_tokens is None else self.num_tokens


class LatencyLimit(msgspec.Struct, frozen=True, kw_only=True):
    """An upper limit of one percentile of a metric: `p99 ttft<500ms`."""

    metric: Metric
    percentile: float  # 0 to 100
    most_s: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a time over requests, or for `itl` over gaps between tokens."""

    num: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What the server did at one rate of requests."""

    rate_per_s: float
    num_requests: int
    num_completed: int
    num_failed: int
    num_cut: int
    num_timed_out: int
    num_good: int  # within the limits
    num_tokens: int
    took_s: float  # from the first request's due time to the end of the last answer
    goodput_per_s: float
    tokens_per_s: float
    ttft: Spread | None = None
    itl: Spread | None = None
    tpot: Spread | None = None
    latency: Spread | None = None
    is_within: bool = False  # every limit holds at its percentile
    latest_sent_s: float = 0.0  # the most that the client sent a request after it was due
    energy_j: float | None = None
    tokens_of_request: tuple[int, ...] = ()  # -1: not completed


class ServingWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's metrics, its host and its answers show during one load point; None is unknown."""

    took_s: float
    queue_s: float | None = None  # per request
    prefill_s: float | None = None  # per request
    decode_s: float | None = None  # per request
    preemptions: float | None = None
    most_kv_share: float | None = None
    mean_running: float | None = None
    most_running: float | None = None
    mean_waiting: float | None = None
    prefix_hit_share: float | None = None  # of the prompt tokens
    shared_prompt_share: float | None = None  # of the prompt tokens, that an earlier prompt of the load began with too
    stall_s: float | None = None  # per request, of gaps between tokens in which another request's prefill ended
    latency_s: float | None = None  # mean
    busiest_thread_cores: float | None = None
    cores_busy: float | None = None  # of the server's processes
    cores_allowed: float | None = None
    gpu_busy_share: float | None = None
    is_from_metrics: bool = False  # else the client's own times


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why requests take long, with the share of their mean latency that it costs; None: the share is unknown."""

    name: CauseName
    title: str
    share: float | None
    evidence: dict[str, float | str] = {}


class ServerChange(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the server: options of its command line, or variables of its environment."""

    name: str  # `max-num-seqs=512`
    knob: str
    safety: Safety
    options: dict[str, str | None] = {}  # option -> value; None: an option without a value
    removed: tuple[str, ...] = ()  # options that are removed
    environment: dict[str, str] = {}
    model_config: tuple[str, ...] = ()  # lines of Triton's config.pbtxt
    answers: tuple[str, ...] = ()
    source: str = ""


class ServerTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the server with a set of changes, and what it did under the load."""

    index: int
    arm: str
    outcome: ServerOutcome
    problem: str = ""
    points: tuple[LoadPoint, ...] = ()
    windows: tuple[ServingWindow, ...] = ()
    answers: tuple[tuple[str, ...], ...] = ()  # to the held prompts, in pieces
    answer_tokens: tuple[int, ...] = ()  # of each answer, as the server counts them
    start_s: float | None = None  # until the server was healthy
    warm_up_s: float | None = None
    is_settled: bool = False  # the warm-up ended because latencies were steady
    took_s: float = 0.0
    covariates: Covariates = Covariates()

    @property
    def is_complete(self) -> bool:
        return self.outcome == "completed" and bool(self.points)


class AnswerGate(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a changed server answers as the untouched one, and answers everything."""

    outcome: GateOutcome
    reason: str
    agreement: float | None = None  # mean share of an answer's tokens before the first difference
    noise_agreement: float | None = None  # the lowest among the untouched starts


class TriedArm(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes that was tried, and what was found."""

    name: str
    changes: tuple[ServerChange, ...]
    cause: CauseName | None  # that suggested its last change
    gate: AnswerGate
    verdict: Verdict | None = None  # None: it was not compared in interleaved trials
    screened: float | None = None  # ratio of one trial to the baselines: an estimate, never a claim
    num_trials: int = 0
    problem: str = ""


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rate of the load curve of an arm, over its trials."""

    rate_per_s: float
    num_trials: int
    goodput_per_s: float  # mean
    goodput_interval: tuple[float, float] | None  # of the mean, 95 %; None with one trial
    tokens_per_s: float
    ttft_p99_s: float | None  # median over trials
    itl_p99_s: float | None
    within_share: float  # of the trials, in which every limit holds


class LoadCurve(msgspec.Struct, frozen=True, kw_only=True):
    arm: str
    points: tuple[CurvePoint, ...]


class UnofferedKnob(msgspec.Struct, frozen=True, kw_only=True):
    knob: str
    reason: str


class ServingTuning(msgspec.Struct, frozen=True, kw_only=True):
    """The result of tuning a server."""

    engine: str
    server_command: tuple[str, ...]  # untouched, secrets masked
    objective: ServingObjective
    slo: tuple[LatencyLimit, ...]
    load: str  # what the load is, in words
    seed: int
    rates_per_s: tuple[float, ...]
    num_requests: int  # per rate and trial
    num_trials: int
    num_held_prompts: int
    noise_agreement: float | None
    causes: tuple[Cause, ...]  # of the untouched server
    causes_left: tuple[Cause, ...]  # of the server with the adopted changes
    adopted: tuple[ServerChange, ...]
    verdict: Verdict | None  # of the adopted changes together, against the untouched server
    tried: tuple[TriedArm, ...]
    curves: tuple[LoadCurve, ...]  # of the untouched server, and of the tuned one
    unoffered: tuple[UnofferedKnob, ...]
    ended_by: TuningEndedBy
    took_s: float
    order: str  # arms of all trials in running order
    launch: tuple[str, ...]  # the tuned command, secrets masked
    environment: dict[str, str]
    notes: tuple[str, ...] = ()
    trials: tuple[ServerTrial, ...] = ()
