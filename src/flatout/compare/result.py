"""Build the result of a comparison from its evidence. In: what the loop has seen. Out: a `Comparison`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from flatout.compare.calls import call_differences
from flatout.compare.environment import environment_differences, facts_of
from flatout.compare.loop import Compared
from flatout.compare.options import CompareOptions
from flatout.compare.parts import cause_of, differences, work_parts
from flatout.compare.runner import ArmRunners
from flatout.records.change import ChangeSet
from flatout.records.comparison import Arm, ArmName, Comparison, EnvironmentDifference, TrainingCheck
from flatout.records.trial import TrialResult
from flatout.trial.gates import check_losses, check_memory, loss_note
from flatout.trial.gradient_gate import check_gradients, gradient_note
from flatout.trial.outputs import output_notes
from flatout.verdict.cost import TrialCost, trial_costs

_SAME_WORK = 0.01  # steps whose numbers of samples differ by more do different work


def comparison(
    compared: Compared, runners: ArmRunners, arms: Sequence[Arm], options: CompareOptions, notes: Sequence[str]
) -> Comparison:
    """Return the result, with the differences between the arms part by part."""
    evidence = compared.evidence
    of_arm = {arm: [trial for trial in evidence.trials_of(arm) if trial.is_complete] for arm in _ARMS}
    costs = trial_costs([*of_arm["A"], *of_arm["B"]], "step_s")
    kinds = {arm: [work_parts(costs[trial.index]) for trial in trials] for arm, trials in of_arm.items()}
    has_work = any(len(parts) > 1 for arm in kinds.values() for parts in arm)
    parts = (
        *differences(evidence.recorded["A"], evidence.recorded["B"], "steps"),
        *(differences(kinds["A"], kinds["B"], "kinds") if has_work else ()),
        *differences(evidence.profiled["A"], evidence.profiled["B"], "profiles"),
    )
    calls = call_differences(evidence.calls["A"], evidence.calls["B"])
    profiles = evidence.profile_folders
    measured_a, measured_b = (_measured(arm, of_arm[arm.name], costs, profiles.get(arm.name)) for arm in arms)
    return Comparison(
        a=measured_a,
        b=measured_b,
        objective=evidence.objective,
        verdict=compared.judged.verdict,
        equivalent_within=compared.judged.equivalent_within,
        gate=compared.judged.gate,
        power=compared.power,
        parts=parts,
        cause=cause_of(parts, calls, is_total_shown=compared.judged.verdict.verdict in ("better", "worse")),
        calls=calls,
        environment=_environment(runners, of_arm),
        training=training_check(of_arm["A"], of_arm["B"]),
        num_trials=len(evidence.trials),
        num_failed=len(evidence.trials) - evidence.num_complete,
        num_profiles=sum(map(len, evidence.profiled.values())),
        num_resumed=runners.num_resumed,
        took_s=runners.spent_s(),
        budget_s=options.budget_s,
        ended_by=compared.ended_by,
        separation=runners.separation,
        notes=(*notes, *evidence.notes, *output_notes(runners.outputs)),
    )


_ARMS: tuple[ArmName, ...] = ("A", "B")


def _measured(arm: Arm, trials: Sequence[TrialResult], costs: Mapping[int, TrialCost], profile: str | None) -> Arm:
    """Return the arm with what its trials measured; a step is what the verdict compares, in the long run."""
    steps_s = [step_s for trial in trials if (step_s := costs[trial.index].step_s) is not None]
    return msgspec.structs.replace(
        arm,
        num_trials=len(trials),
        step_s=math.exp(sum(map(math.log, steps_s)) / len(steps_s)) if steps_s else None,
        samples_per_step=trials[-1].samples_per_step if trials else None,
        peak_memory_bytes=max((trial.peak_memory_bytes or 0 for trial in trials), default=0) or None,
        profile=profile,
    )


def _environment(runners: ArmRunners, of_arm: dict[ArmName, list[TrialResult]]) -> tuple[EnvironmentDifference, ...]:
    facts = [facts_of(runners.recording_of(trials[-1].index)) if trials else None for trials in of_arm.values()]
    return environment_differences(facts[0], facts[1], of_arm["A"], of_arm["B"])


def training_check(a: Sequence[TrialResult], b: Sequence[TrialResult]) -> TrainingCheck | None:
    """Compare the training of B with A's by the gates of a tuning; None if either arm has no complete trial.

    B fails a gate if most of its trials do: each of many trials is one more chance for a false alarm.
    """
    if not a or not b:
        return None
    sizes = [trials[-1].samples_per_step for trials in (a, b)]
    if sizes[0] and sizes[1] and abs(sizes[1] / sizes[0] - 1) > _SAME_WORK:
        reason = f"a step has {sizes[0]:.4g} samples in A and {sizes[1]:.4g} in B: not compared"
        return TrainingCheck(is_passed=True, losses=reason, gradients=reason, memory=_memory(a, b))
    unchanged = ChangeSet()
    losses = [check_losses(trial, a, unchanged) for trial in b]
    gradients = [check_gradients(trial, a, unchanged) for trial in b]
    is_passed = True
    reasons = []
    for gates, poor_reference in ((losses, loss_note(a)), (gradients, gradient_note(a))):
        refused = [gate for gate in gates if not gate.is_passed]
        has_failed = 2 * len(refused) > len(gates)
        is_passed = is_passed and not has_failed
        reasons.append(refused[0].reason if has_failed else (poor_reference or gates[-1].reason))
    return TrainingCheck(is_passed=is_passed, losses=reasons[0], gradients=reasons[1], memory=_memory(a, b))


def _memory(a: Sequence[TrialResult], b: Sequence[TrialResult]) -> str:
    return check_memory(b[-1], a).reason
