"""Judge whether a variant's metric is worse than the untouched model's by less than a limit.

In: the results of both on the same samples, or two shares of known size, and the limit. Out: a `LossVerdict`. The
probability of calling a variant non-inferior whose true loss is the limit or more is at most `level`
(`benchmarks/non_inferiority.py`).

Right or wrong answers, paired: how many answers got worse and better is multinomial. The test is exact: its p-value is
the largest over all chances that answers get better, within their 99.9 % interval, to which 0.1 % is added (Berger and
Boos 1994, doi:10.1080/01621459.1994.10476836). So 50 samples without a difference show nothing about a loss below 5 %.

Other results, paired: Student's t of the differences, with one more sample that is worse by the whole range of the
results, because the worst sample need not have been seen. Shares without single results: two independent shares, with
one right and one wrong answer added to each (Agresti and Caffo 2000, doi:10.1080/00031305.2000.10474560), which is
cautious where both models find the same samples hard.
"""

from __future__ import annotations

import math
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.compression import Evaluation, LossMethod, LossOutcome, LossVerdict, MaxLoss

LEVEL = 0.05
_NUISANCE_LEVEL = 0.001
_GRID = 50  # chances that answers get better, of which the least favourable one counts
_SPREADS = 8.0  # standard deviations beyond which a number of better results is out of the question
_BISECTIONS = 16
_LEAST_SAMPLES = 10  # of a mean: fewer show no spread

Floats = NDArray[np.float64]


def judge_loss(
    untouched: Evaluation,
    variant: Evaluation,
    max_loss: MaxLoss,
    *,
    is_higher_better: bool,
    is_paired: bool = True,
    level: float = LEVEL,
    needs_most_loss: bool = True,
) -> LossVerdict:
    """Return the verdict. `is_paired` is False if the single results do not come in the same order each time.

    Without `needs_most_loss` the largest loss that the results allow is not searched, which takes most of the time.
    """
    sign = 1.0 if is_higher_better else -1.0
    scale = abs(untouched.value) if max_loss.is_relative else 1.0
    loss = sign * (untouched.value - variant.value) / scale if scale else math.inf
    chosen = _test_of(untouched, variant, is_paired=is_paired)
    outcome: LossOutcome = "unknown"
    most_loss = None
    if chosen.test is not None:
        asked = _Asked(sign=sign, is_relative=max_loss.is_relative)
        outcome = _outcome(chosen.test, asked, max_loss.value, level)
        most_loss = _most_loss(chosen.test, asked, level) if needs_most_loss else None
    return LossVerdict(
        outcome=outcome,
        method=chosen.method,
        untouched=untouched.value,
        variant=variant.value,
        loss=loss,
        most_loss=most_loss,
        num_samples=variant.num_samples,
        level=level,
        reason=chosen.reason,
    )


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    sign: float  # 1: higher is better; -1: lower
    is_relative: bool


class _Test(Protocol):
    """The p-value of the claim that the loss is below a limit, or, with `is_above`, that it is above it."""

    def __call__(self, limit: float, asked: _Asked, *, is_above: bool = False) -> float: ...


class _Chosen(msgspec.Struct, frozen=True, kw_only=True):
    method: LossMethod
    test: _Test | None
    reason: str = ""


def _outcome(test: _Test, asked: _Asked, limit: float, level: float) -> LossOutcome:
    if test(limit, asked) <= level:
        return "non_inferior"
    if test(limit, asked, is_above=True) <= level:
        return "inferior"
    return "undecided"


def _most_loss(test: _Test, asked: _Asked, level: float) -> float | None:
    """Return the smallest limit below which the loss is shown to be; None if there is none up to the whole metric."""
    low, high = -1.0, 1.0
    if test(high, asked) > level:
        return None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if test(middle, asked) <= level:
            high = middle
        else:
            low = middle
    return high


def _test_of(untouched: Evaluation, variant: Evaluation, *, is_paired: bool) -> _Chosen:
    """Return the strongest test that the results allow."""
    if untouched.samples and variant.samples and is_paired:
        if len(untouched.samples) != len(variant.samples):
            reason = f"{len(untouched.samples)} results without the variant and {len(variant.samples)} with it"
            return _Chosen(method="none", test=None, reason=reason)
        return _paired(np.array(untouched.samples), np.array(variant.samples))
    num_samples = untouched.num_samples
    if num_samples is None or variant.num_samples is None:
        return _Chosen(method="none", test=None, reason="the number of samples is unknown")
    if num_samples != variant.num_samples:
        reason = f"{num_samples} samples without the variant and {variant.num_samples} with it"
        return _Chosen(method="none", test=None, reason=reason)
    if not (0 <= untouched.value <= 1 and 0 <= variant.value <= 1):
        return _Chosen(method="none", test=None, reason="a metric outside 0 to 1 needs the result of each sample")
    return _Chosen(method="unpaired", test=_unpaired_test(untouched.value, variant.value, num_samples))


def _paired(untouched: Floats, variant: Floats) -> _Chosen:
    if not (np.isfinite(untouched).all() and np.isfinite(variant).all()):
        return _Chosen(method="none", test=None, reason="some results are not finite numbers")
    is_binary = np.isin(untouched, (0.0, 1.0)).all() and np.isin(variant, (0.0, 1.0)).all()
    if is_binary:
        return _Chosen(method="paired_exact", test=_exact_test(untouched, variant))
    if len(untouched) < _LEAST_SAMPLES:
        return _Chosen(method="none", test=None, reason=f"fewer than {_LEAST_SAMPLES} samples show no spread")
    return _Chosen(method="paired_mean", test=_mean_test(untouched, variant))


class AnswerChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the results got worse, and better."""

    num: int
    worsened: int
    improved: int

    @property
    def reversed(self) -> AnswerChanges:
        return AnswerChanges(num=self.num, worsened=self.improved, improved=self.worsened)


def _exact_test(untouched: Floats, variant: Floats) -> _Test:
    num_ones, num = int(untouched.sum()), len(untouched)
    ones_lost = int(((untouched == 1) & (variant == 0)).sum())
    ones_won = int(((untouched == 0) & (variant == 1)).sum())
    of_ones = AnswerChanges(num=num, worsened=ones_lost, improved=ones_won)

    def test(limit: float, asked: _Asked, *, is_above: bool = False) -> float:
        counts = of_ones if asked.sign > 0 else of_ones.reversed
        allowed = limit * (num_ones if asked.is_relative else num)
        return exact_p_value(counts.reversed, -allowed) if is_above else exact_p_value(counts, allowed)

    return test


def exact_p_value(counts: AnswerChanges, allowed: float) -> float:
    """Return the p-value of the claim that fewer results get worse, less those that get better, than `allowed`."""
    from scipy.special import bdtr  # type: ignore[import-untyped]

    observed = standardised(counts.worsened, counts.improved, allowed)
    if observed <= 0:
        return 1.0
    improving = _nuisance(counts)
    worsening = improving + allowed / counts.num
    is_possible = (worsening >= 0) & (improving + worsening <= 1) & (improving < 1)
    improving, worsening = improving[is_possible, None], worsening[is_possible, None]
    improved = _likely(counts.num, improving)
    of_improved = _binomial_pmf(improved, counts.num, improving)
    left = counts.num - improved
    most_worsened = np.minimum(_most_worsened(improved, allowed, observed), left)
    # Given the number that got better, each of the others got worse with this probability.
    below = bdtr(np.maximum(most_worsened, 0), left, worsening / (1 - improving))
    p_values = (of_improved * np.where(most_worsened >= 0, below, 0.0)).sum(axis=1)
    return min(float(p_values.max(initial=0.0)) + _NUISANCE_LEVEL, 1.0)


def _likely(total: int, chances: Floats) -> NDArray[np.int64]:
    """Return the numbers of better results that are not out of the question for all of the chances."""
    if not len(chances):
        return np.zeros((1, 1), dtype=np.int64)
    low, high = (total * chance for chance in (float(chances.min()), float(chances.max())))
    first = max(math.floor(low - _SPREADS * math.sqrt(low + 1)), 0)
    last = min(math.ceil(high + _SPREADS * math.sqrt(high + 1) + _SPREADS), total)
    return np.arange(first, last + 1)[None, :]


def standardised(worsened: float, improved: float, allowed: float) -> float:
    return float((allowed + improved - worsened) / math.sqrt(worsened + improved + 1))


def _most_worsened(improved: NDArray[np.int64], allowed: float, observed: float) -> Floats:
    """Return up to how many worse results, for each number of better ones, are at least as good as those observed.

    It solves `allowed + improved - worsened >= observed * sqrt(worsened + improved + 1)` for `worsened`.
    """
    square = observed**2
    spread = np.maximum(allowed + 2 * improved + 1, 0.0)
    difference = (-square + np.sqrt(square**2 + 4 * square * spread)) / 2
    return np.asarray(np.floor(allowed + improved - difference + 1e-9))


def _nuisance(counts: AnswerChanges) -> Floats:
    """Return chances that a result gets better, over their interval of Clopper and Pearson."""
    from scipy.special import betaincinv

    total, improved = counts.num, counts.improved
    tail = _NUISANCE_LEVEL / 2
    low = float(betaincinv(improved, total - improved + 1, tail)) if improved else 0.0
    high = float(betaincinv(improved + 1, total - improved, 1 - tail)) if improved < total else 1.0
    return np.linspace(low, high, _GRID)


def _binomial_pmf(values: NDArray[np.int64], total: int, chance: Floats) -> Floats:
    from scipy.special import gammaln, xlog1py, xlogy

    choices = gammaln(total + 1) - gammaln(values + 1) - gammaln(total - values + 1)
    return np.asarray(np.exp(choices + xlogy(values, chance) + xlog1py(total - values, -chance)))


def _mean_test(untouched: Floats, variant: Floats) -> _Test:
    spread = max(untouched.max(), variant.max()) - min(untouched.min(), variant.min())

    def test(limit: float, asked: _Asked, *, is_above: bool = False) -> float:
        allowed = limit * (untouched * np.sign(untouched.mean()) if asked.is_relative else 1.0)
        margins = asked.sign * (variant - untouched) + allowed  # their mean is above 0 if the loss is below the limit
        if is_above:
            margins = -margins
        return _mean_p_value(np.append(margins, -spread))

    return test


def _mean_p_value(margins: Floats) -> float:
    """Return the p-value of the claim that the mean is above 0."""
    from scipy.special import stdtr

    error = float(margins.std(ddof=1)) / math.sqrt(len(margins))
    mean = float(margins.mean())
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return float(stdtr(len(margins) - 1, -mean / error))


def _unpaired_test(untouched: float, variant: float, num_samples: int) -> _Test:
    shares = [(value * num_samples + 1) / (num_samples + 2) for value in (untouched, variant)]
    variances = [share * (1 - share) / (num_samples + 2) for share in shares]

    def test(limit: float, asked: _Asked, *, is_above: bool = False) -> float:
        factor = 1 - asked.sign * limit if asked.is_relative else 1.0
        amount = 0.0 if asked.is_relative else limit
        margin = asked.sign * (shares[1] - factor * shares[0]) + amount
        error = math.sqrt(variances[1] + factor**2 * variances[0])
        return _normal_tail(-margin / error if is_above else margin / error)

    return test


def _normal_tail(value: float) -> float:
    return 0.5 * math.erfc(value / math.sqrt(2))
