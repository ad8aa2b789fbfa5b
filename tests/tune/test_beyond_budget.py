"""A candidate whose gain the budget is too small to show stays open: it is not said that it does not help."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.tune.simulated import FACTS, STEP_S, SimulatedRunner
from tests.tune.test_runner import change

from flatout.records.trial import TrialResult
from flatout.records.verdict import Prospect, Verdict
from flatout.tune import arms
from flatout.tune.confirm import confirm
from flatout.tune.options import TuneOptions
from flatout.tune.progress import NOTHING, Progress, Round, Setup, Trial, TuningEvidence
from flatout.tune.screening import Candidate, Screening

CANDIDATE = change("a")
STEPS_S = (0.249, 0.251)  # of two baselines on a busy machine
NUM_SETS = 6
HOPELESS = Prospect(num_trials=2, num_fresh=1, total_fresh=1, better=0.05, worse=0.0, equivalent=0.0)


def trial(index: int, step_s: float, arm: str = "baseline") -> TrialResult:
    return TrialResult(index=index, arm=arm, outcome="completed", step_s=(step_s,) * 20, losses=(1.0,) * 20)


def confirmed(speedup: float) -> tuple[Progress, SimulatedRunner]:
    """Confirm a candidate with this speedup in its one trial, with two trials left."""
    runner = SimulatedRunner({})
    runner.num_trials, runner.usual_s = 3, 1.0
    made = [Trial(changes=NOTHING, result=trial(index, step_s)) for index, step_s in enumerate(STEPS_S)]
    made.append(Trial(changes=CANDIDATE, result=trial(2, STEP_S / speedup, CANDIDATE.name)))
    progress = Progress(objective="step_s", num_steps=20, evidence=TuningEvidence(trials=tuple(made)))
    setup = Setup(
        runner=runner,  # type: ignore[arg-type]
        options=TuneOptions(max_trials=5, budget_s=1e9),
        say=lambda line: None,
    )
    screening = Screening(candidates=(Candidate(change_set=CANDIDATE, estimate=speedup),), num_tried=NUM_SETS)
    this_round = Round(number=1, facts=FACTS, candidates=CANDIDATE.changes)
    return confirm(setup, progress, this_round, screening), runner


@pytest.mark.parametrize(("probability", "is_open"), [(0.91, True), (0.89, False), (None, False)])
def test_what_probably_gains_stays_open_where_no_trial_that_is_left_would_show_it(
    probability: float | None, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tuning said "no change was shown to help" of 1.27x, with 108 s of 240 s left: too few for a verdict."""
    monkeypatch.setattr(arms, "prospects", lambda *_: (HOPELESS,))
    judge = arms.judge_arms

    def judged(*trials: Any, **asked: Any) -> Verdict:
        return msgspec.structs.replace(judge(*trials, **asked), probability_better=probability)

    monkeypatch.setattr(arms, "judge_arms", judged)
    progress, runner = confirmed(1.27)
    assert runner.made == []
    if is_open:
        (chosen,) = progress.outcomes.pending.values()
        assert (chosen.outcome, chosen.screened) == ("not reached", 1.27)
        assert "unlikely to show a gain" in chosen.reason
    else:
        (tried,) = progress.outcomes.tried
        assert tried.outcome == "not better" and not progress.outcomes.pending
