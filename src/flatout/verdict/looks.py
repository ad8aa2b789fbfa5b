"""When pairs may be judged, and at which level, so that looking again and again keeps the error rate.

Each look k has a level a_k. By the union bound the chance of a false claim at any look is at most the sum of all a_k,
whatever the looks have in common: no table and no model of their dependence is needed. The price against an exact
calculation is small (at most 4.0 % instead of the 5 % allowed, `benchmarks/verdict_error_rates.py`).
"""

from __future__ import annotations

import msgspec

from flatout.errors import UsageError


class Look(msgspec.Struct, frozen=True, kw_only=True):
    num_pairs: int  # that count, void ones apart
    level: float  # two-sided, of the interval
    equivalence_level: float  # one-sided, of each of the two tests for equivalence


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """The looks in order. Claims of better or worse, and those of equivalence, have an error rate each."""

    looks: tuple[Look, ...]

    def __post_init__(self) -> None:
        counts = [look.num_pairs for look in self.looks]
        if not counts or counts != sorted(set(counts)) or counts[0] < 3:
            raise UsageError(f"looks must be at 3 pairs or more and each later than the last, but got {counts}")
        if not all(0 < look.level < 1 and 0 < look.equivalence_level < 1 for look in self.looks):
            raise UsageError("each look needs levels between 0 and 1")

    @property
    def error_rate(self) -> float:
        return sum(look.level for look in self.looks)

    @property
    def max_pairs(self) -> int:
        return self.looks[-1].num_pairs

    def after(self, num_pairs: int) -> Look | None:
        """The first look at more than so many pairs."""
        return next((look for look in self.looks if look.num_pairs > num_pairs), None)

    def starting_at(self, num_pairs: int) -> Looks:
        """Without the looks at fewer pairs."""
        return Looks(looks=tuple(look for look in self.looks if look.num_pairs >= num_pairs))

    def for_claims(self, num_claims: int) -> Looks:
        """The looks for one of several claims that are to hold together (Bonferroni)."""
        if num_claims < 1:
            raise UsageError(f"the number of claims must be at least 1, but got {num_claims}")
        return Looks(
            looks=tuple(
                Look(
                    num_pairs=look.num_pairs,
                    level=look.level / num_claims,
                    equivalence_level=look.equivalence_level / num_claims,
                )
                for look in self.looks
            )
        )


# Early looks get little: they are for changes of 10 % and more, which should not cost twenty pairs. A claim of better
# gets most at 6 and 8 pairs, where 3 % shows under 1.2 % run noise; equivalence, which needs many pairs, at the end.
DEFAULT_LOOKS = Looks(
    looks=(
        Look(num_pairs=4, level=0.006, equivalence_level=0.003),
        Look(num_pairs=6, level=0.014, equivalence_level=0.005),
        Look(num_pairs=8, level=0.012, equivalence_level=0.007),
        Look(num_pairs=12, level=0.010, equivalence_level=0.012),
        Look(num_pairs=20, level=0.008, equivalence_level=0.023),
    )
)
