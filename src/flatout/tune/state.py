"""The state shared by the stages of a tuning run: the applied changes, the sets tried, and the baseline's trials."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.change.combine import combine, conflicts
from flatout.predict.calibrate import Calibration
from flatout.predict.situation import Situation
from flatout.records.change import Change, ChangeSet, JobFacts
from flatout.records.prediction import NoPrediction, Prediction
from flatout.records.trial import Pair, TrialResult
from flatout.records.tuning import Bound, Screened, TriedSet, TunedChange, TuningEnd
from flatout.records.verdict import NoiseFloor, Objective, Verdict
from flatout.tune.options import TuneOptions
from flatout.tune.runner import Profiled, Runner, Say

NOTHING = ChangeSet()
FIRST_STEPS = 30  # measured steps of the first trials; the noise floor then says how many are needed


class TuningState:
    """The state of one tuning run. "Baseline" is the unchanged job; the applied changes are those adopted so far."""

    def __init__(self, runner: Runner, options: TuneOptions, say: Say, calibration: Calibration | None = None) -> None:
        self.runner = runner
        self.options = options
        self.say = say
        self.calibration = calibration
        self.objective: Objective = options.objective or "step_s"
        self.num_steps = options.num_steps or FIRST_STEPS
        self.round = 0
        self.applied: list[Change] = []
        self.confirmed: list[TunedChange] = []
        self.tried: list[TriedSet] = []
        self.screened: list[Screened] = []  # single changes, whether they won or lost
        self.pending: dict[str, TriedSet] = {}  # changes chosen for a trial, until their outcome is known
        self.excluded: set[str] = set()  # names of changes that are not tried again
        self.deferred: set[str] = set()  # changes skipped in favour of a far better one, and not tried since
        self.expected_speedup: dict[str, float] = {}  # of this round's changes: the estimate that orders them
        self.max_speedup: dict[str, float] = {}  # of this round's changes: the upper bound on a trial's speedup
        self.baselines: list[TrialResult] = []
        self.current_trials: list[TrialResult] = []  # trials with the applied changes
        self.last_pairs: list[Pair] = []
        self.num_confirmations = 0  # number of confirmations begun
        self.against_original: Verdict | None = None  # verdict on the set that the first confirmation adopted
        self.floor: NoiseFloor | None = None
        self.first: Profiled | None = None  # the profile of the unchanged job
        self.profiled: Profiled | None = None  # the profile with the applied changes
        self.bounds: tuple[Bound, ...] = ()
        self.predictions: dict[str, Prediction] = {}  # by the change's name, of this round
        self.situation: Situation | NoPrediction | None = None  # of this round
        self.covers_first_epoch_only = False  # a loader change was adopted, and no trial reached a second epoch
        self.cut_by: TuningEnd | None = None  # the budget that ended the last pairs
        self.notes: list[str] = []

    @property
    def needs_final_pairs(self) -> bool:
        """Whether the set that is or will be adopted must still be compared with the unchanged job.

        The very first confirmation makes this comparison itself, on fresh pairs. Of several confirmations one may
        succeed by chance, so the result of a later one is not a claim yet.
        """
        return bool(self.applied) or self.num_confirmations > 1

    def applied_set(self) -> ChangeSet:
        return combine(self.applied, self.first.facts if self.first is not None else None)

    def with_added(self, added: Sequence[Change], facts: JobFacts) -> ChangeSet | None:
        """Return the applied changes with these, each replacing its knob's value; None if they do not fit."""
        added_knobs = {change.knob.name for change in added}
        wanted = [*(change for change in self.applied if change.knob.name not in added_knobs), *added]
        if next(conflicts(wanted, facts), None) is not None:
            return None
        return combine(wanted, facts)

    def added(self, change_set: ChangeSet) -> tuple[Change, ...]:
        """Return the changes of the set that are not applied yet."""
        applied_names = {change.name for change in self.applied}
        return tuple(change for change in change_set.changes if change.name not in applied_names)
