"""The section of the page on the whole recording: the parts of its wall time, and the timeline of its steps.

In: a `RecordedTime`. Out: texts and numbers that the template shows.
"""

from __future__ import annotations

from flatout import units
from flatout.records.recorded_time import BinKind, RecordedTime, StepTimeline, TimelineLane, WallPart
from flatout.report.parts import rounded_shares
from flatout.report.phrases import counted
from flatout.report.timeline import HEIGHT, KIND_PARTS, PART_LABELS, Scale, lane_label, lane_paths, scale_of

PART_MEANINGS = {
    WallPart.BEFORE_FIRST_STEP: "The command starts: imports, model, data; also earlier attempts of restarted ranks.",
    WallPart.WARM_UP: "Compilation and initialization until step times were stable, beyond a regular step.",
    WallPart.REGULAR_STEPS: "Steps, excluding stalls.",
    WallPart.STALLS: "The time of steps beyond a regular step, including that of ranks that waited for a stalled one.",
    WallPart.RECORDER: "The recorder counts, traces and writes; without the recorder, this time would not be spent.",
    WallPart.NOT_RECORDED: "Steps whose records were lost, for example because the disk was full.",
    WallPart.AFTER_LAST_STEP: "The command ends: a last checkpoint or evaluation, and exiting.",
}
MOST_CAUSES = 6
NUM_TICKS = 5
MOST_TITLES = 200  # stalls with a tooltip


def recorded_section(recorded: RecordedTime) -> dict[str, object]:
    """Return the content of the section."""
    timeline = recorded.timeline
    scale = scale_of(timeline)
    kinds = {kind for lane in timeline.lanes for kind in lane.kinds}
    return {
        "wall": units.seconds(recorded.wall_s),
        "num_steps": counted(recorded.num_steps, "step"),
        "parts": _parts(recorded),
        "causes": [
            {"label": cause, "time": units.seconds(seconds), "share": _share(seconds, recorded)}
            for cause, seconds in list(recorded.stalls_s.items())[:MOST_CAUSES]
        ],
        "spoken": ", ".join(
            f"{PART_LABELS[part]} {_share(recorded.parts_s[part], recorded)}"
            for part in WallPart
            if recorded.parts_s[part] > 0
        ),
        "num_bins": len(timeline.lanes[0].kinds),
        "height": HEIGHT,
        "steps_per_bin": timeline.steps_per_bin,
        "short": units.seconds(scale.short_s),
        "long": units.seconds(scale.long_s),
        "lanes": [_lane(lane, timeline, scale) for lane in timeline.lanes],
        "ticks": _ticks(timeline),
        "key": [{"name": str(part), "label": PART_LABELS[part]} for kind, part in KIND_PARTS.items() if kind in kinds],
    }


def _parts(recorded: RecordedTime) -> list[dict[str, object]]:
    seconds = [recorded.parts_s[part] for part in WallPart]
    return [
        {
            "name": str(part),
            "label": PART_LABELS[part],
            "meaning": PART_MEANINGS[part],
            "time": units.seconds(recorded.parts_s[part]),
            "share": _share(recorded.parts_s[part], recorded),
            "width": f"{width / 100:.2f}",
            "has_label": width > 1200,
        }
        for part, width in zip(WallPart, rounded_shares(seconds, 10_000), strict=True)
        if recorded.parts_s[part] > 0
    ]


def _share(seconds: float, recorded: RecordedTime) -> str:
    return f"{seconds / recorded.wall_s * 100:.1f} %" if recorded.wall_s else "-"


def _lane(lane: TimelineLane, timeline: StepTimeline, scale: Scale) -> dict[str, object]:
    longest = max(range(len(lane.kinds)), key=lambda index: lane.longest_s[index])
    num_stalls = lane.kinds.count(BinKind.STALL)
    stalls = [index for index, kind in enumerate(lane.kinds) if kind == BinKind.STALL]
    stalls.sort(key=lambda index: -lane.longest_s[index])
    where = "steps" if timeline.steps_per_bin == 1 else "bins"
    return {
        "label": lane_label(lane),
        "longest": units.seconds(lane.longest_s[longest]),
        "spoken": f"{lane_label(lane)}: longest step {units.seconds(lane.longest_s[longest])}, "
        f"{_steps_of(longest, timeline)}; {num_stalls} of {len(lane.kinds)} {where} with a stall",
        "paths": [{"name": name, "path": path} for name, path in lane_paths(lane, scale)],
        "titles": [
            {"left": index, "title": f"{_steps_of(index, timeline)}: {units.seconds(lane.longest_s[index])}"}
            for index in stalls[: MOST_TITLES // len(timeline.lanes)]
        ],
    }


def _steps_of(index: int, timeline: StepTimeline) -> str:
    """Name the steps of a bin."""
    first = timeline.first_step + index * timeline.steps_per_bin
    last = min(first + timeline.steps_per_bin, timeline.first_step + timeline.num_steps) - 1
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _ticks(timeline: StepTimeline) -> list[dict[str, str]]:
    """Return step numbers on the axis, from the first to the last."""
    num_drawn = len(timeline.lanes[0].kinds) * timeline.steps_per_bin
    ticks = {}
    for index in range(NUM_TICKS):
        step = round(index * (timeline.num_steps - 1) / (NUM_TICKS - 1))
        ticks[step] = {"left": f"{step / num_drawn * 100:.2f}", "text": f"{timeline.first_step + step:,}"}
    return list(ticks.values())
