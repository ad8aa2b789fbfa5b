"""What a tuning knows: frozen values, which each stage takes and returns with what it added.

`Setup` is what stays the same during a tuning. `TuningEvidence` has all of its trials. `Applied` has the changes
adopted so far. `Outcomes` has what became of each change that was chosen. `Round` has the candidates of one round and
their estimated gains. `Progress` holds these together, and `StoppedError` carries it out of any stage in which a tuning
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import median

import msgspec

from flatout.change.combine import combine, conflicts
from flatout.predict.calibrate import PredictionCalibration
from flatout.predict.situation import Situation
from flatout.records.call_limit import CallLimit
from flatout.records.change import Change, ChangeSet, JobFacts
from flatout.records.prediction import NoPrediction, Prediction
from flatout.records.trial import BASELINE, SpellKind, TrialResult
from flatout.records.tuning import Screened, TriedSet, TunedChange, TuningEnd
from flatout.records.verdict import NoiseFloor, Objective, Verdict
from flatout.tune.options import TuneOptions
from flatout.tune.profiled import Profiled
from flatout.tune.runner import Runner
from flatout.tune.signals import Interrupts
from flatout.verdict.cost import missing
from flatout.verdict.noise import MIN_TRIALS, noise_floor

NOTHING = ChangeSet()


class Setup(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The job that is tuned, and how."""

    runner: Runner
    options: TuneOptions
    say: Callable[[str], None]
    calibration: PredictionCalibration | None = None
    interrupts: Interrupts = msgspec.field(default_factory=Interrupts)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    changes: ChangeSet
    result: TrialResult


class TuningEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All trials of a tuning, in the order in which they ran. "Baseline" is the unchanged job."""

    trials: tuple[Trial, ...] = ()

    def of(self, changes: ChangeSet) -> tuple[TrialResult, ...]:
        """Return the complete trials of a set, in whatever order its changes were combined."""
        names = _names(changes)
        return tuple(
            trial.result for trial in self.trials if trial.result.is_complete and _names(trial.changes) == names
        )

    @property
    def baselines(self) -> tuple[TrialResult, ...]:
        return self.of(NOTHING)

    def named(self, *arms: ChangeSet) -> tuple[TrialResult, ...]:
        """Return all trials in running order, those of these sets under the names that the sets have here.

        A verdict on two arms needs the others too: how often an epoch ends belongs to the job.
        """
        names = {_names(changes): changes.name for changes in arms}
        return tuple(
            msgspec.structs.replace(trial.result, arm=names.get(_names(trial.changes), trial.result.arm))
            for trial in self.trials
        )

    def has(self, changes: ChangeSet) -> bool:
        """Whether the set has had a trial, however that ended."""
        return any(_names(trial.changes) == _names(changes) for trial in self.trials)

    def ends_with(self, changes: ChangeSet) -> bool:
        """Whether the last trial is one of this set."""
        return bool(self.trials) and _names(self.trials[-1].changes) == _names(changes)

    def with_trial(self, changes: ChangeSet, result: TrialResult) -> TuningEvidence:
        return TuningEvidence(trials=(*self.trials, Trial(changes=changes, result=result)))

    def with_typical_firsts(self, kinds: tuple[SpellKind, ...]) -> TuningEvidence:
        """Return these with the kinds of work whose first occurrence can stand for the later ones."""
        trials = [
            msgspec.structs.replace(trial, result=msgspec.structs.replace(trial.result, typical_firsts=kinds))
            for trial in self.trials
        ]
        return TuningEvidence(trials=tuple(trials))


def _names(changes: ChangeSet) -> frozenset[str]:
    return frozenset(change.name for change in changes.changes)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The changes adopted so far."""

    changes: ChangeSet = NOTHING
    each: tuple[TunedChange, ...] = ()
    covers_first_epoch_only: bool = False  # a loader change was adopted, and no trial reached a second epoch

    def __bool__(self) -> bool:
        return bool(self.changes.changes)

    def with_added(self, added: Sequence[Change], facts: JobFacts) -> ChangeSet | None:
        """Return the applied changes with these, each replacing its knob's value; None if they do not fit."""
        added_knobs = {change.knob.name for change in added}
        wanted = [*(change for change in self.changes.changes if change.knob.name not in added_knobs), *added]
        if next(conflicts(wanted, facts), None) is not None:
            return None
        return combine(wanted, facts)

    def added(self, change_set: ChangeSet) -> tuple[Change, ...]:
        """Return the changes of the set that are not applied yet."""
        applied_names = _names(self.changes)
        return tuple(change for change in change_set.changes if change.name not in applied_names)


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each change that was chosen for a trial."""

    tried: tuple[TriedSet, ...] = ()
    pending: Mapping[str, TriedSet] = {}  # chosen, and no outcome yet
    screened: tuple[Screened, ...] = ()  # single changes, whether they won or lost
    excluded: frozenset[str] = frozenset()  # names of changes that are not tried again
    deferred: frozenset[str] = frozenset()  # changes skipped in favour of a far better one, and not tried since

    def with_tried(self, tried: TriedSet) -> Outcomes:
        """Return these with the outcome of a set."""
        done = set(tried.changes)
        pending = {name: entry for name, entry in self.pending.items() if not done.issuperset(entry.changes)}
        return msgspec.structs.replace(self, tried=(*self.tried, tried), pending=pending)

    def with_pending(self, chosen: TriedSet) -> Outcomes:
        """Return these with the progress of a chosen change; its outcome is recorded if the tuning gets that far."""
        if any(chosen.name in tried.changes and tried.outcome != "adopted" for tried in self.tried):
            return self
        return msgspec.structs.replace(self, pending={**self.pending, chosen.name: chosen})

    def excluding(self, names: Iterable[str]) -> Outcomes:
        return msgspec.structs.replace(self, excluded=self.excluded | frozenset(names))

    def deferring(self, name: str) -> Outcomes:
        return msgspec.structs.replace(self, deferred=self.deferred | {name})

    def trying(self, name: str) -> Outcomes:
        """Return these when a change that may have been deferred has its trial."""
        return msgspec.structs.replace(self, deferred=self.deferred - {name})


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What a change may bring: the estimate that orders the candidates, and the most that a trial can show."""

    expected_speedup: float
    max_speedup: float


class Round(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The candidates of one round, best first, and what is known of them before their trials."""

    number: int
    facts: JobFacts
    candidates: tuple[Change, ...] = ()
    bundle: ChangeSet | None = None  # the applied changes with those candidates that do not interact
    promises: Mapping[str, Promise] = {}
    predictions: Mapping[str, Prediction] = {}  # by the change's name
    situation: Situation | NoPrediction | None = None

    @property
    def place(self) -> str:
        """Return the purpose of the round's trials, as the journal keeps it."""
        return f"round {self.number}"


class ShownGain(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that were shown to be better than the unchanged job."""

    applied: Applied
    verdict: Verdict


class Progress(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All that a tuning has found out so far."""

    objective: Objective
    num_steps: int | None = None  # measured steps of each trial; None: as many as it pays to measure
    latency: CallLimit | None = None  # of the calls of a script that only infers
    evidence: TuningEvidence = TuningEvidence()
    profiles: Mapping[str, Profiled] = {}  # by the name of the applied changes
    applied: Applied = Applied()
    claim: ShownGain | None = None  # the last one; later changes may have been adopted since
    outcomes: Outcomes = Outcomes()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Profiled | None:
        """Return the profile of the unchanged job."""
        return self.profiles.get(BASELINE)

    @property
    def current_trials(self) -> tuple[TrialResult, ...]:
        """Return the complete trials of the applied changes."""
        return self.evidence.of(self.applied.changes)

    @property
    def floor(self) -> NoiseFloor | None:
        """Return the spread among all trials of the unchanged job; None if they are too few."""
        return _floor(self.evidence.baselines, self.objective)

    @property
    def noise(self) -> NoiseFloor | None:
        """Return the spread among the trials of the applied changes, or else of the unchanged job."""
        return _floor(self.current_trials, self.objective) or self.floor

    @property
    def usual_steps(self) -> int:
        """Return the number of measured steps that a trial of the unchanged job usually has; 0 before the first."""
        lengths = [len(trial.step_s) for trial in self.evidence.baselines]
        return round(median(lengths)) if lengths else 0

    @property
    def trial_sd(self) -> float | None:
        """Return the standard deviation of a trial's log cost; None if it is unknown."""
        return self.noise.trial_sd(self.usual_steps) if self.noise is not None else None

    @property
    def is_claimed(self) -> bool:
        """Whether the applied changes, if any, were compared with the unchanged job."""
        return not self.applied or (self.claim is not None and self.claim.applied == self.applied)

    def with_trial(self, changes: ChangeSet, result: TrialResult) -> Progress:
        return msgspec.structs.replace(self, evidence=self.evidence.with_trial(changes, result))

    def with_outcomes(self, outcomes: Outcomes) -> Progress:
        return msgspec.structs.replace(self, outcomes=outcomes)

    def with_note(self, note: str) -> Progress:
        return self if note in self.notes else msgspec.structs.replace(self, notes=(*self.notes, note))


class _Trials:
    """Trials as the key of a cache: the same objects, which are never changed."""

    def __init__(self, trials: Sequence[TrialResult]) -> None:
        self.trials = tuple(trials)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Trials) and tuple(map(id, self.trials)) == tuple(map(id, other.trials))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.trials)))


def _floor(trials: Sequence[TrialResult], objective: Objective) -> NoiseFloor | None:
    return _floor_of(_Trials(trials), objective)


@lru_cache(maxsize=8)
def _floor_of(key: _Trials, objective: Objective) -> NoiseFloor | None:
    usable = [trial for trial in key.trials if missing(trial, objective) is None]
    return noise_floor(usable, objective=objective) if len(usable) >= MIN_TRIALS else None


class StoppedError(Exception):
    """The tuning ends here; what it found so far stands."""

    def __init__(self, progress: Progress, end: TuningEnd) -> None:
        super().__init__(end.ended_by)
        self.progress = progress
        self.end = end
