"""Add to the diagnosis of a profile what the trials of the same job show: work of some steps, and waits for batches.

In: the diagnosis of a profile, and the trials. Out: the same diagnosis, in which work that trials measured costs what
it costs there. A finding that no profile held, because it was too short for an epoch or a checkpoint, is added, and its
evidence says so. All shares refer to the step of the trials. Findings of the regular step keep their share of that
step. Work that the trials did not measure costs what the profile says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from flatout.change.candidates import share_in_trial
from flatout.diagnose.finding import MIN_SHARE_OF_STEP
from flatout.diagnose.rules import (
    checkpoint_stall,
    data_loading,
    epoch_boundary,
    evaluation_stall,
    garbage_collection,
    periodic_stall,
)
from flatout.records.change import ChangeSet
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding, Part
from flatout.records.job_log import StallCause
from flatout.records.step_time import StepTime, WorkTime
from flatout.records.trial import SpellKind, TrialResult
from flatout.report.step_phrases import work_phrase
from flatout.tune.profiled import Profiled
from flatout.tune.progress import TuningEvidence
from flatout.units import seconds
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import trial_costs

SEEN_BY = "seen_by"  # key of the evidence
TRIALS_ONLY, BOTH = "trials", "profile and trials"

_BUSY = (Part.COMPUTE, Part.TRANSFER, Part.MEMORY_COPY)


class _Kind(NamedTuple):
    """The finding that reports a kind of work, and the cause by which a profile knows it."""

    code: str
    name: str
    cause: StallCause


# Long steps without a known cause are not here: they may be late batches, which only a profile can distinguish.
_KINDS: Mapping[SpellKind, _Kind] = {
    "epoch_end": _Kind(epoch_boundary.CODE, epoch_boundary.NAME, StallCause.LOADER_START),
    "loader_start": _Kind(epoch_boundary.CODE, epoch_boundary.NAME, StallCause.LOADER_START),
    "evaluation": _Kind(evaluation_stall.CODE, evaluation_stall.NAME, StallCause.EVALUATION),
    "checkpoint": _Kind(checkpoint_stall.CODE, checkpoint_stall.NAME, StallCause.CHECKPOINT),
    "collection": _Kind(garbage_collection.CODE, garbage_collection.NAME, StallCause.GARBAGE_COLLECTION),
    "compilation": _Kind(periodic_stall.CODE, periodic_stall.NAME, StallCause.COMPILATION),
    "logging": _Kind(periodic_stall.CODE, periodic_stall.NAME, StallCause.LOGGING),
}

_LATE_BATCHES = _Kind(data_loading.CODE, data_loading.NAME, StallCause.LOADER)


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials measured of one finding."""

    kind: _Kind
    share: float  # of a step
    title: str

    def is_same_as(self, finding: Finding) -> bool:
        """Whether a finding of the profile is about the same work."""
        if finding.name != periodic_stall.NAME:
            return finding.name == self.kind.name
        return finding.evidence.get("cause") == self.kind.cause


def with_evidence(profiled: Profiled, evidence: TuningEvidence, changes: ChangeSet) -> Profiled:
    """Return the profile of the job with these changes, with what the trials of a tuning show about that job."""
    diagnosis = with_trials(profiled.done.diagnosis, evidence.of(changes), evidence.named(changes))
    return msgspec.structs.replace(profiled, done=msgspec.structs.replace(profiled.done, diagnosis=diagnosis))


def with_trials(diagnosis: Diagnosis, of_job: Sequence[TrialResult], all_trials: Sequence[TrialResult]) -> Diagnosis:
    """Return the diagnosis with what the trials of the profiled job show; unchanged if none is complete.

    `all_trials` has the trials of other changes too: how often work returns belongs to the job.
    """
    costs = trial_costs(all_trials, "step_s")
    step = arm_step([costs[trial.index] for trial in of_job if trial.index in costs])
    if step is None:
        return diagnosis
    measured = _measured_work(step, of_job)
    diagnosis = _with_work(diagnosis, step, measured)
    return _with_loader_wait(diagnosis, step, of_job)


def is_seen_only_by_trials(finding: Finding) -> bool:
    return finding.evidence.get(SEEN_BY) == TRIALS_ONLY


def _measured_work(step: StepTime, trials: Sequence[TrialResult]) -> list[_Measured]:
    """Return what the work of known kinds costs, by the finding that reports it."""
    share: dict[_Kind, float] = {}
    phrases: dict[_Kind, list[str]] = {}
    for work in step.work:
        for kind, part in _divided(work, trials).items():
            share[kind] = share.get(kind, 0.0) + part.per_step_s / step.step_s
            phrases.setdefault(kind, []).append(work_phrase(part))
    return [_Measured(kind=kind, share=share[kind], title="; ".join(phrases[kind])) for kind in share]


def _divided(work: WorkTime, trials: Sequence[TrialResult]) -> dict[_Kind, WorkTime]:
    """Divide work of several kinds that come together among their findings, by what the hooks measured of each.

    What no hook measured belongs to the end of an epoch, where the loader stops and starts again.
    """
    spent_s = {kind: _usual_s(kind, trials) for kind in work.kinds if kind in _KINDS}
    if "epoch_end" in spent_s:
        spent_s["epoch_end"] += max(work.extra_s - sum(spent_s.values()), 0.0)
    total_s = sum(spent_s.values())
    parts: dict[_Kind, WorkTime] = {}
    for kind, kind_s in spent_s.items():
        share = kind_s / total_s if total_s > 0 else 1 / len(spent_s)
        before = parts.get(_KINDS[kind], WorkTime(kinds=(), extra_s=0.0, period_steps=work.period_steps))
        extra_s = before.extra_s + share * work.extra_s
        parts[_KINDS[kind]] = msgspec.structs.replace(before, kinds=(*before.kinds, kind), extra_s=extra_s)
    return {kind: part for kind, part in parts.items() if part.extra_s > 0}


def _usual_s(kind: SpellKind, trials: Sequence[TrialResult]) -> float:
    """Return the median of what the hooks measured in a step; the first in each trial counts only if it is alone."""
    later: list[float] = []
    firsts: list[float] = []
    for trial in trials:
        spent_s = [spell.seconds for spell in trial.spells or () if spell.kind == kind]
        firsts += spent_s[:1]
        later += spent_s[1:]
    return median(later or firsts or [0.0])


def _with_work(diagnosis: Diagnosis, step: StepTime, measured: Sequence[_Measured]) -> Diagnosis:
    """Return the diagnosis with the measured work in place of the profile's stalls of the same kinds."""
    new = [_finding(one, diagnosis, step) for one in measured]
    kept_stalls: list[Finding] = []
    regular: list[Finding] = []
    profile_stalls_share = 0.0
    for finding in diagnosis.findings:
        is_stall = "num_stalled_steps" in finding.evidence
        if is_stall:
            profile_stalls_share += share_in_trial(diagnosis, finding)
        if any(one.is_same_as(finding) for one in measured):
            continue
        (kept_stalls if is_stall else regular).append(finding)
    stalls_share = sum(finding.share_of_step for finding in new)
    stalls_share += sum(share_in_trial(diagnosis, finding) for finding in kept_stalls)
    regular_before, regular_now = max(1 - profile_stalls_share, 0.0), max(1 - stalls_share, 0.0)
    scale = regular_now / regular_before if regular_before > 0 else 1.0
    findings = [
        *(finding for finding in new if _is_reported(finding)),
        *(_with_share(finding, share_in_trial(diagnosis, finding), step) for finding in kept_stalls),
        *(_with_share(finding, share_in_trial(diagnosis, finding) * scale, step) for finding in regular),
    ]
    findings.sort(key=lambda finding: -finding.share_of_step)
    job = diagnosis.job
    if isinstance(job.traced_share, float):
        job = msgspec.structs.replace(job, traced_share=min(job.traced_share * scale, 1.0))
    if isinstance(job.regular_step_s, float):
        job = msgspec.structs.replace(job, regular_step_s=step.regular_s)
    job = msgspec.structs.replace(job, mean_step_s=step.step_s, first_wait_s=0.0)
    return msgspec.structs.replace(diagnosis, job=job, findings=tuple(findings))


def _is_reported(finding: Finding) -> bool:
    return finding.share_of_step >= MIN_SHARE_OF_STEP or not is_seen_only_by_trials(finding)


def _with_share(finding: Finding, share: float, step: StepTime) -> Finding:
    share = min(share, 1.0)
    return msgspec.structs.replace(finding, share_of_step=share, cost_s_per_step=share * step.step_s)


def _finding(measured: _Measured, diagnosis: Diagnosis, step: StepTime) -> Finding:
    """Return the finding of measured work: the profile's with another cost, if it has one."""
    of_profile = [finding for finding in diagnosis.findings if measured.is_same_as(finding)]
    same = next((finding for finding in of_profile if finding.name == measured.kind.name), None)
    if same is None:
        seen_by = BOTH if of_profile else TRIALS_ONLY
        same = _new_finding(measured.kind, measured.title, diagnosis, seen_by)
    else:
        same = msgspec.structs.replace(same, evidence={**same.evidence, SEEN_BY: BOTH})
    return _with_share(same, measured.share, step)


def _new_finding(kind: _Kind, title: str, diagnosis: Diagnosis, seen_by: str) -> Finding:
    """Return a finding of the trials, whose cost is still to be set."""
    return Finding(
        code=kind.code,
        name=kind.name,
        title=title,
        ranks=tuple(rank.rank for rank in diagnosis.ranks),
        cost_s_per_step=0.0,
        share_of_step=0.0,
        evidence={SEEN_BY: seen_by, "cause": str(kind.cause)},
        changes=(),
        safety="exact",
        confidence="high",
    )


def _with_loader_wait(diagnosis: Diagnosis, step: StepTime, trials: Sequence[TrialResult]) -> Diagnosis:
    """Return the diagnosis with the wait for batches, if trials show a longer one than the profile."""
    waits_s = [trial.loader_wait_s for trial in trials if trial.is_complete and trial.loader_wait_s is not None]
    if not waits_s:
        return diagnosis
    share = min(fmean(waits_s) / step.step_s, _idle_share(diagnosis) * step.regular_s / step.step_s)
    of_profile = [finding for finding in diagnosis.findings if finding.name == data_loading.NAME]
    if share < MIN_SHARE_OF_STEP or share <= sum(finding.share_of_step for finding in of_profile):
        return diagnosis
    if of_profile:
        same = msgspec.structs.replace(of_profile[0], evidence={**of_profile[0].evidence, SEEN_BY: BOTH})
    else:
        title = f"the training waits for data: {seconds(share * step.step_s)} per step"
        same = _new_finding(_LATE_BATCHES, title, diagnosis, TRIALS_ONLY)
    others = [finding for finding in diagnosis.findings if finding.name != data_loading.NAME]
    findings = sorted([*others, _with_share(same, share, step)], key=lambda finding: -finding.share_of_step)
    return msgspec.structs.replace(diagnosis, findings=tuple(findings))


def _idle_share(diagnosis: Diagnosis) -> float:
    """Return the share of the traced time in which a rank's device does not work: a wait costs nothing else.

    It is that of the rank whose device works least, so that the cost is at least what a change saves.
    """
    busy_shares = [
        sum(rank.parts_s.get(PART_NAMES[part], 0.0) for part in _BUSY) / rank.window_s
        for rank in diagnosis.ranks
        if rank.window_s > 0
    ]
    return max(1 - min(busy_shares, default=0.0), 0.0)
