"""Turn a JobAttribution into a Diagnosis: run the rules, specific rules first, and sort the findings by cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.recorder import Untraced
from flatout.diagnose.rules import RULES
from flatout.records.ceilings import Ceilings
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding, JobSummary, Part, RankDiagnosis, StepDiagnosis
from flatout.records.events import Quality
from flatout.records.job import JobAttribution
from flatout.records.timeline import RankTimeline, Segments
from flatout.units import percent

MIN_UNEXPLAINED_SHARE = 0.1
WITHOUT_RULE = {
    Part.LAUNCH_LATENCY: "work was launched but had not begun (launch latency)",
    Part.UNATTRIBUTED: "the trace does not show what the host did (unattributed)",
}


def diagnose(
    job: JobAttribution,
    *,
    untraced: Untraced | None = None,
    quality: Iterable[Quality] = (),
    ceilings: Mapping[str, Ceilings] | None = None,
) -> Diagnosis:
    """Return the findings of a job with its parts, blame and data quality. `ceilings`: measured rates by host."""
    context = DiagnosisContext(job, untraced, _measured_peaks(job, ceilings or {}))
    findings: list[Finding] = []
    if context.step_s > 0:
        for rule in RULES:
            findings += rule.find(context)
    findings.sort(key=lambda f: (-f.cost_s_per_step, f.code))
    origin = min((t.window_start_ns for t in job.timelines), default=0)
    return Diagnosis(
        job=JobSummary(
            num_ranks=len(job.timelines),
            world_size=job.world_size,
            missing_ranks=job.missing_ranks,
            device=_device(job),
            num_steps=context.num_steps,
            step_s=context.step_s if context.num_steps else None,
            untraced_step_s=untraced.step_s if untraced is not None else None,
        ),
        ranks=tuple(_rank(t, job.segments[t.rank], origin) for t in job.timelines),
        blame=job.blame,
        findings=tuple(findings),
        data_quality=(*quality, *_gathered(job), *job.quality, *_missing(job), *_unexplained(context)),
    )


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


def _rank(timeline: RankTimeline, segments: Segments, origin_ns: int) -> RankDiagnosis:
    steps = tuple(
        StepDiagnosis(
            step=step.number,
            start_s=(step.start_ns - origin_ns) / 1e9,
            window_s=(step.end_ns - step.start_ns) / 1e9,
            parts_s=_parts(segments, step.start_ns, step.end_ns),
        )
        for step in timeline.steps
    )
    return RankDiagnosis(
        rank=timeline.rank,
        window_s=(timeline.window_end_ns - timeline.window_start_ns) / 1e9,
        num_steps=len(steps),
        parts_s=_parts(segments, timeline.window_start_ns, timeline.window_end_ns),
        lead_in_s=(timeline.first_step_ns - timeline.window_start_ns) / 1e9,
        steps=steps,
        step_s=sum(s.window_s for s in steps) / len(steps) if steps else None,
    )


def _parts(segments: Segments, start_ns: int, end_ns: int) -> dict[str, float]:
    return {name: int(ns) / 1e9 for name, ns in zip(PART_NAMES, segments.between_ns(start_ns, end_ns), strict=True)}


def _gathered(job: JobAttribution) -> list[Quality]:
    """Merge the notes that several ranks share."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for timeline in job.timelines:
        for note in timeline.quality:
            ranks.setdefault((note.problem, note.effect), []).append(timeline.rank)
    num_ranks = len(job.timelines)
    result = []
    for (problem, effect), found in ranks.items():
        if len(found) == 1:
            result.append(Quality(rank=found[0] if num_ranks > 1 else None, problem=problem, effect=effect))
        else:
            where = "all ranks" if len(found) == num_ranks else f"{len(found)} ranks"
            result.append(Quality(problem=f"{problem} ({where})", effect=effect))
    return result


def _unexplained(context: DiagnosisContext) -> list[Quality]:
    """Report idle time that no rule explains, if its share is large."""
    share = {part: context.available(part) / context.step_s if context.step_s > 0 else 0.0 for part in WITHOUT_RULE}
    return [
        Quality(
            problem=f"{percent(share[part])} of the {'step' if context.num_steps else 'recording'} is idle: {why}",
            effect="no finding covers it",
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
