"""The closed loop: noise floor -> profile -> candidates -> screening -> confirmation -> again -> the final verdict.

Each round starts from what is on already, looks for what now costs most, screens changes for it in a trial each beside
fresh baselines, and confirms the best on pairs of its own. What is claimed in the end rests on pairs of the final set
against the job as it came, none of which was used to choose anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from flatout.change.arguments import knob_changes, parse_knob
from flatout.change.candidates import candidates
from flatout.change.combine import combine, conflicts
from flatout.errors import FlatoutError, InputError
from flatout.predict.calibrate import Calibration
from flatout.predict.predict import predict_all, predict_together, situation_of
from flatout.predict.situation import Situation
from flatout.records.change import Change, ChangeSet, JobFacts
from flatout.records.prediction import NoPrediction, Prediction
from flatout.records.trial import BASELINE, Pair, TrialResult
from flatout.records.tuning import Bound, Tried, TriedOutcome, TunedChange, TuneResult, Tuning
from flatout.records.verdict import NoiseFloor, Objective, Verdict
from flatout.trial.gates import GateResult, check_losses, check_memory
from flatout.trial.outputs import output_notes
from flatout.tune.options import TuneOptions
from flatout.tune.runner import Profiled, Runner, Say
from flatout.verdict.cost import missing, trial_cost
from flatout.verdict.judge import is_worth_more_pairs, judge
from flatout.verdict.noise import noise_floor, plan_trials
from flatout.verdict.screening import screen

NOTHING = ChangeSet()
NUM_FLOOR_TRIALS = 3
FIRST_STEPS = 30  # settled steps of the first trials; the noise floor then says how many are needed
WANTED_EFFECT = 0.03
MAX_STEPS, MIN_STEPS = 200, 12
MAX_TRIAL_STEPS_S = 20.0  # of settled steps: what takes longer is judged by fewer
CANDIDATES_BETWEEN_BASELINES = 3
MIN_SCREENED = 1.02  # less than that, in one trial, is not worth confirming
LEAST_SCREENED = 4  # trials: two candidates between baselines
RESERVED_PAIRS = 4  # of the final verdict


class OutOfBudgetError(Exception):
    """The time or the number of trials is used up; what was found so far stands."""


class Tuner:
    """One tuning. `tune` is the loop; the other methods are its stages, in their order."""

    def __init__(self, runner: Runner, options: TuneOptions, say: Say, calibration: Calibration | None = None) -> None:
        self.runner = runner
        self.options = options
        self.say = say
        self.calibration = calibration
        self.objective: Objective = options.objective or "step_s"
        self.num_steps = options.num_steps or FIRST_STEPS
        self.applied: list[Change] = []
        self.confirmed: list[TunedChange] = []
        self.tried: list[Tried] = []
        self.baselines: list[TrialResult] = []  # of the job as it came
        self.current_trials: list[TrialResult] = []  # of what is on now
        self.floor: NoiseFloor | None = None
        self.first: Profiled | None = None
        self.bounds: tuple[Bound, ...] = ()
        self.notes: list[str] = []
        self._began = time.monotonic()
        self._round = 0
        self._last_pairs: list[Pair] = []
        self._against_original: Verdict | None = None  # of the first set that was adopted
        self.predictions: dict[str, Prediction] = {}  # by the change's name, of this round
        self._profiled: Profiled | None = None  # of what is on now
        self._situation: Situation | NoPrediction | None = None  # of this round
        self._refused: set[str] = set()  # names of changes that are not tried again

    def tune(self) -> TuneResult:
        why_ended = "no change is left that promises 1 % or more"
        verdict = None
        try:
            self.measure_noise()
            while self._round < self.options.max_rounds:
                self._round += 1
                if not self.improve():
                    break
            else:
                why_ended = f"{self._round} rounds were made, the most that are"
        except OutOfBudgetError as end:
            why_ended = str(end)
        if self.applied:
            verdict = self._against_original if self._is_confirmed_against_original() else self.final_verdict()
        return self.result(verdict, why_ended)

    def _spent_s(self) -> float:
        """Of the budget: without the time in a queue."""
        return time.monotonic() - self._began - self.runner.waited_s

    # The stages.

    def measure_noise(self) -> None:
        """Trials of the job as it came: how much they differ decides how long a trial must be."""
        self.say(f"noise floor: {NUM_FLOOR_TRIALS} trials of the job as it is")
        for _ in range(NUM_FLOOR_TRIALS):
            trial = self._trial(NOTHING)
            if not trial.is_complete:
                raise InputError(
                    f"the command itself does not succeed: {trial.problem}",
                    hint=f"its output is in {self.runner.out}/runs/trial-{trial.index:03d}/output.log",
                )
            self.baselines.append(trial)
        self.current_trials = list(self.baselines)
        self.objective = self._objective()
        self.floor = noise_floor(self.baselines, objective=self.objective)
        if self.options.num_steps is None:
            plan = plan_trials(
                self.floor, effect=WANTED_EFFECT, min_effect=self.options.min_effect, max_steps=MAX_STEPS
            )
            affordable = int(MAX_TRIAL_STEPS_S / self.floor.step_s)
            self.num_steps = max(min(plan.num_steps, affordable, MAX_STEPS), MIN_STEPS)
            self.say(f"noise floor: {plan.reason}")
        self._warn_of_budget()

    def _warn_of_budget(self) -> None:
        usual_s = self.runner.usual_s or 0.0
        left_s = self.options.budget_s - self._spent_s()
        needed_s = (LEAST_SCREENED + 2 * RESERVED_PAIRS) * usual_s
        if left_s < needed_s:
            self.say(
                f"a trial takes {usual_s:.0f} s, and {left_s:.0f} s are left: to screen and confirm a change takes at"
                f" least {needed_s:.0f} s"
            )

    def improve(self) -> bool:
        """One round: whether another one may bring more, as something was adopted, or candidates are left."""
        try:
            profiled = self._profiled or self.runner.profile(self._now())
        except FlatoutError as error:
            if not self.applied:
                raise
            self.notes.append(f"what is on now was not profiled again: {error}")
            return False
        if self.first is None:
            self.first = profiled
            self.bounds = bounds(profiled)
            for finding in profiled.done.diagnosis.findings:
                self.say(f"finding: {finding.name}, {finding.share_of_step:.0%} of the step: {finding.title}")
        chosen = self.choose(profiled)
        if not chosen:
            return False
        screened = self.screen(chosen, profiled.facts)
        is_adopted = bool(screened) and self.confirm(screened, profiled.facts)
        self._profiled = None if is_adopted else profiled  # of a job that did not change
        if not is_adopted:
            self._refused.update(change.name for change in chosen)
        return True

    def choose(self, profiled: Profiled) -> list[Change]:
        """Candidates for what costs most now, those that promise most first, each knob with few values."""
        own = [
            change
            for text in self.options.knobs
            for change in knob_changes(
                parse_knob(text), self.runner.command, profiled.facts, self.options.allowed_safety
            )
        ]
        is_for_memory = self.objective == "peak_memory_bytes"
        found = candidates(
            profiled.done.diagnosis,
            profiled.facts,
            self.options.allowed_safety,
            applied=self.applied,
            own=own,
            for_memory=is_for_memory,
        )
        found = [change for change in found if change.name not in self._refused]
        if not is_for_memory:  # a replay tells of time
            found = self._predicted(found, profiled)
        return spread_over_knobs(found, min(self.options.max_screened, self._num_affordable()))

    def _num_affordable(self) -> int:
        """How many candidates can be screened so that there is time left to confirm the best."""
        usual_s = self.runner.usual_s or 1.0
        left_s = self.options.budget_s - self._spent_s()
        num_trials = left_s / usual_s - 2 * RESERVED_PAIRS * (2 if self.applied else 1) - 2
        if self.options.max_trials is not None:
            num_trials = min(num_trials, self.options.max_trials - self.runner.num_trials - 2 * RESERVED_PAIRS - 2)
        return max(int(num_trials * CANDIDATES_BETWEEN_BASELINES / (CANDIDATES_BETWEEN_BASELINES + 1)), 2)

    def _predicted(self, found: Sequence[Change], profiled: Profiled) -> list[Change]:
        """In the order of what a replay of the trace with each says it brings; where it says nothing, by its bound."""
        step_s = profiled.recording.measured.step_s
        made = predict_all(
            profiled.done.job, found, profiled.facts, untraced_step_s=step_s, calibration=self.calibration
        )
        self.predictions = {name: one for name, one in made.items() if isinstance(one, Prediction)}
        self._situation = situation_of(profiled.done.job, profiled.facts, step_s)

        def promise(change: Change) -> float:
            prediction = self.predictions.get(change.name)
            if prediction is None:
                return change.predicted_speedup or 1.0
            return min(prediction.high, prediction.bound or prediction.high)

        return sorted(found, key=lambda change: -promise(change))

    def screen(self, chosen: Sequence[Change], facts: JobFacts) -> list[tuple[ChangeSet, float]]:
        """A trial each, with baselines between them; those that look better, best first, and all of them together."""
        self.say(f"round {self._round}: screening {', '.join(change.name for change in chosen)}")
        trials = [self._fresh_baseline()]
        sets: dict[str, ChangeSet] = {}
        for number, change in enumerate(chosen):
            made = self._with([change], facts)
            if made is None:
                continue
            trial = self._trial(made)
            if self._is_fit(trial, made, [change]):
                trials.append(trial)
                sets[made.name] = made
            if number % CANDIDATES_BETWEEN_BASELINES == CANDIDATES_BETWEEN_BASELINES - 1:
                trials.append(self._fresh_baseline())
        if not sets or not any(trial.is_complete and trial.arm == BASELINE for trial in trials):
            return []
        by_change = {self._last_of(made): made for made in sets.values()}
        estimates = {one.arm: one.speedup for one in screen(trials, objective=self.objective)}
        good = [(made, estimates[name]) for name, made in sets.items() if estimates[name] >= MIN_SCREENED]
        good.sort(key=lambda pair: -pair[1])
        for name, made in by_change.items():
            if estimates[made.name] < MIN_SCREENED:
                self._note(
                    made,
                    "not better",
                    f"{estimates[made.name]:.2f}x in a trial of its own",
                    screened=estimates[made.name],
                )
                self._refused.add(name)
        together = self._together([next(c for c in chosen if c.name == self._last_of(made)) for made, _ in good], facts)
        if together is not None:
            trial = self._trial(together)
            if self._is_fit(trial, together, together.changes[len(self.applied) :]):
                trials += [trial, self._fresh_baseline()]
                speedup = next(s.speedup for s in screen(trials, objective=self.objective) if s.arm == together.name)
                good.append((together, speedup))
                good.sort(key=lambda pair: -pair[1])
        return good

    def confirm(self, screened: Sequence[tuple[ChangeSet, float]], facts: JobFacts) -> bool:
        """The best on fresh pairs against what is on now; the next best where it does not hold."""
        for made, estimate in screened[:2]:
            added = made.changes[len(self.applied) :]
            self.say(f"round {self._round}: confirming {' + '.join(change.name for change in added)} ({estimate:.2f}x)")
            verdict, gate, is_cut = self._pairs(made, self._now())
            if not gate.is_passed:
                self._note(made, "unsafe", gate.reason, screened=estimate, verdict=verdict)
                self._refused.update(change.name for change in added)
            elif verdict.verdict == "better":
                self._note(made, "adopted", gate.reason, screened=estimate, verdict=verdict)
                if not self.applied:
                    self._against_original = verdict
                alone = verdict if len(added) == 1 else None
                self.confirmed += [
                    TunedChange(change=change, verdict=alone, prediction=self.predictions.get(change.name))
                    for change in added
                ]
                self.applied = list(made.changes)
                self.current_trials = [pair.candidate for pair in self._last_pairs if pair.candidate.is_complete]
                return True
            else:
                self._note(made, "not confirmed", verdict.reason, screened=estimate, verdict=verdict)
                if len(added) == 1:
                    self._refused.add(added[0].name)
            if is_cut:
                raise OutOfBudgetError("the budget was used up while a change was being confirmed")
        return False

    def final_verdict(self) -> Verdict | None:
        """All that was adopted against the job as it came, on pairs that chose nothing."""
        self.say(f"final: {self._now().name} against the job as it came")
        verdict, gate, _ = self._pairs(self._now(), NOTHING, is_final=True)
        self.current_trials = [pair.candidate for pair in self._last_pairs if pair.candidate.is_complete]
        if not gate.is_passed:
            self.notes.append(f"the final set failed a gate: {gate.reason}")
            self.applied, self.confirmed = [], []
            return None
        return verdict

    def _is_confirmed_against_original(self) -> bool:
        """Whether what is on was confirmed against the job as it came, on fresh pairs: then that verdict is final."""
        return sum(one.outcome == "adopted" for one in self.tried) == 1

    # Trials.

    def _trial(self, changes: ChangeSet) -> TrialResult:
        self._check_trials(2 * RESERVED_PAIRS if self.applied else 0)
        self._check_time(self.runner.usual_s or 0.0)
        return self.runner.trial(changes, self.num_steps)

    def _check_trials(self, num_reserved: int) -> None:
        most = self.options.max_trials
        if most is not None and self.runner.num_trials + num_reserved >= most:
            kept = f" but {num_reserved}, which are kept for the final verdict," if num_reserved else ""
            raise OutOfBudgetError(f"all {most} trials{kept} were made")

    def _check_time(self, needed_s: float) -> None:
        reserved_s = 2 * RESERVED_PAIRS * (self.runner.usual_s or 0.0) if self.applied else 0.0
        if self._spent_s() + needed_s + reserved_s > self.options.budget_s:
            raise OutOfBudgetError(f"the budget of {self.options.budget_s:.0f} s is used up")

    def _current_trial(self) -> TrialResult:
        """A trial of what is on now, as the baseline of what is tried on top."""
        trial = self._trial(self._now())
        if trial.is_complete:
            self.current_trials.append(trial)
        return msgspec.structs.replace(trial, arm=BASELINE)

    def _fresh_baseline(self) -> TrialResult:
        """To screen beside: speed drifts, peak memory does not, and there the last trial of what is on will do."""
        if self.objective == "peak_memory_bytes" and self.current_trials:
            return msgspec.structs.replace(self.current_trials[-1], arm=BASELINE)
        return self._current_trial()

    def _pairs(
        self, candidate: ChangeSet, against: ChangeSet, *, is_final: bool = False
    ) -> tuple[Verdict, GateResult, bool]:
        """Pairs in the order AB BA ..., until the verdict is final or hopeless; True: cut short."""
        fresh_after = self.runner.num_trials - 1
        pairs: list[Pair] = []
        gate = GateResult(is_passed=True, reason="")
        is_last = is_cut = False
        while True:
            verdict = judge(
                pairs,
                objective=self.objective,
                floor=self.floor,
                min_effect=self.options.min_effect,
                fresh_after=fresh_after,
                is_last=is_last,
            )
            if is_last or verdict.next_look is None or (pairs and not is_worth_more_pairs(verdict)):
                return verdict, gate, is_cut
            try:
                order = (against, candidate) if len(pairs) % 2 == 0 else (candidate, against)
                first, second = (self._pair_trial(changes, is_final) for changes in order)
            except OutOfBudgetError:
                is_last = is_cut = True
                continue
            baseline, tried = (first, second) if order[0] is against else (second, first)
            if baseline.is_complete and not against.changes:
                self.baselines.append(baseline)
            elif baseline.is_complete:
                self.current_trials.append(baseline)
            self._last_pairs = pairs
            pairs.append(Pair(baseline=msgspec.structs.replace(baseline, arm=BASELINE), candidate=tried))
            gate = self._gate(tried, candidate)
            if not gate.is_passed or sum(not pair.candidate.is_complete for pair in pairs) > 2:
                is_last = True

    def _pair_trial(self, changes: ChangeSet, is_final: bool) -> TrialResult:
        if not is_final:
            return self._trial(changes)
        self._check_trials(0)
        if self._spent_s() > self.options.budget_s + 2 * RESERVED_PAIRS * (self.runner.usual_s or 0.0):
            raise OutOfBudgetError("the budget is used up")
        return self.runner.trial(changes, self.num_steps)

    def _is_fit(self, trial: TrialResult, made: ChangeSet, added: Sequence[Change]) -> bool:
        """Whether a screened trial may go on; what it failed by is noted."""
        outcome: TriedOutcome | None = None
        reason = trial.problem
        if trial.outcome == "out_of_memory":
            outcome = "out of memory"
        elif not trial.is_complete:
            outcome = "not applied" if trial.problem.startswith("not applied") else "failed"
        elif (absent := missing(trial, self.objective)) is not None:
            outcome, reason = "failed", absent
        else:
            gate = self._gate(trial, made)
            if not gate.is_passed:
                outcome, reason = "unsafe", gate.reason
        if outcome is None:
            return True
        self._note(made, outcome, reason)
        self.say(f"{made.name}: {outcome}: {reason}")
        self._refused.update(change.name for change in added)
        return False

    def _gate(self, trial: TrialResult, made: ChangeSet) -> GateResult:
        """Against the job as it came, whatever is on now."""
        if not trial.is_complete:
            return GateResult(is_passed=True, reason=trial.problem)
        if trial.wrong_data is not None:
            return GateResult(is_passed=False, reason=trial.wrong_data)
        losses = check_losses(trial, self.baselines, made)
        if not losses.is_passed:
            return losses
        memory = check_memory(trial, self.baselines)
        return memory if not memory.is_passed else losses

    # Sets of changes.

    def _now(self) -> ChangeSet:
        return combine(self.applied, self.first.facts if self.first is not None else None)

    def _with(self, added: Sequence[Change], facts: JobFacts) -> ChangeSet | None:
        """What is on now and these; None where they do not fit together."""
        wanted = [*self.applied, *added]
        if next(conflicts(wanted, facts), None) is not None:
            return None
        return combine(wanted, facts)

    def _together(self, good: Sequence[Change], facts: JobFacts) -> ChangeSet | None:
        """All good ones that fit together, best first; None where that is no more than the best alone."""
        chosen: list[Change] = []
        for change in good:
            if self._with([*chosen, change], facts) is not None:
                chosen.append(change)
        return self._with(chosen, facts) if len(chosen) > 1 else None

    @staticmethod
    def _last_of(made: ChangeSet) -> str:
        return made.changes[-1].name

    def _objective(self) -> Objective:
        if self.options.objective is not None:
            absent = missing(self.baselines[0], self.options.objective)
            if absent is not None:
                raise InputError(f"the job cannot be tuned for that: {absent}", hint="choose another --objective")
            return self.options.objective
        return "s_per_sample" if self.baselines[0].samples_per_step else "step_s"

    def _note(
        self,
        made: ChangeSet,
        outcome: TriedOutcome,
        reason: str,
        *,
        screened: float | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        added = made.changes[len(self.applied) :]
        alone = added[0] if len(added) == 1 else None
        self.tried.append(
            Tried(
                name=" + ".join(change.name for change in added),
                changes=tuple(change.name for change in added),
                safety=max((change.safety for change in added), key=("exact", "rounding", "semantic").index),
                round=self._round,
                bound=alone.predicted_speedup if alone is not None else None,
                predicted_from=alone.predicted_from if alone is not None else (),
                prediction=self._prediction_of(added),
                outcome=outcome,
                screened=screened,
                verdict=verdict,
                reason=reason,
            )
        )

    def _prediction_of(self, added: Sequence[Change]) -> Prediction | None:
        """Of several changes from one replay with all of them: they share what they save."""
        if len(added) == 1:
            return self.predictions.get(added[0].name)
        if self._situation is None or isinstance(self._situation, NoPrediction):
            return None
        made = predict_together(self._situation, added, self.calibration)
        return made if isinstance(made, Prediction) else None

    def result(self, verdict: Verdict | None, why_ended: str) -> TuneResult:
        first = self.first
        facts = first.facts if first is not None else JobFacts()
        before = self.baselines[0] if self.baselines else None
        now = self.current_trials if self.applied else self.baselines
        device = first.done.diagnosis.job.device if first is not None else None
        machine = {"device": device or facts.device, "num_ranks": facts.num_ranks, "num_hosts": facts.num_hosts}
        return TuneResult(
            tuning=Tuning(
                command=self.runner.command,
                changes=self._now(),
                each=tuple(self.confirmed),
                verdict=verdict,
                num_trials=self.runner.num_trials,
                machine={name: str(value) for name, value in machine.items() if value is not None},
                versions={n: v for n, v in (("torch", facts.torch), ("nccl", facts.nccl)) if v is not None},
                date=datetime.now(UTC).isoformat(timespec="seconds"),
            ),
            objective=self.objective,
            allowed_safety=self.options.allowed_safety,
            tried=tuple(self.tried),
            bounds=self.bounds,
            floor=self.floor,
            num_steps=self.num_steps,
            baseline_step_s=_mean_step_s(self.baselines),
            tuned_step_s=_mean_step_s(now),
            baseline_peak_memory_bytes=before.peak_memory_bytes if before is not None else None,
            tuned_peak_memory_bytes=now[-1].peak_memory_bytes if now else None,
            num_trials=self.runner.num_trials,
            num_resumed=self.runner.num_resumed,
            took_s=time.monotonic() - self._began,
            why_ended=why_ended,
            notes=(*self.notes, *output_notes(self.runner.outputs)),
        )


def bounds(profiled: Profiled) -> tuple[Bound, ...]:
    """What mending each finding wholly would bring."""
    diagnosis = profiled.done.diagnosis
    return tuple(
        Bound(finding=finding.name, speedup=1 / (1 - min(finding.share_of_step, 0.99)))
        for finding in diagnosis.findings
    )


def spread_over_knobs(found: Sequence[Change], most: int) -> list[Change]:
    """The first value of each knob, then the second of each, ..., in the order of what they promise."""
    depth: dict[str, int] = {}
    ordered = []
    for place, change in enumerate(found):
        depth[change.knob.name] = depth.get(change.knob.name, -1) + 1
        ordered.append((depth[change.knob.name], place, change))
    return [change for _, _, change in sorted(ordered, key=lambda entry: entry[:2])][:most]


def _mean_step_s(trials: Sequence[TrialResult]) -> float | None:
    import math

    costs = [trial_cost(trial, "step_s").without_spikes for trial in trials if trial.is_complete]
    return math.exp(sum(costs) / len(costs)) if costs else None


def is_better(result: TuneResult) -> bool:
    return result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"
