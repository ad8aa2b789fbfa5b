"""Draw the steps of a whole recording: one lane per rank, as a line of blocks or as the bars of an SVG.

In: a `StepTimeline`. Out: text lines, or texts that a template inserts into SVG. Bars grow with the logarithm of a
step's time, from a short step of the job to its longest, so that regular steps, stalls a hundred times as long and a
slow drift can all be seen. Bins hold the longest of their steps; fewer columns than bins are filled in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from flatout import units
from flatout.records.recorded_time import JOB_KINDS, BinKind, StepTimeline, TimelineLane, WallPart, longest_of

NUM_LEVELS = 8
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = ".:-=+*#@"
MIN_RANGE = 2.0  # the longest bar is at least this many times the shortest: noise of a few per cent stays flat
SHORT_QUANTILE = 0.1
HEIGHT = 24  # units of the drawing
PART_LABELS = {
    WallPart.BEFORE_FIRST_STEP: "before the first step",
    WallPart.WARM_UP: "warm-up",
    WallPart.REGULAR_STEPS: "regular steps",
    WallPart.STALLS: "stalls",
    WallPart.RECORDER: "recorder",
    WallPart.NOT_RECORDED: "not recorded",
    WallPart.AFTER_LAST_STEP: "after the last step",
}
KIND_PARTS = {
    BinKind.REGULAR: WallPart.REGULAR_STEPS,
    BinKind.STALL: WallPart.STALLS,
    BinKind.WARM_UP: WallPart.WARM_UP,
    BinKind.RECORDER: WallPart.RECORDER,
}


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The logarithmic scale of a timeline."""

    short_s: float  # and less: the lowest bar
    long_s: float  # and more: the highest bar

    def share(self, seconds: float) -> float:
        """Return the height of a bar, from 0 to 1."""
        if seconds <= self.short_s:
            return 0.0
        return min(1.0, math.log(seconds / self.short_s) / math.log(self.long_s / self.short_s))

    def level(self, seconds: float) -> int:
        """Return the index of a block, from 0 to `NUM_LEVELS` - 1."""
        return min(NUM_LEVELS - 1, int(self.share(seconds) * NUM_LEVELS))


def scale_of(timeline: StepTimeline) -> Scale:
    """Return the scale of the job's own steps; the warm-up and the recorder's steps can exceed it."""
    of_job = [
        seconds
        for lane in timeline.lanes
        for seconds, kind in zip(lane.longest_s, lane.kinds, strict=True)
        if kind in JOB_KINDS and seconds > 0
    ]
    if not of_job:
        of_job = [seconds for lane in timeline.lanes for seconds in lane.longest_s if seconds > 0] or [1.0]
    short_s = float(np.quantile(of_job, SHORT_QUANTILE))
    return Scale(short_s=short_s, long_s=max(MIN_RANGE * short_s, *of_job))


def fitted(timeline: StepTimeline, *, most_bins: int, most_lanes: int) -> StepTimeline:
    """Return the timeline with no more than these bins and lanes, each of which holds the longest of its steps."""
    num_bins = len(timeline.lanes[0].kinds)
    per_bin = -(-num_bins // most_bins)
    groups = np.array_split(np.arange(len(timeline.lanes)), min(most_lanes, len(timeline.lanes)))
    lanes = [_merged([timeline.lanes[index] for index in group], num_bins, per_bin) for group in groups]
    return StepTimeline(
        first_step=timeline.first_step,
        num_steps=timeline.num_steps,
        steps_per_bin=timeline.steps_per_bin * per_bin,
        lanes=tuple(lanes),
    )


def _merged(lanes: Sequence[TimelineLane], num_bins: int, per_bin: int) -> TimelineLane:
    longest: list[float] = []
    kinds: list[str] = []
    for start in range(0, num_bins, per_bin):
        end = start + per_bin
        bins_s = [seconds for lane in lanes for seconds in lane.longest_s[start:end]]
        seconds, kind = longest_of(bins_s, [kind for lane in lanes for kind in lane.kinds[start:end]])
        longest.append(seconds)
        kinds.append(kind)
    ranks = tuple(rank for lane in lanes for rank in lane.ranks)
    return TimelineLane(ranks=ranks, longest_s=tuple(longest), kinds="".join(kinds))


def lane_label(lane: TimelineLane) -> str:
    return f"rank {lane.ranks[0]}" if len(lane.ranks) == 1 else f"ranks {units.rank_ranges(lane.ranks)}"


def block_lines(timeline: StepTimeline, *, width: int, most_lanes: int, has_unicode: bool) -> list[str]:
    """Return a line of blocks per lane, and a line that marks the warm-up and the recorder's steps."""
    label_width = max(len(lane_label(lane)) for lane in timeline.lanes)
    shown = fitted(timeline, most_bins=width - label_width - 2, most_lanes=most_lanes)
    label_width = max(len(lane_label(lane)) for lane in shown.lanes)
    scale = scale_of(timeline)
    blocks = BLOCKS if has_unicode else ASCII_BLOCKS
    lines = []
    for lane in shown.lanes:
        drawn = "".join(
            " " if kind == BinKind.MISSING else blocks[scale.level(seconds)]
            for seconds, kind in zip(lane.longest_s, lane.kinds, strict=True)
        )
        lines.append(f"{lane_label(lane):<{label_width}}  {drawn}")
    marks = "".join(_mark([lane.kinds[index] for lane in shown.lanes]) for index in range(len(shown.lanes[0].kinds)))
    if marks.strip():
        lines.append(f"{'':<{label_width}}  {marks}".rstrip())
    return lines


def _mark(kinds: Sequence[str]) -> str:
    """Return the letter of a bin in which no rank made an undisturbed step."""
    disturbed = [kind for kind in kinds if kind in (BinKind.WARM_UP, BinKind.RECORDER)]
    is_disturbed = len(disturbed) == sum(kind != BinKind.MISSING for kind in kinds)
    return disturbed[0] if disturbed and is_disturbed else " "


def lane_paths(lane: TimelineLane, scale: Scale) -> list[tuple[str, str]]:
    """Return an SVG path per kind of step: bars of width 1 on a drawing of `HEIGHT`; equal neighbours are merged."""
    paths: dict[str, str] = {}
    start = 0
    bars = [(kind, _bar_height(seconds, scale)) for seconds, kind in zip(lane.longest_s, lane.kinds, strict=True)]
    for end in range(1, len(bars) + 1):
        if end < len(bars) and bars[end] == bars[start]:
            continue
        kind, height = bars[start]
        if kind in KIND_PARTS:
            name = str(KIND_PARTS[BinKind(kind)])
            bar = f"M{start} {HEIGHT - height}h{end - start}V{HEIGHT}H{start}z"
            paths[name] = paths.get(name, "") + bar
        start = end
    return list(paths.items())


def _bar_height(seconds: float, scale: Scale) -> int:
    lowest = HEIGHT // NUM_LEVELS
    return lowest + round(scale.share(seconds) * (HEIGHT - lowest))
