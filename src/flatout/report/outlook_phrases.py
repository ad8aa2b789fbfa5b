"""Wording of what a tuning can show in its budget, and of what more trials would show."""

from __future__ import annotations

from flatout import units
from flatout.records.tuning import GainSought, MoreTrials, Outlook
from flatout.report.phrases import counted

_DOUBLE = 1.0


def first_outlook_sentence(outlook: Outlook) -> str:
    """Say before the first trial how long a trial may take for what is sought."""
    parts = []
    for gain in outlook.gains:
        if gain.num_trials is not None:
            seconds = outlook.budget_s / (gain.num_trials + 1)  # a profile takes about as long as a trial
            parts.append(f"{_gain(gain)} takes {counted(gain.num_trials, 'trial')} of at most {units.seconds(seconds)}")
    return (
        f"within {units.seconds(outlook.budget_s)}, if runs of the job differ by {units.percent(outlook.run_sd)}: "
        + ", ".join(parts)
    )


def trial_sentence(outlook: Outlook) -> str:
    """Say how long a trial takes, by the first one."""
    if outlook.trial_s is None or outlook.measured_s is None:
        return "how long a trial takes is unknown"
    start_s = max(outlook.trial_s - outlook.measured_s, 0.0)
    return (
        f"a trial: {units.seconds(start_s)} to start, {units.seconds(outlook.measured_s)} to measure;"
        f" about {outlook.num_affordable} fit in the budget"
    )


def outlook_sentence(outlook: Outlook) -> str:
    """Say what can be shown within the budget, and what other gains would take."""
    differ = "may differ" if outlook.is_assumed else "differ"
    text = f"runs of the unchanged job {differ} by {units.percent(outlook.run_sd)}: "
    if outlook.detectable is None:
        text += "the budget allows too few trials for a verdict"
    else:
        text += f"the budget shows a gain of {_size(outlook.detectable)} or more"
    return f"{text} ({', '.join(_takes(gain, outlook.trial_s) for gain in outlook.gains)})"


def _takes(gain: GainSought, trial_s: float | None) -> str:
    if gain.num_trials is None:
        return f"{_gain(gain)} cannot be shown"
    seconds = f", {units.seconds(gain.num_trials * trial_s)}" if trial_s else ""
    return f"{_gain(gain)} takes {counted(gain.num_trials, 'trial')}{seconds}"


def _gain(gain: GainSought) -> str:
    return "2x" if gain.effect == _DOUBLE else units.percent(gain.effect)


def _size(effect: float) -> str:
    return f"{1 + effect:.1f}x" if effect >= _DOUBLE else units.percent(effect)


def more_sentence(more: MoreTrials) -> str:
    """Say what more trials of a change that is undecided would bring."""
    trials = counted(more.num_trials, "more trial")
    return f"{trials} ({units.seconds(more.seconds)}) would show it with {probability(more.probability)} probability"


def probability(value: float) -> str:
    """Format a probability; one that rounds to 100 % is not certain."""
    return "more than 99 %" if value > 0.99 else f"{value:.0%}".replace("%", " %")
