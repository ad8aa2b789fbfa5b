"""Compare two diagnoses, part by part and finding by finding.

In: two `Diagnosis`. Out: a `DiagnosisDiff` and its JSON (schema `flatout/diff`, version 2). Two recordings are compared
by the totals of all their steps, stalls included; the traced windows explain the regular step, part by part. It reports
what changed, by how much, and the range of step times within each run. It gives no verdict: that takes repeated trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import msgspec

from flatout.records.comparison import EnvironmentDifference
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding
from flatout.report.json import enveloped_json
from flatout.report.parts import part_values
from flatout.report.phrases import counted
from flatout.report.rows import mean_parts
from flatout.report.scaling import Scaling, scaling_of

SCHEMA = "flatout/diff"
VERSION = 2
Value = TypeVar("Value", int, float)
REGULAR = "regular steps"
STALLS = "stalls"
SAME_WORK = 0.01  # steps whose numbers of samples differ by more do different work
_Pair = tuple[Finding | None, Finding | None]  # findings of A and of B that correspond


class DiffSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. Times are means over ranks."""

    num_ranks: int
    num_steps: int  # traced
    device: str | None
    time_s: float  # of what `basis` says
    traced_s: float  # of a mean traced step, or of the traced window
    step_s_min: float | None  # shortest traced step, each step being the mean over ranks; None without steps
    step_s_median: float | None
    step_s_max: float | None
    num_recorded_steps: int | None  # None unless the basis is `recording`, as in the next four
    regular_step_s: float | None
    samples_per_s: float | None  # total of the recording
    tokens_per_s: float | None
    mfu: float | None


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    part: str
    a_s: float
    b_s: float
    change_s: float  # b - a
    a_share: float
    b_share: float


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str  # new | gone | both
    a_ranks: tuple[int, ...] | None  # None if the finding is not in A
    b_ranks: tuple[int, ...] | None
    a_cost_s: float | None
    b_cost_s: float | None
    change_s: float  # b - a; a missing finding counts as 0


class DiagnosisDiff(msgspec.Struct, frozen=True, kw_only=True):
    # What `time_s`, `change_s` and `ratio` refer to. recording: the mean of all recorded steps, with their stalls, of
    # two recordings. Otherwise the traced window alone is known: step: its mean step; window: all of it.
    basis: str
    a: DiffSide
    b: DiffSide
    change_s: float  # b - a
    ratio: float | None  # b / a; None if A's time is 0
    speedup: float | None  # by samples/s or tokens/s if both are known, else by time; None if B's time is 0
    has_same_work: bool | None  # whether the steps process as many samples or tokens; None: unknown
    ratio_range: tuple[float, float] | None  # B's shortest traced step / A's longest, and B's longest / A's shortest
    # The parts of the mean recorded step: regular steps, and stalls by cause. They sum to `change_s`. Empty unless
    # the basis is `recording`, and in diagnoses of older versions.
    recorded_parts: tuple[PartChange, ...]
    traced_change_s: float  # b - a, of the traced steps or windows
    parts: tuple[
        PartChange, ...
    ]  # of the traced time, largest change first; the changes sum to `traced_change_s`. Empty if either has no trace
    findings: tuple[FindingChange, ...]  # largest change first
    scaling: Scaling | None  # from the smaller to the larger job; None if both have as many ranks
    environment: tuple[EnvironmentDifference, ...]  # versions and settings that differ, if both are recordings
    notes: tuple[str, ...]  # reasons why the two are hard to compare


def diff(a: Diagnosis, b: Diagnosis, environment: Sequence[EnvironmentDifference] = ()) -> DiagnosisDiff:
    """Compare the recordings of A and B, or their traced steps; complete windows if either has no steps.

    `environment` is what differs between the runs themselves, which a diagnosis does not know. If a recording has no
    trace, the parts of its steps are unknown, and so are its findings: there are none then.
    """
    is_step = all(any(rank.steps for rank in diagnosis.ranks) for diagnosis in (a, b))
    have_step_logs = all(isinstance(side.job.mean_step_s, float) for side in (a, b))
    are_traced = not (have_step_logs and _without_trace(a, b))
    a_parts, b_parts = _mean(a, is_step), _mean(b, is_step)
    is_recording = have_step_logs and (is_step or not are_traced)
    a_side, b_side = _side(a, a_parts, is_step, is_recording), _side(b, b_parts, is_step, is_recording)
    speedup, has_same_work = _speedup(a_side, b_side)
    parts = [
        PartChange(
            part=name,
            a_s=a_s,
            b_s=b_s,
            change_s=b_s - a_s,
            a_share=_ratio(a_s, a_side.traced_s) or 0.0,
            b_share=_ratio(b_s, b_side.traced_s) or 0.0,
        )
        for name, a_s, b_s in zip(PART_NAMES, a_parts, b_parts, strict=True)
        if are_traced
    ]
    return DiagnosisDiff(
        basis=_basis(is_step=is_step, is_recording=is_recording),
        a=a_side,
        b=b_side,
        change_s=b_side.time_s - a_side.time_s,
        ratio=_ratio(b_side.time_s, a_side.time_s),
        speedup=speedup,
        has_same_work=has_same_work,
        ratio_range=_ratio_range(a_side, b_side),
        recorded_parts=_recorded_parts(a, b, a_side.time_s, b_side.time_s) if is_recording else (),
        traced_change_s=b_side.traced_s - a_side.traced_s,
        parts=tuple(sorted(parts, key=lambda part: (-abs(part.change_s), PART_NAMES.index(part.part)))),
        findings=_finding_changes(a, b, is_step) if are_traced else (),
        scaling=scaling_of(a, b),
        environment=tuple(environment),
        notes=_notes(a, b, is_step),
    )


def diff_json(result: DiagnosisDiff, command: Sequence[str], *, pretty: bool = True) -> bytes:
    return enveloped_json(SCHEMA, VERSION, command, result, pretty=pretty)


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _basis(*, is_step: bool, is_recording: bool) -> str:
    if is_recording:
        return "recording"
    return "step" if is_step else "window"


def _speedup(a: DiffSide, b: DiffSide) -> tuple[float | None, bool | None]:
    """Return the speedup of B, and whether its steps do as much work."""
    for a_rate, b_rate in ((a.samples_per_s, b.samples_per_s), (a.tokens_per_s, b.tokens_per_s)):
        if a_rate and b_rate:
            work_ratio = b_rate * b.time_s / (a_rate * a.time_s)
            return b_rate / a_rate, abs(work_ratio - 1) <= SAME_WORK
    return _ratio(a.time_s, b.time_s), None


def _without_trace(a: Diagnosis, b: Diagnosis) -> str:
    """Return the names of the sides that have no trace, `A and B`; empty if both have one."""
    return _sides_that(lambda side: not any(sum(part_values(rank.parts_s)) for rank in side.ranks), a, b)


def _mean(diagnosis: Diagnosis, is_step: bool) -> tuple[float, ...]:
    """Return the seconds of each part, the mean over the ranks (in steps: over the ranks that have steps)."""
    if is_step:
        values = [mean_parts(rank) for rank in diagnosis.ranks if rank.steps]
    else:
        values = [part_values(rank.parts_s) for rank in diagnosis.ranks]
    if not values:
        return (0.0,) * len(PART_NAMES)
    return tuple(sum(column) / len(values) for column in zip(*values, strict=True))


def _recorded_parts(a: Diagnosis, b: Diagnosis, a_step_s: float, b_step_s: float) -> tuple[PartChange, ...]:
    """Return the change in stalls by cause, per step, and in the rest of the mean step: the regular steps."""
    if isinstance(a.recorded, msgspec.UnsetType) or isinstance(b.recorded, msgspec.UnsetType):
        return ()
    a_stalls = {cause: seconds / a.recorded.num_steps for cause, seconds in a.recorded.stalls_s.items()}
    b_stalls = {cause: seconds / b.recorded.num_steps for cause, seconds in b.recorded.stalls_s.items()}
    pairs = {REGULAR: (a_step_s - sum(a_stalls.values()), b_step_s - sum(b_stalls.values()))}
    for cause in dict.fromkeys((*a_stalls, *b_stalls)):
        pairs[f"{STALLS}: {cause}"] = (a_stalls.get(cause, 0.0), b_stalls.get(cause, 0.0))
    parts = [
        PartChange(
            part=name,
            a_s=a_s,
            b_s=b_s,
            change_s=b_s - a_s,
            a_share=_ratio(a_s, a_step_s) or 0.0,
            b_share=_ratio(b_s, b_step_s) or 0.0,
        )
        for name, (a_s, b_s) in pairs.items()
    ]
    return tuple(sorted(parts, key=lambda part: (-abs(part.change_s), part.part)))


def _side(diagnosis: Diagnosis, parts_s: tuple[float, ...], is_step: bool, is_recording: bool) -> DiffSide:
    times: list[float] = []
    if is_step:
        windows_of_step: dict[int, list[float]] = {}
        for rank in diagnosis.ranks:
            for step in rank.steps:
                windows_of_step.setdefault(step.step, []).append(step.window_s)
        times = [sum(windows) / len(windows) for windows in windows_of_step.values()]
    job = diagnosis.job
    traced_s = sum(parts_s)
    mean_step_s = _known(job.mean_step_s) if is_recording else None
    return DiffSide(
        num_ranks=job.num_ranks,
        num_steps=job.num_steps,
        device=job.device,
        time_s=traced_s if mean_step_s is None else mean_step_s,
        traced_s=traced_s,
        step_s_min=min(times, default=None),
        step_s_median=median(times) if times else None,
        step_s_max=max(times, default=None),
        num_recorded_steps=_known(job.num_recorded_steps) if is_recording else None,
        regular_step_s=_known(job.regular_step_s) if is_recording else None,
        samples_per_s=_known(job.samples_per_s) if is_recording else None,
        tokens_per_s=_known(job.tokens_per_s) if is_recording else None,
        mfu=_known(job.mfu) if is_recording else None,
    )


def _known(value: Value | msgspec.UnsetType | None) -> Value | None:
    return None if isinstance(value, msgspec.UnsetType) else value


def _ratio_range(a: DiffSide, b: DiffSide) -> tuple[float, float] | None:
    if not (a.step_s_min and a.step_s_max and b.step_s_min and b.step_s_max):
        return None
    return b.step_s_min / a.step_s_max, b.step_s_max / a.step_s_min


def _finding_changes(a: Diagnosis, b: Diagnosis, is_step: bool) -> tuple[FindingChange, ...]:
    changes = []
    names = dict.fromkeys(finding.name for finding in (*a.findings, *b.findings))
    for name in names:
        in_a = [finding for finding in a.findings if finding.name == name]
        in_b = [finding for finding in b.findings if finding.name == name]
        changes += [_finding_change(name, pair, a, b, is_step) for pair in _pairs(in_a, in_b)]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_s), change.name)))


def _pairs(in_a: Sequence[Finding], in_b: Sequence[Finding]) -> list[_Pair]:
    """Pair the findings of one name: first those with the same ranks, then those that share ranks, by cost.

    Findings of different ranks are different findings: a straggler on rank 0 is gone if rank 1 is one now.
    """
    pairs: list[_Pair] = []
    only_a, only_b = list(in_a), list(in_b)
    for is_match in (_have_same_ranks, _share_ranks):
        for finding in list(only_a):
            match = next((other for other in only_b if is_match(finding, other)), None)
            if match is not None:
                pairs.append((finding, match))
                only_a.remove(finding)
                only_b.remove(match)
    pairs += [(finding, None) for finding in only_a]
    pairs += [(None, finding) for finding in only_b]
    return pairs


def _have_same_ranks(a: Finding, b: Finding) -> bool:
    return a.ranks == b.ranks


def _share_ranks(a: Finding, b: Finding) -> bool:
    return not set(a.ranks).isdisjoint(b.ranks)


def _finding_change(name: str, pair: _Pair, a: Diagnosis, b: Diagnosis, is_step: bool) -> FindingChange:
    in_a, in_b = pair
    if in_a is None:
        state = "new"
    elif in_b is None:
        state = "gone"
    else:
        state = "both"
    a_cost_s, b_cost_s = _cost_s(in_a, a, is_step), _cost_s(in_b, b, is_step)
    return FindingChange(
        name=name,
        state=state,
        a_ranks=in_a.ranks if in_a else None,
        b_ranks=in_b.ranks if in_b else None,
        a_cost_s=a_cost_s,
        b_cost_s=b_cost_s,
        change_s=(b_cost_s or 0.0) - (a_cost_s or 0.0),
    )


def _cost_s(finding: Finding | None, diagnosis: Diagnosis, is_step: bool) -> float | None:
    """Return the cost per step, or over the recorded steps if complete windows are compared."""
    if finding is None:
        return None
    if is_step:
        return finding.cost_s_per_step
    return finding.cost_s_per_step * max(1, diagnosis.job.num_steps)


def _notes(a: Diagnosis, b: Diagnosis, is_step: bool) -> tuple[str, ...]:
    notes = (
        _note_on_steps(a, b, is_step),
        _note_on_step_logs(a, b) if is_step else None,
        _note_on_num_ranks(a, b),
        _note_on_devices(a, b),
        _note_on_missing_ranks(a, b),
    )
    return tuple(note for note in notes if note is not None)


def _sides_that(applies: Callable[[Diagnosis], bool], a: Diagnosis, b: Diagnosis) -> str:
    """Return the names of the sides to which it applies, `A and B`; empty if it applies to neither."""
    return " and ".join(name for name, side in (("A", a), ("B", b)) if applies(side))


def _note_on_steps(a: Diagnosis, b: Diagnosis, is_step: bool) -> str | None:
    untraced = _without_trace(a, b)
    if untraced:
        has = "has" if len(untraced) == 1 else "have"
        return f"{untraced} {has} no trace, so it is unknown which part of a step changed: record without --light"
    if is_step:
        return None
    unmarked = _sides_that(lambda side: not any(rank.steps for rank in side.ranks), a, b)
    return f"no steps are marked in {unmarked}: complete recordings are compared, including the warm-up"


def _note_on_step_logs(a: Diagnosis, b: Diagnosis) -> str | None:
    without_log = _sides_that(lambda side: not isinstance(side.job.mean_step_s, float), a, b)
    if without_log not in ("A", "B"):
        return None
    return f"{without_log} has no step log, so only the traced windows are compared, not all steps"


def _note_on_num_ranks(a: Diagnosis, b: Diagnosis) -> str | None:
    if a.job.num_ranks == b.job.num_ranks:
        return None
    return f"A has {counted(a.job.num_ranks, 'rank')} and B {b.job.num_ranks:,}: times are means over ranks"


def _note_on_devices(a: Diagnosis, b: Diagnosis) -> str | None:
    if a.job.device == b.job.device:
        return None
    a_device, b_device = (job.device or "an unnamed device" for job in (a.job, b.job))
    return f"A ran on {a_device} and B on {b_device}"


def _note_on_missing_ranks(a: Diagnosis, b: Diagnosis) -> str | None:
    incomplete = _sides_that(lambda side: bool(side.job.missing_ranks), a, b)
    if not incomplete:
        return None
    return f"ranks are missing in {incomplete}: waiting may be counted as unsplit communication"
