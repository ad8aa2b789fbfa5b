"""Turn a JobAttribution into a Diagnosis: run the rules, specific rules first, and sort the findings by cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.by_group import communication_by_group
from flatout.diagnose.confidence import limited
from flatout.diagnose.context import MIN_TRACED_SHARE, DiagnosisContext
from flatout.diagnose.finding import rank_words
from flatout.diagnose.launched_ahead import note_of
from flatout.diagnose.recorder import Untraced
from flatout.diagnose.rules import LOG_RULES, TRACE_RULES
from flatout.diagnose.xla_advice import with_xla_advice
from flatout.records.ceilings import Ceilings
from flatout.records.change import JobFacts
from flatout.records.diagnosis import (
    PART_NAMES,
    DeviceDiagnosis,
    Diagnosis,
    Finding,
    JobSummary,
    Part,
    RankDiagnosis,
    StepDiagnosis,
)
from flatout.records.events import Quality
from flatout.records.job import JobAttribution
from flatout.records.job_log import JobLog
from flatout.records.stall_trace import StallTrace
from flatout.records.timeline import RankTimeline, Segments
from flatout.units import percent, rank_ranges

MIN_UNEXPLAINED_SHARE = 0.1
WITHOUT_RULE = {
    Part.LAUNCH_LATENCY: "is idle: work was launched but had not begun (launch latency)",
    Part.UNATTRIBUTED: "is unattributed: the trace does not show what the device or the host did",
}


def _found_by_rules(context: DiagnosisContext) -> tuple[list[Finding], list[Finding]]:
    """Return the findings from traces, and those from the step log, which no problem of a trace affects."""
    by_log_rules = [finding for rule in LOG_RULES for finding in rule.find(context)]
    by_trace_rules: list[Finding] = []
    if context.step_s > 0:
        by_trace_rules = [finding for rule in TRACE_RULES for finding in rule.find(context)]
    if context.log is None:
        return by_log_rules + by_trace_rules, []
    return by_trace_rules, by_log_rules


def diagnose(
    job: JobAttribution,
    *,
    untraced: Untraced | None = None,
    quality: Iterable[Quality] = (),
    ceilings: Mapping[str, Ceilings] | None = None,
    facts: JobFacts | None = None,
    log: JobLog | None = None,
    stall_trace: StallTrace | None = None,
) -> Diagnosis:
    """Return the findings of a job with its parts, blame and data quality.

    `ceilings`: measured rates by host; `facts`: facts from a recording that the traces do not contain; `log`: its step
    log, with or without traces; `stall_trace`: its second trace.
    """
    context = DiagnosisContext(job, untraced, _measured_peaks(job, ceilings or {}), facts, log, stall_trace)
    quality = tuple(quality)
    traced, logged = _found_by_rules(context)
    findings = [*limited(with_xla_advice(traced, job.timelines), job, quality), *logged]
    findings.sort(key=lambda f: (-f.cost_s_per_step, f.code))
    stall_share = sum(finding.share_of_step for finding in logged if "traced_stall_step" in finding.evidence)
    origin = min((t.window_start_ns for t in job.timelines), default=0)
    return Diagnosis(
        job=JobSummary(
            num_ranks=_num_ranks(job, log),
            world_size=job.world_size,
            missing_ranks=job.missing_ranks,
            device=_device(job),
            ranks_of_unknown_device=tuple(t.rank for t in job.timelines if not t.is_device_known),
            num_steps=context.num_steps,
            step_s=_traced_step_s(context) if context.num_steps else None,
            traced_share=_traced_share(context),
            traced_stall_share=msgspec.UNSET if stall_trace is None else stall_share,
            untraced_step_s=untraced.step_s if untraced is not None else None,
        ),
        ranks=tuple(_rank(t, job, origin) for t in job.timelines),
        blame=job.blame,
        findings=tuple(findings),
        data_quality=(*quality, *_quality(context, stall_share)),
        stall_trace=msgspec.UNSET if stall_trace is None else stall_trace,
        communication=communication_by_group(context),
    )


def _quality(context: DiagnosisContext, stall_share: float) -> list[Quality]:
    job = context.job
    return [
        *note_of(context.log),
        *_untypical(context, stall_share),
        *_stalled(context),
        *_gathered(job),
        *job.quality,
        *_missing(job),
        *_unexplained(context),
    ]


def _num_ranks(job: JobAttribution, log: JobLog | None) -> int:
    return len(job.timelines) if job.timelines or log is None else len(log.ranks)


def _traced_share(context: DiagnosisContext) -> float | msgspec.UnsetType | None:
    if context.log is None:
        return msgspec.UNSET
    return context.traced_share if context.num_steps else 0.0


def _untypical(context: DiagnosisContext, stall_share: float) -> list[Quality]:
    """Say which share of the job the traces represent, unless it is nearly the whole job."""
    if context.log is None or not context.num_steps or context.traced_share >= MIN_TRACED_SHARE:
        return []
    problem = f"the traces stand for {percent(context.traced_share)} of the job: its regular steps"
    if stall_share > 0:
        problem += f"; a second trace, of one stall, stands for another {percent(stall_share)}"
    return [
        Quality(
            problem=problem,
            effect="the rest is stalls, found in the step log; costs from the traces are scaled to the job",
        )
    ]


def _stalled(context: DiagnosisContext) -> list[Quality]:
    """Report traced steps that stalled."""
    stalled = sorted(context.stalled_steps)
    if not stalled:
        return []
    which = f"step {stalled[0]}" if len(stalled) == 1 else f"steps {rank_ranges(stalled)}"
    return [
        Quality(
            problem=f"{len(stalled)} of the {context.num_steps} traced steps stalled ({which}), as the step log shows",
            effect="costs from the traces are those of the other traced steps; the step log has the cost of the stall",
        )
    ]


def _traced_step_s(context: DiagnosisContext) -> float:
    """Return the mean traced step over the ranks, including steps that stalled."""
    means = [(t.window_end_ns - t.first_step_ns) / 1e9 / (len(t.steps) or 1) for t in context.ranks]
    return float(np.mean(means))


def _measured_peaks(job: JobAttribution, ceilings: Mapping[str, Ceilings]) -> Mapping[str, float] | None:
    """Return the FLOP/s by operand type measured on the first rank's host; None if not measured on the job's GPU."""
    first = job.timelines[0].meta if job.timelines else None
    found = None if first is None else ceilings.get(first.hostname or "")
    if first is None or found is None or found.wrong or not found.is_gpu or found.device != _device(job):
        return None
    return found.matmul_flops_per_s()


def _device(job: JobAttribution) -> str | None:
    names = {t.meta.device_name for t in job.timelines if t.meta.device_name}
    return ", ".join(sorted(names)) if names else None


def _rank(timeline: RankTimeline, job: JobAttribution, origin_ns: int) -> RankDiagnosis:
    steps = tuple(
        StepDiagnosis(
            step=step.number,
            start_s=(step.start_ns - origin_ns) / 1e9,
            window_s=(step.end_ns - step.start_ns) / 1e9,
            parts_s=_seconds_by_part(job.parts_between_ns(timeline.rank, step.start_ns, step.end_ns)),
        )
        for step in timeline.steps
    )
    return RankDiagnosis(
        rank=timeline.rank,
        window_s=(timeline.window_end_ns - timeline.window_start_ns) / 1e9,
        num_steps=len(steps),
        parts_s=_seconds_by_part(job.parts_between_ns(timeline.rank, timeline.window_start_ns, timeline.window_end_ns)),
        lead_in_s=(timeline.first_step_ns - timeline.window_start_ns) / 1e9,
        steps=steps,
        step_s=sum(s.window_s for s in steps) / len(steps) if steps else None,
        devices=tuple(
            _device_parts(device, segments, timeline)
            for device, segments in job.device_segments.get(timeline.rank, {}).items()
        ),
    )


def _device_parts(device: int, segments: Segments, timeline: RankTimeline) -> DeviceDiagnosis:
    total_ns = segments.between_ns(timeline.first_step_ns, timeline.window_end_ns)
    return DeviceDiagnosis(device=device, parts_s=_seconds_by_part(total_ns / (len(timeline.steps) or 1)))


def _seconds_by_part(parts_ns: NDArray[np.float64]) -> dict[str, float]:
    return {name: float(ns) / 1e9 for name, ns in zip(PART_NAMES, parts_ns, strict=True)}


def _gathered(job: JobAttribution) -> list[Quality]:
    """Merge the notes that several ranks share."""
    ranks_of_note: dict[Quality, list[int]] = {}
    for timeline in job.timelines:
        for note in timeline.quality:
            ranks_of_note.setdefault(note, []).append(timeline.rank)
    num_ranks = len(job.timelines)
    result = []
    for note, ranks in ranks_of_note.items():
        if len(ranks) == 1:
            result.append(msgspec.structs.replace(note, rank=ranks[0] if num_ranks > 1 else None))
        else:
            where = rank_words(tuple(ranks), num_ranks)
            result.append(msgspec.structs.replace(note, problem=f"{note.problem} ({where})"))
    return result


def _unexplained(context: DiagnosisContext) -> list[Quality]:
    """Report idle time that no rule explains, if its share is large."""
    share = {part: context.available(part) / context.step_s if context.step_s > 0 else 0.0 for part in WITHOUT_RULE}
    return [
        Quality(
            problem=f"{percent(share[part])} of the {'step' if context.num_steps else 'recording'} {why}",
            effect="no finding explains it",
        )
        for part, why in WITHOUT_RULE.items()
        if share[part] >= MIN_UNEXPLAINED_SHARE
    ]


def _missing(job: JobAttribution) -> list[Quality]:
    if not job.missing_ranks:
        return []
    shown = ", ".join(map(str, job.missing_ranks[:8])) + (", ..." if len(job.missing_ranks) > 8 else "")
    return [
        Quality(
            problem=f"{len(job.missing_ranks)} of {job.world_size} ranks have no trace here: {shown}",
            effect="waiting and transfer in collectives with them cannot be told apart (communication_unsplit)",
        )
    ]
