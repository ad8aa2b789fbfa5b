"""What a tuning can show in its budget: how long a trial takes, and how many a gain of a certain size takes.

Before the first trial, the budget is only put in relation to what is usual. After the first one it is known how long a
trial takes, and after the noise floor how much the job's runs differ.
"""

from __future__ import annotations

import math
from statistics import median

from flatout.records.tuning import GainSought, Outlook
from flatout.tune.budget import num_left
from flatout.tune.progress import Progress, Setup
from flatout.verdict.prospect import detectable_effect, trials_for

EFFECTS = (1.0, 0.3, 0.05)  # 2x, 30 % and 5 %
USUAL_SD = 0.03  # run-to-run, until it is measured
LEAST_SD, GRID = 0.005, 1.25
NUM_BASELINES = 2
NUM_SCREENED = 2
NUM_PROFILES = 1


def first_outlook(setup: Setup) -> Outlook:
    """Return what the budget allows before anything is measured."""
    return Outlook(budget_s=setup.options.budget_s, run_sd=USUAL_SD, is_assumed=True, gains=_gains(USUAL_SD))


def outlook(setup: Setup, progress: Progress) -> Outlook:
    """Return what the budget allows, given the trials so far."""
    known_sd = progress.trial_sd
    run_sd = USUAL_SD if known_sd is None else _rounded(known_sd)
    baselines = progress.evidence.baselines
    measured_s = median(sum(trial.step_s) for trial in baselines) if baselines else None
    usual_s = setup.runner.usual_s
    num_profiles = 0 if progress.profiles else NUM_PROFILES
    num_affordable = len(progress.evidence.trials) + max(num_left(setup) - num_profiles, 0)
    return Outlook(
        budget_s=setup.options.budget_s,
        trial_s=usual_s,
        measured_s=measured_s,
        num_affordable=num_affordable,
        run_sd=run_sd,
        is_assumed=known_sd is None,
        gains=_gains(run_sd),
        detectable=detectable_effect(run_sd, num_affordable, num_baselines=NUM_BASELINES, num_screened=NUM_SCREENED),
    )


def _rounded(run_sd: float) -> float:
    """Return the nearest of a few spreads: a forecast from three trials is no more precise than that."""
    return float(LEAST_SD * GRID ** max(round(math.log(max(run_sd, LEAST_SD) / LEAST_SD, GRID)), 0))


def _gains(run_sd: float) -> tuple[GainSought, ...]:
    return tuple(
        GainSought(
            effect=effect,
            num_trials=trials_for(effect, run_sd, num_baselines=NUM_BASELINES, num_screened=NUM_SCREENED),
        )
        for effect in EFFECTS
    )
