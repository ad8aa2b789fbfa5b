"""The arrangement of the trials of two arms: which ran when, without their results.

An analysis is planned, fitted and simulated from this alone: the weights of a least squares fit do not depend on what
was measured.
"""

from __future__ import annotations

import msgspec


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of a baseline and a candidate that count, in running order; one entry a trial in each field."""

    positions: tuple[int, ...]  # among all trials of the tuning
    is_candidate: tuple[bool, ...]
    is_fresh: tuple[bool, ...]  # the candidate's, and did not choose it
    blocks: tuple[int, ...]  # trials of one block ran on the same machine without an interruption

    @property
    def num_candidates(self) -> int:
        return sum(self.is_candidate)

    @property
    def num_baselines(self) -> int:
        return len(self.is_candidate) - self.num_candidates

    @property
    def num_fresh(self) -> int:
        return sum(self.is_fresh)

    @property
    def order(self) -> str:
        """The arms in running order, A for the baseline: `AAABAB`."""
        return "".join("B" if candidate else "A" for candidate in self.is_candidate)

    def end_of_fresh(self, count: int) -> int:
        """Return the number of trials up to the candidate's fresh trial number `count`, including it."""
        return [place for place, fresh in enumerate(self.is_fresh) if fresh][count - 1] + 1

    def first(self, count: int) -> Arrangement:
        """Return the first `count` trials."""
        return Arrangement(
            positions=self.positions[:count],
            is_candidate=self.is_candidate[:count],
            is_fresh=self.is_fresh[:count],
            blocks=self.blocks[:count],
        )

    def select(self, places: tuple[int, ...]) -> Arrangement:
        """Return the trials at these places."""
        return Arrangement(
            positions=tuple(self.positions[place] for place in places),
            is_candidate=tuple(self.is_candidate[place] for place in places),
            is_fresh=tuple(self.is_fresh[place] for place in places),
            blocks=tuple(self.blocks[place] for place in places),
        )

    def alternating(self, num_fresh: int) -> str:
        """Return the order of the next trials, if the arms alternate until `num_fresh` more of the candidate ran."""
        ends_with_candidate = bool(self.is_candidate and self.is_candidate[-1])
        return "AB" * num_fresh if ends_with_candidate else "B" + "AB" * (num_fresh - 1)

    def followed_by(self, order: str) -> Arrangement:
        """Return the arrangement with more trials in this order, one directly after the other in the last block."""
        after = self.positions[-1] + 1 if self.positions else 0
        more = tuple(arm == "B" for arm in order)
        return Arrangement(
            positions=self.positions + tuple(range(after, after + len(order))),
            is_candidate=self.is_candidate + more,
            is_fresh=self.is_fresh + more,
            blocks=self.blocks + (self.blocks[-1] if self.blocks else 0,) * len(order),
        )


def planned(order: str, *, chosen: tuple[int, ...] = ()) -> Arrangement:
    """Return the arrangement of trials in this order (`AAABAB`); those at the places `chosen` chose the candidate."""
    is_candidate = tuple(arm == "B" for arm in order)
    return Arrangement(
        positions=tuple(range(len(order))),
        is_candidate=is_candidate,
        is_fresh=tuple(candidate and place not in chosen for place, candidate in enumerate(is_candidate)),
        blocks=(0,) * len(order),
    )
