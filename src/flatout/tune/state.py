"""What a tuning knows so far: what is on, what was tried, and the trials of the job as it came. The stages share it."""

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
FIRST_STEPS = 30  # settled steps of the first trials; the noise floor then says how many are needed


class TuningState:
    """Of one tuning."""

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
        self.screened: list[Screened] = []  # changes by themselves, good and bad
        self.open: dict[str, TriedSet] = {}  # what was chosen to be tried, until it is known what came of it
        self.excluded: set[str] = set()  # names of changes that are not tried again
        self.promises: dict[str, float] = {}  # the speedup that a trial may show, of the changes of this round
        self.max_speedup: dict[str, float] = {}  # the most that it may show
        self.deferred: set[str] = set()  # names of changes that gave way to a far better one, and had no turn since
        self.baselines: list[TrialResult] = []  # of the job as it came
        self.current_trials: list[TrialResult] = []  # of what is on now
        self.last_pairs: list[Pair] = []
        self.num_confirmations = 0  # that were begun
        self.against_original: Verdict | None = None  # of the set that was adopted by the first confirmation of all
        self.floor: NoiseFloor | None = None
        self.first: Profiled | None = None  # of the job as it came
        self.profiled: Profiled | None = None  # of what is on now
        self.bounds: tuple[Bound, ...] = ()
        self.predictions: dict[str, Prediction] = {}  # by the change's name, of this round
        self.situation: Situation | NoPrediction | None = None  # of this round
        self.cut_by: TuningEnd | None = None  # the budget that ended the last pairs
        self.notes: list[str] = []

    @property
    def needs_final_pairs(self) -> bool:
        """Whether what is adopted, now or next, is yet to be held against the job as it came.

        What the first confirmation of all adopts was, on fresh pairs. Of several confirmations one may succeed by
        chance, so what a later one adopts is no claim yet.
        """
        return bool(self.applied) or self.num_confirmations > 1

    def applied_set(self) -> ChangeSet:
        """What is on."""
        return combine(self.applied, self.first.facts if self.first is not None else None)

    def with_added(self, added: Sequence[Change], facts: JobFacts) -> ChangeSet | None:
        """What is on now and these, each in the place of what its knob is at; None where they do not fit together."""
        turned = {change.knob.name for change in added}
        wanted = [*(change for change in self.applied if change.knob.name not in turned), *added]
        if next(conflicts(wanted, facts), None) is not None:
            return None
        return combine(wanted, facts)

    def added(self, made: ChangeSet) -> tuple[Change, ...]:
        """Of a set, what is not on yet."""
        on = {change.name for change in self.applied}
        return tuple(change for change in made.changes if change.name not in on)
