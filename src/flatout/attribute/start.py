"""Recognise start-up steps of a recording that differ from later steps: compilation, autotuning, warm-up.

In: a rank's timeline, and the steps in which the rank evaluates or that the step log shows to stall. Out: the number of
such steps, and a note on them. They are not counted, because a mean that includes them describes no actual step. A step
that is long because it loaded data, saved the model or evaluated it is counted, because such stalls recur, unless the
job has just begun.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from flatout.records.diagnosis import PART_NAMES, Part
from flatout.records.events import Quality
from flatout.records.timeline import RankTimeline, StartUp
from flatout.units import NS_PER_S, seconds

MIN_RATIO = 2.0  # ratio of the shortest start-up step to the longest later step
MIN_STEPS_AFTER = 2
_FIRST_STEPS = (0, 1)  # a recording with one of these numbers contains the start of the job
_RECURRING = (Part.DATA_LOADING, Part.CHECKPOINT)


def num_start_steps(timeline: RankTimeline, recurring: Set[int] = frozenset()) -> int:
    """Return how many of the first steps belong to the start-up; always fewer than half of the steps.

    `recurring` are numbers of steps that are long for a reason that recurs, such as an evaluation.
    """
    lengths = np.array([step.end_ns - step.start_ns for step in timeline.steps], dtype=np.int64)
    most = min(len(lengths) - MIN_STEPS_AFTER, (len(lengths) - 1) // 2)
    for num_steps in range(most, 0, -1):
        longest_after = lengths[num_steps:].max()
        is_transient = 0 < MIN_RATIO * longest_after < lengths[:num_steps].min()
        if is_transient and _is_start(timeline, num_steps, recurring):
            return num_steps
    return 0


def _is_start(timeline: RankTimeline, num_steps: int, recurring: Set[int]) -> bool:
    if timeline.steps[0].number in _FIRST_STEPS:
        return True
    if recurring & {step.number for step in timeline.steps[:num_steps]}:
        return False
    return _main_part(timeline, num_steps) not in _RECURRING


def _main_part(timeline: RankTimeline, num_steps: int) -> Part:
    """Return the part that accounts for most of the first steps' excess over later steps."""
    border_ns = timeline.steps[num_steps].start_ns
    num_after = len(timeline.steps) - num_steps
    at_start = timeline.segments.between_ns(timeline.first_step_ns, border_ns)
    after = timeline.segments.between_ns(border_ns, timeline.window_end_ns)
    return Part(int(np.argmax(at_start * num_after - after * num_steps)))


def start_up(timeline: RankTimeline, num_steps: int) -> StartUp:
    """Return the start-up of `num_steps` steps; `timeline` still contains them."""
    return StartUp(
        steps=tuple(step.number for step in timeline.steps[:num_steps]), main_part=_main_part(timeline, num_steps)
    )


def waited_at_start(timelines: Sequence[RankTimeline]) -> list[bool]:
    """Return for each rank whether its start-up was a wait for other ranks in steps that another rank counts.

    Such a rank waited for a stall that recurs, so its steps count too.
    """
    counted = {step.number for timeline in timelines for step in timeline.steps}
    starts = [timeline.start_up for timeline in timelines]
    return [
        start is not None and start.main_part == Part.COMMUNICATION_UNSPLIT and not counted.isdisjoint(start.steps)
        for start in starts
    ]


def start_note(timeline: RankTimeline, num_steps: int) -> Quality:
    """Return the note about a start-up of `num_steps` steps; `timeline` still contains them."""
    lengths_s = [(step.end_ns - step.start_ns) / NS_PER_S for step in timeline.steps]
    first, last = timeline.steps[0].number, timeline.steps[num_steps - 1].number
    which = f"step {first}" if num_steps == 1 else f"steps {first} to {last}"
    part = PART_NAMES[_main_part(timeline, num_steps)].replace("_", " ")
    return Quality(
        problem=f"{which} took {seconds(sum(lengths_s[:num_steps]))}, mostly more {part}, and no later step took more"
        f" than {seconds(max(lengths_s[num_steps:]))}: the start is not the regular step",
        effect="the start is not counted: steps, parts and costs are those after it",
    )
