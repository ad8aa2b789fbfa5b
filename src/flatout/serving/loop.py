"""The closed loop on a server: untouched starts -> causes -> changes -> screening -> interleaved trials -> again.

In: a backend, a plan, options. Out: a `Found`, from which the result is made. Each round takes the causes of the server
as it is now, tries the knobs that answer them once each, and compares the best with the present server in turn until
the verdict stands. A budget that is too short for all of them goes to the first that is clearly better. A change whose
answers differ, fail, are cut or are shorter is unsafe, whatever its speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from flatout.records.change import SAFETIES, Safety
from flatout.records.serving import (
    AnswerGate,
    Cause,
    CauseName,
    ServerChange,
    ServerTrial,
    ServingObjective,
    TriedArm,
    TuningEndedBy,
)
from flatout.records.trial import BASELINE
from flatout.records.verdict import Verdict
from flatout.serving.answers import gate
from flatout.serving.budget import TrialBudget
from flatout.serving.candidates import ServerMachine, ServingCandidate, candidates
from flatout.serving.causes import find_causes
from flatout.serving.judge import Judge, mean_cost
from flatout.serving.trial import ServerBackend, ServerTrialSetup, run_trial, told
from flatout.serving.words import ServerCommand, changed

Say = Callable[[str], None]
FIRST_BASELINES = 2
MOST_SCREENED = 6  # candidates of one round
MOST_CONFIRMED = 2  # candidates of one round that are compared in turn
MOST_ROUNDS = 4
BETWEEN_BASELINES = 3  # candidates that are screened between two trials of the present server
LEAST_CANDIDATES = 3  # trials of a candidate before it is given up as unlikely to be better
MIN_SCREENED = 1.01  # a candidate whose one trial gained less is not compared further
CONFIRMING = 4  # trials that a short budget keeps for comparing the best candidate in turn
CLEAR_GAIN = 1.5  # of one trial: a short budget goes to comparing such a candidate, and the others wait


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How far a tuning may go."""

    objective: ServingObjective = "goodput"
    allowed: Safety = "exact"
    budget_s: float = 1800.0
    max_trials: int | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuning found."""

    trials: tuple[ServerTrial, ...]
    tried: tuple[TriedArm, ...]
    causes: tuple[Cause, ...]
    causes_left: tuple[Cause, ...]
    adopted: tuple[ServerChange, ...]
    adopted_arm: str
    verdict: Verdict | None
    ended_by: TuningEndedBy


class _StopError(Exception):
    def __init__(self, ended_by: TuningEndedBy) -> None:
        super().__init__(ended_by)
        self.ended_by: TuningEndedBy = ended_by


class _Arm(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    changes: tuple[ServerChange, ...] = ()
    cause: CauseName | None = None

    @property
    def safety(self) -> Safety:
        return max((change.safety for change in self.changes), key=SAFETIES.index, default="exact")


_UNTOUCHED = _Arm(name=BASELINE)


class BaselineError(Exception):
    """The untouched server does not run: there is nothing to tune."""


class Loop:
    """One tuning of a server."""

    def __init__(
        self,
        backend: ServerBackend,
        plan: ServerTrialSetup,
        options: ServingOptions,
        command: ServerCommand,
        machine: ServerMachine,
        say: Say,
        before: Sequence[ServerTrial] = (),
        recorded: Sequence[ServerTrial] = (),
        keep: Callable[[ServerTrial], None] = lambda trial: None,
    ) -> None:
        """`before` are trials of this start, `recorded` those after them of a tuning that is resumed.

        `keep` is called with each new trial as it ends.
        """
        self._backend, self._plan, self._options = backend, plan, options
        self._command, self._machine, self._say = command, machine, say
        self._judge = Judge(options.objective)
        self._trials: list[ServerTrial] = []
        self._tried: dict[str, TriedArm] = {}
        self._chosen_by: dict[str, tuple[int, frozenset[int]]] = {}  # arm -> number screened, trials that chose it
        self._rounding: set[str] = set()  # arms of the class exact whose answers differ as by rounding
        self._applied = _UNTOUCHED
        self._ended_by: TuningEndedBy = "all_tried"
        self._recorded, self._write = list(recorded), keep
        now_s = asyncio.get_running_loop().time
        self._budget = TrialBudget(options.budget_s, options.max_trials, trials=self._trials, now_s=now_s)
        self._is_resuming = bool(recorded)
        for trial in before:
            self._keep(trial)

    async def run(self) -> Found:
        """Tune until no cause or no knob is left, or the budget ends."""
        try:
            while len(self._of(_UNTOUCHED)) < FIRST_BASELINES:
                await self._baseline()
            for _ in range(MOST_ROUNDS):
                if not await self._round():
                    break
            await self._claim_together()
        except _StopError as stop:
            self._ended_by = stop.ended_by
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._trials or task is None:
                raise
            task.uncancel()  # Ctrl-C ends the tuning with what was found so far
            self._ended_by = "interrupted"
        return self._found()

    async def _round(self) -> bool:
        """Try the changes that answer the present causes; return whether one was adopted."""
        if self._options.objective == "goodput" and self._serves_everything():
            self._ended_by = "within_limits"
            return False
        causes = self._causes(self._applied)
        if not causes:
            self._ended_by = "no_cause"
            return False
        offered = self._offered(causes)
        if not offered:
            has_changed = self._applied is not _UNTOUCHED or bool(self._tried)
            self._ended_by = "all_tried" if has_changed else "no_knob"
            return False
        num_tried = 0
        while num_tried < len(offered):
            screened, num_run = await self._screen(offered[num_tried:], num_before=num_tried)
            num_tried += num_run
            for arm in screened[:MOST_CONFIRMED]:
                if await self._confirm(arm):
                    self._applied = self._labelled(arm)
                    return True
        return False

    def _serves_everything(self) -> bool:
        """Whether every trial of the present server was within the limits at every rate."""
        return all(point.is_within for trial in self._of(self._applied) for point in trial.points)

    def _offered(self, causes: Sequence[Cause]) -> list[_Arm]:
        now = changed(self._command, self._applied.changes)
        found = candidates(self._plan.engine, now, causes, machine=self._machine, allowed=self._options.allowed)
        arms = [self._with(candidate) for candidate in found]
        return [arm for arm in arms if arm.name not in self._tried][:MOST_SCREENED]

    def _with(self, candidate: ServingCandidate) -> _Arm:
        """Return the applied changes with one more, which takes the place of another value of its knob."""
        kept = tuple(change for change in self._applied.changes if change.knob != candidate.change.knob)
        changes = (*kept, candidate.change)
        return _Arm(name=" + ".join(change.name for change in changes), changes=changes, cause=candidate.cause)

    async def _screen(self, arms: Sequence[_Arm], *, num_before: int) -> tuple[list[_Arm], int]:
        """Run arms once each; return those that are safe and look better, the best first, and how many were run.

        `num_before` arms were run before in this round: any of all these might have been chosen.
        """
        affordable = self._budget.affordable()
        num_wanted = len(arms) + (len(arms) - 1) // BETWEEN_BASELINES + CONFIRMING
        is_short = affordable < num_wanted
        most = max(affordable - CONFIRMING, 1) if is_short else len(arms)
        num_screened = num_before + len(arms[:most])
        run: list[_Arm] = []
        for number, arm in enumerate(arms[:most]):
            if number and self._was_passed_over(arm):
                break
            if number and number % BETWEEN_BASELINES == 0:
                await self._trial(self._applied)
            trial = await self._try(arm)
            run.append(arm)
            self._chosen_by[arm.name] = (num_screened, frozenset({trial.index}))
            if is_short and self._looks_better(arm, CLEAR_GAIN):
                break
        better = [arm for arm in run if self._looks_better(arm, MIN_SCREENED)]
        return sorted(better, key=lambda arm: -(self._screened(arm) or 0.0)), len(run)

    def _looks_better(self, arm: _Arm, least: float) -> bool:
        """Whether the arm is safe, and gained at least this ratio in its trials so far."""
        ratio = self._screened(arm)
        return self._tried[arm.name].gate.outcome == "passed" and ratio is not None and ratio >= least

    def _was_passed_over(self, arm: _Arm) -> bool:
        """Whether the tuning that is resumed ran another arm at this place, because its budget was short."""
        others = [trial.arm for trial in self._recorded if trial.arm != self._applied.name]
        return bool(others) and others[0] != arm.name

    async def _try(self, arm: _Arm) -> ServerTrial:
        trial = await self._trial(arm)
        known = self._tried.get(arm.name)
        judged = self._gate(arm, trial)
        if known is not None and known.gate.outcome == "failed":
            judged = known.gate
        self._tried[arm.name] = TriedArm(
            name=arm.name,
            changes=self._labelled(arm).changes,
            cause=arm.cause,
            gate=judged,
            screened=self._screened(arm),
            num_trials=len(self._of(arm)),
            problem=trial.problem,
        )
        return trial

    def _gate(self, arm: _Arm, trial: ServerTrial) -> AnswerGate:
        if not trial.is_complete:
            return AnswerGate(outcome="failed", reason=trial.problem)
        untouched = self._of(_UNTOUCHED)
        judged = gate(trial, untouched, self._labelled(arm).safety)
        if judged.outcome != "failed" or self._options.allowed == "exact" or arm.safety != "exact":
            return judged
        as_rounding = gate(trial, untouched, "rounding")
        if as_rounding.outcome == "passed":
            self._rounding.add(arm.name)
            return as_rounding
        return judged

    def _labelled(self, arm: _Arm) -> _Arm:
        """Return the arm with its last change of the class rounding, if its answers showed that it is not exact."""
        if arm.name not in self._rounding:
            return arm
        last = msgspec.structs.replace(arm.changes[-1], safety="rounding")
        return msgspec.structs.replace(arm, changes=(*arm.changes[:-1], last))

    def _screened(self, arm: _Arm) -> float | None:
        own = mean_cost(self._trials, arm.name, self._options.objective)
        present = mean_cost(self._trials, self._applied.name, self._options.objective)
        return present / own if own is not None and present is not None else None

    async def _confirm(self, arm: _Arm) -> bool:
        """Compare the arm with the present server in turn; return whether it is better, and safe."""
        is_better = False
        try:
            is_better = await self._compare(arm, self._applied)
        except _StopError:
            verdict = self._verdict_on(arm, self._applied, is_last=True)
            self._note(arm, verdict)
            if verdict.verdict == "better" and self._tried[arm.name].gate.outcome == "passed":
                self._applied = self._labelled(arm)
            raise
        return is_better

    async def _compare(self, arm: _Arm, other: _Arm) -> bool:
        """Run the two arms in turn until the verdict stands."""
        while True:
            verdict = self._verdict_on(arm, other)
            self._note(arm, verdict)
            if self._tried[arm.name].gate.outcome != "passed":
                return False
            if verdict.next_analysis is None and verdict.num_candidates:
                break
            if verdict.num_candidates >= LEAST_CANDIDATES and not self._is_worth_more(arm, other):
                break
            if self._trials[-1].arm == arm.name:
                await self._trial(other)
            await self._try(arm)
        return verdict.verdict == "better"

    async def _claim_together(self) -> None:
        """Compare all adopted changes with the untouched server, where they were adopted in several rounds.

        Its trials are from the first round, so another one comes before the trials of the changed server that decide.
        """
        if len(self._applied.changes) < 2:
            return
        num_screened, _ = self._chosen_by[self._applied.name]
        former = frozenset(trial.index for trial in self._of(self._applied))
        self._chosen_by[self._applied.name] = (num_screened, former)
        await self._trial(_UNTOUCHED)
        await self._try(self._applied)
        await self._compare(self._applied, _UNTOUCHED)

    def _verdict_on(self, arm: _Arm, other: _Arm, *, is_last: bool = False) -> Verdict:
        num_screened, chosen_by = self._chosen_by.get(arm.name, (1, frozenset()))
        return self._judge.verdict(
            arm.name, other.name, num_screened=num_screened, chosen_by=chosen_by, is_last=is_last
        )

    def _is_worth_more(self, arm: _Arm, other: _Arm) -> bool:
        num_screened, chosen_by = self._chosen_by.get(arm.name, (1, frozenset()))
        return self._judge.is_worth_more(
            arm.name, other.name, num_screened=num_screened, chosen_by=chosen_by, max_trials=self._budget.affordable()
        )

    def _note(self, arm: _Arm, verdict: Verdict) -> None:
        self._tried[arm.name] = msgspec.structs.replace(self._tried[arm.name], verdict=verdict)

    async def _baseline(self) -> None:
        trial = await self._recalled_or_run(_UNTOUCHED)
        if not trial.is_complete:
            raise BaselineError(trial.problem)

    async def _trial(self, arm: _Arm) -> ServerTrial:
        ended_by = self._budget.ended_by(arm.name)
        if ended_by is not None:
            raise _StopError(ended_by)
        return await self._recalled_or_run(arm)

    async def _recalled_or_run(self, arm: _Arm) -> ServerTrial:
        """Return the next trial of the tuning that is resumed, if it is the arm's, else run one.

        What was decided from the same trials is the same. The first new trial after an interruption is one of the
        present server, so that no candidate is compared with trials of another time only.
        """
        extra = _UNTOUCHED.name if arm is _UNTOUCHED else self._applied.name
        while self._recorded:
            trial = self._recorded.pop(0)
            if trial.arm not in (arm.name, extra):
                self._recorded.clear()
                break
            self._budget.recorded_s += trial.took_s
            self._keep(trial)
            if trial.arm == arm.name:
                return trial
        if self._is_resuming:
            self._is_resuming = False
            if arm.name != self._applied.name:
                await self._run(self._applied)
        return await self._run(arm)

    async def _run(self, arm: _Arm) -> ServerTrial:
        trial = await run_trial(self._backend, self._plan, arm.name, arm.changes, len(self._trials))
        self._keep(trial)
        self._write(trial)
        return trial

    def _keep(self, trial: ServerTrial) -> None:
        self._trials.append(trial)
        self._judge.add(trial)
        self._say(told(trial))

    def _of(self, arm: _Arm) -> list[ServerTrial]:
        return [trial for trial in self._trials if trial.arm == arm.name and trial.is_complete]

    def _causes(self, arm: _Arm) -> tuple[Cause, ...]:
        """Return the causes at the lowest rate that breaks a limit, in the arm's last trial; else at the highest."""
        trials = self._of(arm)
        if not trials:
            return ()
        last = trials[-1]
        place = next((place for place, point in enumerate(last.points) if not point.is_within), len(last.points) - 1)
        words = changed(self._command, arm.changes).words
        return find_causes(last.windows[place], self._plan.engine, words)

    def _found(self) -> Found:
        is_changed = self._applied is not _UNTOUCHED
        return Found(
            trials=tuple(self._trials),
            tried=tuple(self._tried.values()),
            causes=self._causes(_UNTOUCHED),
            causes_left=self._causes(self._applied),
            adopted=self._applied.changes,
            adopted_arm=self._applied.name,
            verdict=self._verdict_on(self._applied, _UNTOUCHED, is_last=True) if is_changed else None,
            ended_by=self._ended_by,
        )
