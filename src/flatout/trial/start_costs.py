"""Divide the time from the start of a trial's command to its first counted step.

In: the ranks of the trial's recording, and when its command began and ended. Out: `StartCosts` of the rank whose first
counted step began last, or None if its recorder was too old to note the times. Hosts whose clocks differ can shift time
between the launch and the import; the sum stays right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from flatout.records.recording import RankRecording
from flatout.records.start_costs import Span, StartCosts


def counted_from_s(rank: RankRecording) -> float | None:
    """Return when a rank's first counted step began; None if none was counted."""
    if rank.settled_step is None:
        return None
    rows = rank.steps.number >= rank.settled_step
    return float(rank.steps.start_ns[int(rows.argmax())]) / 1e9 if rows.any() else None


def start_costs(ranks: Sequence[RankRecording], began_s: float, ended_s: float | None) -> StartCosts | None:
    """Return the costs of a command that ran from `began_s` to `ended_s`, in Unix seconds."""
    last_begins = [(begins_s, rank) for rank in ranks if (begins_s := counted_from_s(rank)) is not None]
    if not last_begins or len(last_begins) < len(ranks):
        return None
    counted_s, rank = max(last_begins, key=lambda pair: pair[0])
    times = rank.started
    if times is None:
        return None
    steps = rank.steps
    first_begins_s = float(steps.start_ns[0]) / 1e9
    first_ends_s = first_begins_s + float(steps.duration_s[0])
    edges = [began_s, times.process_s or began_s, times.torch_s, first_begins_s, first_ends_s, counted_s]
    launched, imported, prepared, stepped = np.minimum(np.maximum.accumulate(edges), counted_s)[1:5].tolist()
    # A loader can start within an evaluation, which then counts alone.
    preparing = (imported, prepared)
    early_s = _within(times.evaluations, preparing)
    early_or_loader_s = _within((*times.evaluations, *times.loaders), preparing)
    noted_s = _within((*times.evaluations, *times.loaders, *times.groups), preparing)
    late_s = max(_within(times.evaluations, (prepared, stepped)), _first(steps.evaluation_s))
    late_s = min(late_s, stepped - prepared)
    waiting_s = max(float(steps.loader_s[0]), _first(steps.loader_start_s))
    waiting_s = min(waiting_s, stepped - prepared - late_s)
    last_ends_s = float(steps.start_ns[-1]) / 1e9 + float(steps.duration_s[-1])
    return StartCosts(
        launch_s=launched - began_s,
        import_s=imported - launched,
        setup_s=prepared - imported - noted_s,
        group_s=noted_s - early_or_loader_s,
        evaluation_s=early_s + late_s,
        first_batch_s=early_or_loader_s - early_s + waiting_s,
        first_step_s=stepped - prepared - late_s - waiting_s,
        warmup_s=counted_s - stepped,
        compilation_s=times.compilation_s,
        end_s=None if ended_s is None else max(ended_s - last_ends_s, 0.0),
    )


def _first(column: np.ndarray[tuple[int], np.dtype[np.float64]] | None) -> float:
    """Return the value of the first step; 0 if the recorder was too old to write the column."""
    return 0.0 if column is None else float(column[0])


def _within(spans: Iterable[Span], window: Span) -> float:
    """Return the seconds of the window that the spans cover."""
    covered_s, until_s = 0.0, window[0]
    for begin_s, end_s in sorted(spans):
        begin_s, end_s = max(begin_s, until_s), min(end_s, window[1])
        if end_s > begin_s:
            covered_s += end_s - begin_s
            until_s = end_s
    return covered_s
