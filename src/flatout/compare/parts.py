"""Find where the difference between two arms is: part by part, with intervals.

In: for each arm, the recorded steps of its trials, and its profiles. Out: `PartDifference`s. The step log of a trial
shows how long the training thread loads data, saves, evaluates, logs and collects garbage; the rest of the step is
divided by the profiles. A wait for a late rank counts as the part in which that rank was late, because that is where
the time was lost. Intervals are those of Student's t-test over runs, so that they include the noise from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flatout.records.comparison import CallDifference, PartDifference, PartSource
from flatout.records.recording import RankRecording, Recording
from flatout.verdict.cost import TrialCost
from flatout.verdict.student import t_quantile

LEVEL = 0.05  # two-sided, of each interval
REST = "rest_of_step"  # of a recorded step: computing, communicating, launching; the profiles divide it
REGULAR = "regular_step"
MIN_RUNS = 2
MOST_OF_TOTAL = 0.8  # share of a difference that is shown, from which a part counts that is not shown alone
# Parts of a recorded step that the training thread spends outside of the model, with the columns of the step log.
_COLUMNS: Mapping[str, str] = {
    "data_loading": "loader_s",
    "checkpoint": "checkpoint_s",
    "evaluation": "evaluation_s",
    "garbage_collection": "collection_s",
    "compilation": "compilation_s",
    "logging": "logging_s",
}
# Parts that both sources have: the step log measures them in all trials, and without a profiler.
MEASURED_BY_BOTH = frozenset({"data_loading", "checkpoint"})
COMMUNICATION = frozenset({"transfer", "wait", "communication_unsplit"})
COLLECTIVE_NAMES = ("nccl:", "gloo:", "mpi:", "xccl:", "hccl:")  # what the profiler calls them on the host

Parts = Mapping[str, float]  # part -> seconds per step, mean over ranks


def recorded_parts(recording: Recording) -> Parts | None:
    """Return the parts of a trial's mean measured step; None if no rank has such steps."""
    of_ranks = [parts for rank in recording.ranks if (parts := _of_rank(rank)) is not None]
    if not of_ranks:
        return None
    return {part: sum(parts[part] for parts in of_ranks) / len(of_ranks) for part in of_ranks[0]}


def _of_rank(rank: RankRecording) -> Parts | None:
    if rank.settled_step is None:
        return None
    rows = rank.steps.is_ordinary & (rank.steps.number >= rank.settled_step)
    if not rows.any():
        return None
    parts = {}
    for part, column in _COLUMNS.items():
        values = getattr(rank.steps, column)
        parts[part] = float(np.nan_to_num(values[rows]).mean()) if values is not None else 0.0
    parts[REST] = max(float(rank.steps.duration_s[rows].mean()) - sum(parts.values()), 0.0)
    return parts


def work_parts(cost: TrialCost) -> Parts:
    """Return the parts of a trial's average step by kinds of steps: a regular one, and the share of other work."""
    parts = {REGULAR: cost.regular_s or 0.0}
    for work in cost.work:
        if work.per_step_s is not None:
            parts[", ".join(sorted(work.kinds))] = work.per_step_s
    return parts


def differences(a: Sequence[Parts], b: Sequence[Parts], source: PartSource) -> list[PartDifference]:
    """Return the difference of each part between the runs of both arms, the largest first."""
    if not a or not b:
        return []
    names = list(dict.fromkeys(name for parts in (*a, *b) for name in parts))
    found = [_difference(name, a, b, source, len(names)) for name in names]
    return sorted((part for part in found if part.a_s or part.b_s), key=lambda part: -abs(part.change_s))


def _difference(
    name: str, a: Sequence[Parts], b: Sequence[Parts], source: PartSource, num_parts: int
) -> PartDifference:
    a_s, b_s = ([parts.get(name, 0.0) for parts in arm] for arm in (a, b))
    change_s = float(np.mean(b_s) - np.mean(a_s))
    interval = None
    is_shown = False
    if min(len(a_s), len(b_s)) >= MIN_RUNS:
        error_s, freedom = _error(a_s, b_s)
        half_s = t_quantile(LEVEL / 2, freedom) * error_s
        interval = (change_s - half_s, change_s + half_s)
        is_shown = abs(change_s) > t_quantile(LEVEL / 2 / num_parts, freedom) * error_s
    return PartDifference(
        part=name,
        source=source,
        a_s=float(np.mean(a_s)),
        b_s=float(np.mean(b_s)),
        change_s=change_s,
        interval_s=interval,
        is_shown=is_shown,
    )


def _error(a_s: Sequence[float], b_s: Sequence[float]) -> tuple[float, int]:
    """Return the standard error of the difference of two means, and its degrees of freedom."""
    freedom = len(a_s) + len(b_s) - 2
    squares = sum(float(((np.array(values) - np.mean(values)) ** 2).sum()) for values in (a_s, b_s))
    return math.sqrt(squares / freedom * (1 / len(a_s) + 1 / len(b_s))), freedom


def cause_of(
    parts: Sequence[PartDifference], calls: Sequence[CallDifference] = (), *, is_total_shown: bool = False
) -> str | None:
    """Return the part that explains most of the difference between the arms; None if no part is shown to differ.

    Where the verdict shows that the arms differ (`is_total_shown`), a part that explains nearly all of the difference
    is named, even if its own interval includes 0: noise from run to run that all parts share hides it there.

    If it is the rest of the recorded step, the profiles say which part of that. Where these are too few to show it, a
    number of collectives that differs does: it is exact, and many small messages also slow the computing next to them.
    """
    recorded = [part for part in parts if part.source == "steps"]
    total_s = sum(part.change_s for part in recorded)
    explaining = [part for part in recorded if part.is_shown and part.change_s * total_s > 0]
    if not explaining and is_total_shown:
        explaining = [part for part in recorded if part.change_s * total_s > MOST_OF_TOTAL * total_s**2]
    if not explaining:
        return None
    largest = max(explaining, key=lambda part: abs(part.change_s))
    return largest.part if largest.part != REST else _cause_within_rest(parts, largest.change_s, calls)


def _cause_within_rest(parts: Sequence[PartDifference], rest_change_s: float, calls: Sequence[CallDifference]) -> str:
    profiled = [part for part in parts if part.source == "profiles" and part.part not in MEASURED_BY_BOTH]
    within = [part for part in profiled if part.change_s * rest_change_s > 0]
    if not within:
        return REST
    is_any_shown = any(part.is_shown for part in within)
    if not is_any_shown and _has_other_collectives(calls):
        communication = [part for part in within if part.part in COMMUNICATION]
        within = communication or within
    return max(within, key=lambda part: (part.is_shown, abs(part.change_s))).part


def _has_other_collectives(calls: Sequence[CallDifference]) -> bool:
    """Whether a step of one arm has at least one more or one fewer collective of a kind."""
    collectives = [call for call in calls if call.name.startswith(COLLECTIVE_NAMES)]
    return any(abs(call.b_calls - call.a_calls) >= 1 for call in collectives)
