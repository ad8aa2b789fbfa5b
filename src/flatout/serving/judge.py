"""Judge arms of a server by the statistics of `verdict/`: one cost a trial, and the verdict on a candidate.

In: the trials of a tuning. Out: verdicts, which are those of `flatout tune`: interleaved trials, an error rate that
holds at all looks, and a correction for the choice among candidates. The cost of a trial is the time per good request
at its best rate (`goodput`), the time per token (`tokens/s`), or the energy per token (`energy`).
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.serving import ServerTrial, ServingObjective
from flatout.records.trial import TrialResult
from flatout.records.verdict import Objective, Verdict
from flatout.verdict.arms import judge_arms
from flatout.verdict.prospect import is_worth_more, what_next

_OBJECTIVES: dict[ServingObjective, Objective] = {
    "goodput": "s_per_sample",
    "tokens/s": "s_per_token",
    "energy": "j_per_step",
}


def cost(trial: ServerTrial, objective: ServingObjective) -> float | None:
    """Return the cost of a trial; None if it did not complete, or its energy is unknown.

    A point without a good request counts half of one, because nothing has no logarithm.
    """
    if not trial.is_complete:
        return None
    if objective == "goodput":
        return 1 / max(max(point.num_good, 0.5) / point.took_s for point in trial.points)
    if objective == "tokens/s":
        return 1 / max(max(point.num_tokens, 0.5) / point.took_s for point in trial.points)
    energies = [point.energy_j for point in trial.points]
    num_tokens = sum(point.num_tokens for point in trial.points)
    if not num_tokens or any(energy is None for energy in energies):
        return None
    return sum(energy for energy in energies if energy is not None) / num_tokens


def as_result(trial: ServerTrial, objective: ServingObjective) -> TrialResult:
    """Return the trial as the statistics read it: a job of one step, which is one request, token or joule."""
    value = cost(trial, objective)
    if value is None:
        return TrialResult(index=trial.index, arm=trial.arm, outcome="failed", problem=trial.problem)
    return TrialResult(
        index=trial.index,
        arm=trial.arm,
        outcome="completed",
        step_s=(value,),
        samples_per_step=1.0,
        tokens_per_step=1.0,
        energy_j_per_step=value,
        covariates=trial.covariates,
    )


class Judge:
    """The verdicts on a tuning's trials."""

    def __init__(self, objective: ServingObjective) -> None:
        self._objective = objective
        self._results: list[TrialResult] = []

    def add(self, trial: ServerTrial) -> None:
        self._results.append(as_result(trial, self._objective))

    def verdict(
        self, candidate: str, baseline: str, *, num_screened: int, chosen_by: frozenset[int], is_last: bool = False
    ) -> Verdict:
        return judge_arms(
            self._results,
            candidate,
            is_last=is_last,
            baseline=baseline,
            objective=_OBJECTIVES[self._objective],
            num_screened=num_screened,
            chosen_by=chosen_by,
        )

    def is_worth_more(
        self, candidate: str, baseline: str, *, num_screened: int, chosen_by: frozenset[int], max_trials: int | None
    ) -> bool:
        """Whether more trials may show that the candidate is better; unknown counts as yes."""
        prospects = what_next(
            self._results,
            candidate,
            baseline=baseline,
            objective=_OBJECTIVES[self._objective],
            num_screened=num_screened,
            chosen_by=chosen_by,
        )
        return not prospects or is_worth_more(prospects, max_trials=max_trials)


def mean_cost(trials: Sequence[ServerTrial], arm: str, objective: ServingObjective) -> float | None:
    """Return the geometric mean of the costs of an arm's trials."""
    import math

    costs = [value for trial in trials if trial.arm == arm and (value := cost(trial, objective)) is not None]
    if not costs:
        return None
    return math.exp(sum(math.log(value) for value in costs) / len(costs))
