"""Results of a job over time: the lines of a history, and what a check of a history found.

`track/` writes and checks histories, and `report/` shows them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# Whether a lower or a higher value is better. `neutral`: a change is shown, and is neither better nor worse.
Direction = Literal["lower", "higher", "neutral"]
Effect = Literal["better", "worse", "neutral"]
SeriesStatus = Literal["steady", "changed", "drifting", "two states", "too few results"]
GateOutcome = Literal["passed", "failed", "undecided"]


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One number of a result, with its interval if the result has one."""

    name: str  # `step_s`, `peak_memory_bytes`, `matmul.bf16.4096x4096x4096`
    value: float
    unit: str  # "s", "B", "1/s", "FLOP/s", "B/s", or "" for a ratio or share
    direction: Direction
    low: float | None = None
    high: float | None = None
    is_part: bool = False  # it explains where a change is, and is not checked


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of the job's code that was measured."""

    id: str
    unix_s: float | None = None  # time of the commit
    branch: str | None = None
    is_modified: bool = False  # the files had changes that are in no commit


class TrackedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a history. Results of different jobs or machines are never compared."""

    schema: str = "flatout/track"
    version: int = 1
    job: str
    machine: str  # the class of machine: devices, their number and the number of ranks
    source: str  # schema of the result: `flatout/tuning`
    measures: tuple[Measure, ...]
    commit: Commit | None = None
    environment: dict[str, str] = {}  # facts that can change a result: versions, host, driver
    measured_unix_s: float
    digest: str  # of the result's content, so that no result is added twice


class EnvironmentChange(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that differs between the last result before a change and the first one after it. Null: not recorded."""

    name: str
    before: str | None
    after: str | None


class PartShift(msgspec.Struct, frozen=True, kw_only=True):
    """How a part of the job changed at a change of a measure: medians of the results on both sides."""

    name: str
    unit: str
    before: float
    after: float


class LevelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a series. Indices count its results from 0."""

    index: int  # of the first result at the new level
    low: int  # the earliest and the latest index that the values allow, at 95 % confidence
    high: int
    before: float  # level since the change before it
    after: float
    p_value: float  # of this one test; the limit is corrected for all tests
    effect: Effect = "neutral"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A slow change that a line explains better than steps do, between the first and the last result."""

    start: float
    end: float
    effect: Effect = "neutral"


class TwoStates(msgspec.Struct, frozen=True, kw_only=True):
    """Two levels that a series alternates between."""

    low: float
    high: float
    high_share: float  # of the results
    num_switches: int


class Segmentation(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the level of a series."""

    level: float  # of the last results
    changes: tuple[LevelChange, ...] = ()
    drift: Drift | None = None
    states: TwoStates | None = None
    outliers: tuple[int, ...] = ()  # indices
    correlation: float = 0.0  # of neighbouring results around their levels; 0: none is shown


class TrackPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a series."""

    value: float
    low: float | None
    high: float | None
    commit: str | None
    measured_unix_s: float


class CommitRange(msgspec.Struct, frozen=True, kw_only=True):
    """The commits among which a change is: after `last_before`, up to and with `first_after`. Null: unknown commits."""

    last_before: str | None
    first_after: str | None
    num_results: int  # places that the values allow: with 1, the range is as narrow as the results are close


class TrackedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one series, and what else changed there."""

    change: LevelChange
    commits: CommitRange
    environment: tuple[EnvironmentChange, ...]
    parts: tuple[PartShift, ...]  # largest first
    num_since: int  # results at the new level
    is_recent: bool  # among the last results that the gate looks at
    is_lasting: bool  # no later change of the series


class SeriesCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of one job on one class of machine."""

    job: str
    machine: str
    measure: str
    unit: str
    direction: Direction
    status: SeriesStatus
    level: float  # of the last results
    points: tuple[TrackPoint, ...]
    changes: tuple[TrackedChange, ...] = ()
    drift: Drift | None = None
    states: TwoStates | None = None
    outliers: tuple[int, ...] = ()  # indices of results far from the level
    correlation: float = 0.0  # of neighbouring results around their levels; 0: none is shown
    outcome: GateOutcome | None = None  # of the gate for this series; None: no gate


class TrackGate(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a series has become worse by more than a limit, by a change among its last results."""

    limit: float  # 0.03: 3 %
    last: int  # results of each series
    outcome: GateOutcome
    num_failed: int  # series
    num_undecided: int  # series with too few results


class ReportedMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure in a format of a CI system, from a check or from one result."""

    job: str
    machine: str
    name: str
    unit: str
    direction: Direction
    value: float
    low: float | None = None
    high: float | None = None
    outcome: GateOutcome | None = None  # of the gate, or an undecided verdict; None: no gate
    message: str = ""  # why it failed or is undecided, or what changed


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What all formats of CI systems are written from."""

    title: str
    summary: str  # one sentence
    measures: tuple[ReportedMeasure, ...]
    outcome: GateOutcome | None = None  # of the gate; None: no gate

    @property
    def failed(self) -> tuple[ReportedMeasure, ...]:
        return tuple(measure for measure in self.measures if measure.outcome == "failed")


class TrackCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A history checked."""

    path: str
    num_results: int
    num_damaged: int  # lines that were skipped
    false_alarm_rate: float  # of all series together
    min_effect: float
    series: tuple[SeriesCheck, ...]
    gate: TrackGate | None = None
    notes: tuple[str, ...] = ()
