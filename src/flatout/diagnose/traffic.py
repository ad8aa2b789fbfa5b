"""Sort a job's communication by what it carries: gradients, shards of weights, activations, tokens of experts.

In: the attributed ranks. Out: one `Traffic` per kind, the one with the most exposed time first. The kind follows from
the wrapper that the trace names (DistributedDataParallel, FSDP, DeepSpeed), the name of the process group, the
operation, and when in the step it first occurs. The model itself is not read: so a hand-written scheme can be mistaken
for a scheme that it resembles.
"""

from __future__ import annotations

import re
from collections import defaultdict
from enum import StrEnum

import msgspec
import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.records.diagnosis import Part
from flatout.records.timeline import CommunicationCall, RankTimeline

SMALL_MESSAGE_BYTES = 2**20  # smaller messages show the latency of a link, not its bandwidth
# Gradients exist after the forward pass, which is a third of the compute. Sums of activations occur in each layer.
MAX_FORWARD_SHARE = 0.2  # of the compute of one pass
MIN_ACTIVATION_SUMS = 4  # per pass: two per layer
MIN_SPREAD_SHARE = 0.5  # of the step's compute between its first and its last gather: gathered layer by layer

# Names of process groups, as Megatron and DeviceMesh give them. Words are separated by `_`, `-` or `.`.
_WORD = r"(?:^|[^a-z])(?:{})(?:$|[^a-z])"
_DATA_GROUP = re.compile(_WORD.format("dp|ddp|data|fsdp|hsdp|shard|replicate|dp_shard|dp_replicate"), re.IGNORECASE)
_TENSOR_GROUP = re.compile(_WORD.format("tp|tensor|sp|sequence|cp|context"), re.IGNORECASE)
_EXPERT_GROUP = re.compile(_WORD.format("ep|etp|expert|experts|moe"), re.IGNORECASE)


class Wrapper(StrEnum):
    """The wrapper that distributes the model, according to the operator names in a trace."""

    DDP = "ddp"
    FSDP = "fsdp"
    DEEPSPEED = "deepspeed"


class TrafficKind(StrEnum):
    GRADIENTS = "gradients"  # sums of complete gradients
    GRADIENT_SHARDS = "gradient shards"
    WEIGHT_SHARDS = "weight shards"  # gathered layer by layer
    UPDATED_WEIGHTS = "updated weights"  # gathered at once after the optimizer's step
    ACTIVATIONS = "activations"  # of tensor and sequence parallelism
    EXPERT_TOKENS = "expert tokens"
    PIPELINE = "pipeline"
    BROADCAST = "broadcast"
    OTHER = "other"


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The communication of one kind. Times and numbers are means over the ranks, per step."""

    kind: TrafficKind
    exposed_s: float
    num_messages: float
    message_bytes: float | None  # median; None: no message has a recorded size

    @property
    def is_small(self) -> bool:
        return self.message_bytes is not None and self.message_bytes < SMALL_MESSAGE_BYTES


def wrapper_of(context: DiagnosisContext) -> Wrapper | None:
    """Return the wrapper that distributes the model; None if the traces name none, or only torch's collectives."""
    names = {name for timeline in context.ranks if timeline.facts for name in timeline.facts.wrappers}
    for wrapper in (Wrapper.DEEPSPEED, Wrapper.FSDP, Wrapper.DDP):
        if wrapper in names:
            return wrapper
    return None


def traffic_of(context: DiagnosisContext) -> tuple[Traffic, ...]:
    """Return the job's communication by kind, the most exposed first."""
    wrapper = wrapper_of(context)
    exposed_s: dict[TrafficKind, float] = defaultdict(float)
    num_messages: dict[TrafficKind, int] = defaultdict(int)
    sizes: dict[TrafficKind, list[int]] = defaultdict(list)
    for timeline in context.ranks:
        kinds = CallKinds(context, timeline, wrapper)
        exposed = context.job.exposed_transfer_ns[timeline.rank] + context.job.exposed_unsplit_ns[timeline.rank]
        kernels_seen: set[int] = set()
        for call in _calls_in_steps(timeline):
            kind = kinds.of(call)
            num_messages[kind] += 1
            if call.num_bytes:
                sizes[kind].append(call.num_bytes)
            if call.kernel not in kernels_seen:  # a kernel can have several calls
                kernels_seen.add(call.kernel)
                exposed_s[kind] += float(exposed[call.kernel]) / 1e9
    num_ranks = max(len(context.ranks), 1)
    traffic = [
        Traffic(
            kind=kind,
            exposed_s=context.per_step(exposed_s[kind] / num_ranks),
            num_messages=context.per_step(num_messages[kind] / num_ranks),
            message_bytes=float(np.median(sizes[kind])) if sizes[kind] else None,
        )
        for kind in num_messages
    ]
    return tuple(sorted(traffic, key=lambda each: -each.exposed_s))


def calls_of_kind(context: DiagnosisContext, timeline: RankTimeline, kind: TrafficKind) -> list[CommunicationCall]:
    """Return the rank's calls in steps that carry this kind of data."""
    kinds = CallKinds(context, timeline, wrapper_of(context))
    return [call for call in _calls_in_steps(timeline) if kinds.of(call) is kind]


def _calls_in_steps(timeline: RankTimeline) -> list[CommunicationCall]:
    start_ns = timeline.communication.start_ns
    return [call for call in timeline.communication.calls if start_ns[call.kernel] >= timeline.first_step_ns]


def _kind_by_name(description: str | None) -> TrafficKind | None:
    """Return the kind of data in a group's sums and gathers, by its name; None for data parallelism or an unknown name.

    A group of data-parallel experts is named after both, and carries gradients.
    """
    if description is None or _DATA_GROUP.search(description):
        return None
    if _EXPERT_GROUP.search(description):
        return TrafficKind.EXPERT_TOKENS
    return TrafficKind.ACTIVATIONS if _TENSOR_GROUP.search(description) else None


class CallKinds:
    """The kind of each call of one rank. Calls of one operation in one group are of one kind."""

    def __init__(self, context: DiagnosisContext, timeline: RankTimeline, wrapper: Wrapper | None) -> None:
        self._context = context
        self._timeline = timeline
        self._wrapper = wrapper
        self._calls: dict[tuple[str, str | None], list[CommunicationCall]] = defaultdict(list)
        for call in _calls_in_steps(timeline):
            self._calls[call.operation, call.group].append(call)
        self._operations = {operation for operation, _ in self._calls}
        self._kinds = {key: self._kind(*key) for key in self._calls}

    def of(self, call: CommunicationCall) -> TrafficKind:
        """Return the kind of a call in steps, or of a call before them if there are such calls in steps."""
        return self._kinds.get((call.operation, call.group), TrafficKind.OTHER)

    def _kind(self, operation: str, group: str | None) -> TrafficKind:
        if operation in ("all_reduce", "reduce", "reduce_scatter", "all_gather"):
            named = _kind_by_name(self._calls[operation, group][0].group_description)
            if named is not None:
                return named
        match operation:
            case "all_to_all":
                return TrafficKind.EXPERT_TOKENS
            case "send" | "recv":
                return TrafficKind.PIPELINE
            case "broadcast":
                return TrafficKind.BROADCAST
            case "all_reduce" | "reduce":
                return TrafficKind.ACTIVATIONS if self._sums_activations(operation, group) else TrafficKind.GRADIENTS
            case "reduce_scatter":
                is_of_layers = self._wrapper is None and self._sums_activations(operation, group)
                return TrafficKind.ACTIVATIONS if is_of_layers else TrafficKind.GRADIENT_SHARDS
            case "all_gather":
                return self._kind_of_gathers(group)
        return TrafficKind.OTHER

    def _kind_of_gathers(self, group: str | None) -> TrafficKind:
        calls = self._calls["all_gather", group]
        if self._wrapper is Wrapper.FSDP:
            return TrafficKind.WEIGHT_SHARDS
        if self._wrapper is Wrapper.DEEPSPEED:
            is_spread = self._compute_share_between(calls) >= MIN_SPREAD_SHARE
            return TrafficKind.WEIGHT_SHARDS if is_spread else TrafficKind.UPDATED_WEIGHTS
        if "reduce_scatter" not in self._operations:
            return TrafficKind.OTHER
        if ("reduce_scatter", group) in self._calls and self._sums_activations("reduce_scatter", group):
            return TrafficKind.ACTIVATIONS
        return TrafficKind.WEIGHT_SHARDS

    def _sums_activations(self, operation: str, group: str | None) -> bool:
        """Whether the sums already occur in the forward pass, when there are no gradients yet, and in many layers."""
        num_steps = max(len(self._timeline.steps), 1)
        facts = self._timeline.facts
        passes = max(round(facts.num_passes / num_steps), 1) if facts is not None else 1
        calls = self._calls[operation, group]
        if _DATA_GROUP.search(calls[0].group_description or ""):
            return False
        if len(calls) < MIN_ACTIVATION_SUMS * passes * num_steps:
            return False
        return self._compute_share_before(calls) < MAX_FORWARD_SHARE / passes

    def _compute_share_before(self, calls: list[CommunicationCall]) -> float:
        """Return the share of a step's compute that precedes its first call: the median over the steps."""
        return self._compute_share(calls, is_between=False)

    def _compute_share_between(self, calls: list[CommunicationCall]) -> float:
        """Return the share of a step's compute between its first and its last call: the median over the steps."""
        return self._compute_share(calls, is_between=True)

    def _compute_share(self, calls: list[CommunicationCall], *, is_between: bool) -> float:
        timeline = self._timeline
        starts = np.sort(timeline.communication.start_ns[[call.kernel for call in calls]])
        segments = self._context.job.segments[timeline.rank]
        spans = [(step.start_ns, step.end_ns) for step in timeline.steps]
        spans = spans or [(timeline.window_start_ns, timeline.window_end_ns)]
        shares = []
        for begin_ns, end_ns in spans:
            inside = starts[(starts >= begin_ns) & (starts < end_ns)]
            if not len(inside):
                continue
            times = np.array([begin_ns, inside[0], inside[-1], end_ns], dtype=np.int64)
            begin, first, last, end = segments.cumulative_part_ns(Part.COMPUTE, times).tolist()
            if end > begin:
                done = last - first if is_between else first - begin
                shares.append(done / (end - begin))
        return float(np.median(shares)) if shares else 1.0
