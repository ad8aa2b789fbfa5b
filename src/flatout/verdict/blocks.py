"""Judge changes that were switched on and off in blocks of steps within one job.

In: blocks, in units of four: two of the baseline and two with the changes, as A B B A or as B A A B, by chance. Out: a
`BlockResult`. Each unit is one comparison of the mean logarithms of its block means, and Student's t over the units
gives the interval. A steady drift cancels within a unit, and a machine that changes slowly hardly matters, because only
neighbouring blocks are compared. Work with a period of some blocks cannot favour an arm in more units than chance
would, because chance puts the arms in their order.

What is the same in both arms is taken out first, and added to both at its frequency in the job: evaluations,
checkpoints, loader starts and logging; and long steps, if they are rare in both arms and do not differ between them.

Steps after a switch are discarded: those that the schedule did not measure, and then twice as many as differ visibly
from the rest of their block, because what decays continues below what can be seen. The same number is discarded after
every switch. If the second half of the blocks still changes, they are too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.blocks import Block, BlockResult
from flatout.records.trial import BASELINE
from flatout.records.verdict import VerdictName
from flatout.units import percent
from flatout.verdict.arms import MIN_EFFECT
from flatout.verdict.student import t_quantile

Floats = NDArray[np.float64]

SPIKE_FACTOR = 1.5  # a step longer than this many medians of its arm is a spike
MAX_SPIKE_SHARE = 0.05  # if more steps are that long, in either arm, they are stalls of the job itself
BLOCKS_PER_UNIT = 4
MIN_UNITS = 4  # fewer cannot decide
ERROR_RATE = 0.05  # of all candidates in one job together: that of the interval and that of the spikes
INTERVAL_RATE = 0.03
EQUIVALENCE_RATE = 0.05
UNSETTLED_SE = 4.0  # a position after a switch differs from the rest of its block by more than this, in standard errors
MIN_UNSETTLED = 0.01  # and by more than this share of the step
SLOPE_LEVEL = 0.001  # chance that a block without carry-over looks as if its first half differed from its second
MIN_SWITCHES = 3  # fewer show nothing about carry-over
SAME_SPIKES_LEVEL = 0.01  # chance that spikes that do not differ between the arms look as if they did
MIN_BOUNDARIES = 4  # steps with periodic work in each arm, from which its mean is taken for each arm
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_MEDIAN_SE = 1.2533  # standard error of a median over that of a mean


def judge_blocks(
    blocks: Sequence[Block],
    arm: str,
    *,
    num_candidates: int = 1,
    min_effect: float = MIN_EFFECT,
    keeps_spikes: bool = False,
) -> BlockResult:
    """Judge one arm from the blocks of a job that had `num_candidates` arms besides the baseline.

    With `keeps_spikes`, long steps count like all others, for changes that act on them (loaders, garbage collection).
    """
    units = _units(blocks, arm)
    mine = [block for unit in units for block in unit]
    problem = next((block.problem for block in blocks if block.arm == arm and block.problem is not None), None)
    result = BlockResult(
        arm=arm,
        verdict="undecided",
        reason="",
        problem=problem,
        error_rate=ERROR_RATE,
        min_effect=min_effect,
        num_units=len(units),
        num_blocks=len(mine),
    )
    if problem is not None:
        return msgspec.structs.replace(result, reason=f"it cannot be judged in blocks: {problem}")
    if not units:
        return msgspec.structs.replace(result, reason=_too_few(len(units)))
    carry_over = found_carry_over(mine)
    if carry_over is None:
        reason = "the steps still change in the second half of the blocks, which are too short"
        return msgspec.structs.replace(result, reason=reason)
    cut = [_Cut(block, carry_over if block.is_switch else 0) for block in mine]
    comparison = _compare(cut, keeps_spikes=keeps_spikes or len(units) == 1)
    result = msgspec.structs.replace(
        result,
        num_steps=sum(len(block.regular_s) for block in cut),
        num_carry_over=sum(block.num_carry_over for block in cut),
        num_spikes=comparison.num_spikes,
        baseline_step_s=comparison.baseline_s,
        step_s=comparison.candidate_s,
        periodic_s_per_step=comparison.shared_s,
        speedup=math.exp(comparison.effect),
    )
    if len(units) < MIN_UNITS:
        return msgspec.structs.replace(result, reason=_too_few(len(units)))
    half = t_quantile(INTERVAL_RATE / num_candidates / 2, len(units) - 1) * comparison.standard_error
    interval = math.exp(comparison.effect - half), math.exp(comparison.effect + half)
    equivalence = t_quantile(EQUIVALENCE_RATE / num_candidates, len(units) - 1) * comparison.standard_error
    verdict, reason = _claim(comparison.effect, half, equivalence, min_effect)
    return msgspec.structs.replace(result, verdict=verdict, reason=reason, interval=interval)


def _too_few(num_units: int) -> str:
    count = "1 unit of four blocks is" if num_units == 1 else f"{num_units or 'no'} units of four blocks are"
    return f"{count} complete, but a verdict needs {MIN_UNITS}"


def _claim(effect: float, half: float, equivalence: float, min_effect: float) -> tuple[VerdictName, str]:
    margin = math.log1p(min_effect)
    if abs(effect) > half and abs(effect) > margin:
        side: VerdictName = "better" if effect > 0 else "worse"
        return side, f"the interval excludes 1, and the difference is above {percent(min_effect)}"
    if abs(effect) + equivalence < margin:
        return "equivalent", f"any difference is within {percent(min_effect)}"
    if abs(effect) > half:
        return "undecided", f"there is a difference, but it is not above {percent(min_effect)}"
    return "undecided", "the interval includes 1, and is too wide to show that the arms are equivalent"


def _units(blocks: Sequence[Block], arm: str) -> list[list[Block]]:
    """Return the complete units of this arm: four blocks in a row, two of them of the baseline."""
    by_number = {block.number: block for block in blocks}
    units = []
    for start in sorted({block.number // BLOCKS_PER_UNIT * BLOCKS_PER_UNIT for block in blocks}):
        unit = [by_number[number] for number in range(start, start + BLOCKS_PER_UNIT) if number in by_number]
        arms = [block.arm for block in unit]
        if len(arms) == BLOCKS_PER_UNIT and arms.count(arm) == arms.count(BASELINE) == 2:
            units.append(unit)
    return units


class _Cut:
    """A block without its carry-over."""

    def __init__(self, block: Block, num_discarded: int) -> None:
        periodic_s = np.array(block.periodic_s[num_discarded:], dtype=np.float64)
        self.is_baseline = block.arm == BASELINE
        self.regular_s: Floats = np.array(block.step_s[num_discarded:], dtype=np.float64) - periodic_s
        self.periodic_s: Floats = periodic_s
        self.num_carry_over = block.num_carry_over + num_discarded


class _Comparison(msgspec.Struct, frozen=True, kw_only=True):
    effect: float  # log of the baseline's cost over the candidate's
    standard_error: float
    baseline_s: float
    candidate_s: float
    shared_s: float  # per step, the same in both arms
    num_spikes: int


def _compare(blocks: Sequence[_Cut], *, keeps_spikes: bool) -> _Comparison:
    baseline = [block for block in blocks if block.is_baseline]
    candidate = [block for block in blocks if not block.is_baseline]
    arms = [baseline, candidate]
    limits = [SPIKE_FACTOR * float(np.median(np.concatenate([block.regular_s for block in arm]))) for arm in arms]
    excess = [_spike_excess(block, limits[0 if block.is_baseline else 1]) for block in blocks]
    drops_spikes = not keeps_spikes and _are_rare(arms, limits) and not _differ(blocks, excess)
    dropped = np.array(excess) if drops_spikes else np.zeros(len(blocks))
    means: Floats = np.array([float(block.regular_s.mean()) for block in blocks]) - dropped
    contrasts = _contrasts(blocks, np.log(np.maximum(means, 1e-12)))
    is_baseline = np.array([block.is_baseline for block in blocks], dtype=np.bool_)
    baseline_s, candidate_s = float(means[is_baseline].mean()), float(means[~is_baseline].mean())
    spikes_s = float(np.mean(excess)) if drops_spikes else 0.0
    num_spikes = sum(_num_spikes(arm, limit) for arm, limit in zip(arms, limits, strict=True)) if drops_spikes else 0
    periodic_s, periodic_se = _periodic(arms)
    regular, regular_se = float(contrasts.mean()), _standard_error(contrasts)
    shared_s = spikes_s + min(periodic_s)
    costs = baseline_s + spikes_s + periodic_s[0], baseline_s * math.exp(-regular) + spikes_s + periodic_s[1]
    weight = max(baseline_s / costs[0], candidate_s / costs[1])
    periodic_part = math.hypot(periodic_se[0] / costs[0], periodic_se[1] / costs[1])
    return _Comparison(
        effect=math.log(costs[0] / costs[1]),
        standard_error=math.hypot(regular_se * weight, periodic_part),
        baseline_s=baseline_s,
        candidate_s=candidate_s,
        shared_s=shared_s,
        num_spikes=num_spikes,
    )


def _standard_error(values: Floats) -> float:
    """Return the standard error of the mean; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _contrasts(blocks: Sequence[_Cut], values: Floats) -> Floats:
    """Return the baseline's mean minus the candidate's, for each unit."""
    signs = np.array([0.5 if block.is_baseline else -0.5 for block in blocks])
    return np.asarray((signs * values).reshape(-1, BLOCKS_PER_UNIT).sum(axis=1))


def _spike_excess(block: _Cut, limit: float) -> float:
    """Return the seconds per step by which the block's spikes exceed its other steps."""
    is_spike = block.regular_s > limit
    if not is_spike.any() or is_spike.all():
        return 0.0
    usual = float(block.regular_s[~is_spike].mean())
    return float((block.regular_s[is_spike] - usual).sum()) / len(block.regular_s)


def _num_spikes(blocks: Sequence[_Cut], limit: float) -> int:
    return sum(int((block.regular_s > limit).sum()) for block in blocks)


def _are_rare(arms: Sequence[Sequence[_Cut]], limits: Sequence[float]) -> bool:
    counts = [sum(len(block.regular_s) for block in arm) for arm in arms]
    return all(
        _num_spikes(arm, limit) <= MAX_SPIKE_SHARE * count
        for arm, limit, count in zip(arms, limits, counts, strict=True)
    )


def _differ(blocks: Sequence[_Cut], excess: Sequence[float]) -> bool:
    """Whether the arms spend different times in spikes."""
    contrasts = _contrasts(blocks, np.array(excess))
    spread = float(contrasts.std(ddof=1))
    if spread == 0:
        return bool(contrasts.any())
    value = abs(float(contrasts.mean())) / spread * math.sqrt(len(contrasts))
    return value > t_quantile(SAME_SPIKES_LEVEL / 2, len(contrasts) - 1)


def _periodic(arms: Sequence[Sequence[_Cut]]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return each arm's seconds of periodic work per step, at its frequency in both arms together, and their errors."""
    columns = [np.concatenate([block.periodic_s for block in arm]) for arm in arms]
    everything = np.concatenate(columns)
    frequency = float((everything > 0).mean())
    if frequency == 0:
        return (0.0, 0.0), (0.0, 0.0)
    works = [column[column > 0] for column in columns]
    if min(len(work) for work in works) < MIN_BOUNDARIES:
        shared = float(everything.mean())
        return (shared, shared), (0.0, 0.0)
    means = [frequency * float(work.mean()) for work in works]
    errors = [frequency * float(work.std(ddof=1)) / math.sqrt(len(work)) for work in works]
    return (means[0], means[1]), (errors[0], errors[1])


def found_carry_over(blocks: Sequence[Block]) -> int | None:
    """Return how many more steps differ after a switch than were discarded; None if half of a block is not enough."""
    switched = [block for block in blocks if block.is_switch]
    length = min((len(block.step_s) for block in blocks), default=0)
    if len(switched) < MIN_SWITCHES or length < 4:
        return 0
    carry_over = 0
    for is_baseline in (True, False):
        profile = _profile([block for block in switched if (block.arm == BASELINE) is is_baseline], length)
        if profile is None:
            continue
        found = _unsettled_steps(profile)
        if found is None:
            return None
        carry_over = max(carry_over, found)
    return carry_over


def _profile(blocks: Sequence[Block], length: int) -> Floats | None:
    """Return each block's steps relative to the median of its second half; None if there are too few blocks."""
    if len(blocks) < MIN_SWITCHES:
        return None
    steps = np.array(
        [np.subtract(block.step_s[:length], block.periodic_s[:length]) for block in blocks], dtype=np.float64
    )
    return np.asarray(steps / np.maximum(np.median(steps[:, length // 2 :], axis=1, keepdims=True), 1e-12) - 1)


def _unsettled_steps(profile: Floats) -> int | None:
    num_blocks, length = profile.shape
    half = length // 2
    centre = np.median(profile, axis=0)
    spread = _NORMAL_MAD * float(np.median(np.abs(profile[:, half:] - np.median(profile[:, half:]))))
    threshold = max(UNSETTLED_SE * _MEDIAN_SE * spread / math.sqrt(num_blocks), MIN_UNSETTLED)
    unsettled = np.flatnonzero(np.abs(centre[:half]) > threshold)
    carry_over = min(2 * (int(unsettled[-1]) + 1), half) if len(unsettled) else 0
    if not _is_level(profile[:, carry_over:]):
        carry_over = half
        if not _is_level(profile[:, half:]):
            return None
    return carry_over


def _is_level(profile: Floats) -> bool:
    """Whether the first halves of the blocks cannot be distinguished from their second halves."""
    middle = profile.shape[1] // 2
    if middle < 1:
        return True
    changes = np.median(profile[:, :middle], axis=1) - np.median(profile[:, middle:], axis=1)
    spread = float(changes.std(ddof=1))
    mean = abs(float(changes.mean()))
    if mean <= MIN_UNSETTLED:
        return True
    return spread > 0 and mean <= t_quantile(SLOPE_LEVEL / 2, len(changes) - 1) * spread / math.sqrt(len(changes))
