"""Plan a round: profile the job with the applied changes, and choose what to try."""

from __future__ import annotations

from flatout.diagnose.explain import explanation
from flatout.records.tuning import TuningEnd
from flatout.report.tuning_bounds import profile_finding_sentence, trials_finding_sentence
from flatout.tune.budget import used_up
from flatout.tune.choose import choose
from flatout.tune.profile_job import profile_job
from flatout.tune.profiled import Profiled
from flatout.tune.progress import Progress, Round, Setup, StoppedError
from flatout.tune.trial_findings import is_seen_only_by_trials, with_evidence

FEWEST_OF_ROUND = 4  # trials without which a further round shows nothing: a candidate, and two more with one baseline


def plan_round(setup: Setup, progress: Progress, number: int) -> tuple[Progress, Round]:
    """Return the candidates of the next round. Raises StoppedError if there is none, or not enough time for it."""
    if number > 1:
        _check_time(setup, progress)
    progress, profiled = profile_job(setup, progress)
    profiled = with_evidence(profiled, progress.evidence, progress.applied.changes)
    if number == 1:
        _say_findings(setup, profiled)
    progress, this_round = choose(setup, progress, number, profiled)
    if not this_round.candidates:
        raise StoppedError(progress, TuningEnd(ended_by="no_candidates"))
    return progress, this_round


def _say_findings(setup: Setup, profiled: Profiled) -> None:
    for finding in profiled.done.diagnosis.findings:
        if is_seen_only_by_trials(finding):
            setup.say(trials_finding_sentence(finding))
        else:
            setup.say(profile_finding_sentence(finding, explanation(finding.name).summary))


def without_tried(progress: Progress, this_round: Round) -> Progress:
    """Return the progress after a round that adopted nothing: what had its turn is not chosen again."""
    outcomes = progress.outcomes
    had_their_turn = []
    for change in this_round.candidates:
        change_set = progress.applied.with_added([change], this_round.facts)
        if change_set is None or progress.evidence.has(change_set):
            had_their_turn.append(change.name)
    return progress.with_outcomes(outcomes.excluding(had_their_turn))


def _check_time(setup: Setup, progress: Progress) -> None:
    """Raise StoppedError if the trials left are too few to judge another candidate."""
    num_profiles = progress.applied.changes.name not in progress.profiles
    end = used_up(setup, progress, num_reserved=FEWEST_OF_ROUND - 1 + num_profiles)
    if end is not None:
        raise StoppedError(progress, end)
