"""Print the time of a whole recording on a terminal: its parts in one sentence, and a line of blocks per rank.

In: a `RecordedTime` and a style. Out: lines of at most the style's width.
"""

from __future__ import annotations

from flatout import units
from flatout.records.recorded_time import BinKind, CallLatency, RecordedTime, UncountedCalls, WallPart
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.timeline import PART_LABELS, block_lines, scale_of

MOST_LANES = 8
SMALLEST_PART = 0.001  # of the wall time; smaller parts are not in the sentence


def recorded_lines(recorded: RecordedTime, style: TextStyle) -> list[str]:
    """Return the timeline of the steps with its key, then the parts of the wall time."""
    timeline = recorded.timeline
    lines = block_lines(timeline, width=style.width, most_lanes=MOST_LANES, has_unicode=style.has_unicode)
    lines += style.wrapped(_key(recorded))
    lines += style.wrapped(f"{parts_sentence(recorded)}.")
    for latency in recorded.calls:
        lines += style.wrapped(f"{latency_sentence(latency)}.")
    if recorded.uncounted_calls is not None:
        lines += style.wrapped(f"{uncounted_sentence(recorded.uncounted_calls)}.")
    return lines


def uncounted_sentence(uncounted: UncountedCalls) -> str:
    """Say which calls count in no latency, and why."""
    reasons = []
    if uncounted.num_warm_up:
        reasons.append(f"{uncounted.num_warm_up:,} of the warm-up, until their times were stable")
    if uncounted.num_disturbed:
        reasons.append(f"{uncounted.num_disturbed:,} that the recorder prolonged")
    total = uncounted.num_warm_up + uncounted.num_disturbed
    return f"not counted: {counted(total, 'call')}, {' and '.join(reasons)}"


def latency_sentence(latency: CallLatency) -> str:
    """Say how long the calls of a model with batches of one size take."""
    size = "of unknown size"
    if latency.num_samples is not None:
        size = f"with {counted(round(latency.num_samples), 'sample')}"
    quantiles = [("p50", latency.p50_s), ("p90", latency.p90_s), ("p99", latency.p99_s)]
    shown = [f"{name} {'unknown' if value is None else units.seconds(value)}" for name, value in quantiles]
    rate = "" if latency.samples_per_s is None else f"; {latency.samples_per_s:,.0f} samples/s on each rank"
    span = "from one call to the next"
    if latency.num_at_once is not None:
        span = f"{latency.num_at_once:.1f} at once on several threads, each in the model"
    if latency.is_launching is True:
        span = "as the host launches them, ahead of the GPU"
    return f"{counted(latency.num_calls, 'call')} {size}, {span}: {', '.join(shown)}{rate}"


def parts_sentence(recorded: RecordedTime) -> str:
    """Describe the parts of the recording's wall time, which sum to it."""
    parts = [
        f"{units.seconds(recorded.parts_s[part])} {_part(part, recorded)}"
        for part in WallPart
        if recorded.parts_s[part] >= SMALLEST_PART * recorded.wall_s
    ]
    return f"{units.seconds(recorded.wall_s)} in total: {', '.join(parts)}"


def _part(part: WallPart, recorded: RecordedTime) -> str:
    """Return the label of a part; that of the stalls names their largest cause."""
    if part != WallPart.STALLS or not recorded.stalls_s:
        return PART_LABELS[part]
    cause, seconds = next(iter(recorded.stalls_s.items()))
    if cause == "unknown":
        return PART_LABELS[part]
    return f"{PART_LABELS[part]} (mostly {cause})" if seconds > recorded.parts_s[part] / 2 else PART_LABELS[part]


def _key(recorded: RecordedTime) -> str:
    """Explain the blocks."""
    timeline = recorded.timeline
    scale = scale_of(timeline)
    last = timeline.first_step + timeline.num_steps - 1
    kinds = {kind for lane in timeline.lanes for kind in lane.kinds}
    marks = [f"{kind.value} {PART_LABELS[part]}" for kind, part in _MARKS.items() if kind in kinds]
    steps = f"Steps {timeline.first_step:,} to {last:,}"
    if timeline.num_steps == 1:
        steps = counted(1, "step")
    heights = f"heights from {units.seconds(scale.short_s)} to {units.seconds(scale.long_s)}, logarithmic"
    return "; ".join([f"{steps}, each block as high as its longest step", heights, *marks]) + "."


_MARKS = {BinKind.WARM_UP: WallPart.WARM_UP, BinKind.RECORDER: WallPart.RECORDER}
