"""Interim analyses: when pairs are judged, and at which level, so that repeated analysis keeps the error rate.

Each analysis k has a level a_k. By the union bound the chance of a false claim at any of them is at most the sum of all
a_k, however they depend on each other: no table and no model of their dependence is needed. An exact calculation would
gain little (the error rate is at most 4.0 % instead of the 5 % allowed, `benchmarks/verdict_error_rates.py`).
"""

from __future__ import annotations

import msgspec

from flatout.errors import UsageError


class InterimAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    num_pairs: int  # number of valid pairs
    level: float  # two-sided level of the interval
    equivalence_level: float  # one-sided level of each of the two tests for equivalence


class InterimPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The analyses in order. Claims of better or worse have one error rate, and claims of equivalence another."""

    analyses: tuple[InterimAnalysis, ...]

    def __post_init__(self) -> None:
        counts = [analysis.num_pairs for analysis in self.analyses]
        if not counts or counts != sorted(set(counts)) or counts[0] < 3:
            raise UsageError(
                f"interim analyses must be at 3 pairs or more and each later than the last, but got {counts}"
            )
        if not all(0 < analysis.level < 1 and 0 < analysis.equivalence_level < 1 for analysis in self.analyses):
            raise UsageError("each interim analysis needs levels between 0 and 1")

    @property
    def error_rate(self) -> float:
        return sum(analysis.level for analysis in self.analyses)

    @property
    def max_pairs(self) -> int:
        return self.analyses[-1].num_pairs

    def after(self, num_pairs: int) -> InterimAnalysis | None:
        """Return the first analysis at more than `num_pairs` pairs; None if there is none."""
        return next((analysis for analysis in self.analyses if analysis.num_pairs > num_pairs), None)

    def starting_at(self, num_pairs: int) -> InterimPlan:
        """Return the plan without the analyses at fewer pairs."""
        return InterimPlan(analyses=tuple(analysis for analysis in self.analyses if analysis.num_pairs >= num_pairs))

    def for_claims(self, num_claims: int) -> InterimPlan:
        """Return the plan for one of several claims that must all be true (Bonferroni)."""
        if num_claims < 1:
            raise UsageError(f"the number of claims must be at least 1, but got {num_claims}")
        return InterimPlan(
            analyses=tuple(
                InterimAnalysis(
                    num_pairs=analysis.num_pairs,
                    level=analysis.level / num_claims,
                    equivalence_level=analysis.equivalence_level / num_claims,
                )
                for analysis in self.analyses
            )
        )


# Early analyses have low levels: they are for changes of 10 % and more, which should not cost twenty pairs. Claims of
# better have the highest levels at 6 and 8 pairs, which detect 3 % with 1.2 % run-to-run noise; claims of equivalence,
# which need many pairs, at the end.
DEFAULT_INTERIM = InterimPlan(
    analyses=(
        InterimAnalysis(num_pairs=4, level=0.006, equivalence_level=0.003),
        InterimAnalysis(num_pairs=6, level=0.014, equivalence_level=0.005),
        InterimAnalysis(num_pairs=8, level=0.012, equivalence_level=0.007),
        InterimAnalysis(num_pairs=12, level=0.010, equivalence_level=0.012),
        InterimAnalysis(num_pairs=20, level=0.008, equivalence_level=0.023),
    )
)
