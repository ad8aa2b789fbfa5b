"""What a tuning says of a job in which nothing is found: by how much anything but faster computation could help."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec
import pytest
from tests.tune.simulated import SimulatedRunner, tuned

from flatout.records.change import ChangeSet
from flatout.report.tuning_json import tuning_json
from flatout.report.tuning_phrases import headline
from flatout.report.tuning_text import tuning_text
from flatout.tune.profiled import CountedProfile, Profiled
from flatout.units import percent


class OnlyComputing(SimulatedRunner):
    """A job in which nothing is found, whose GPU computes for these shares of its steps."""

    def __init__(self, shares: Sequence[float]) -> None:
        super().__init__({}, costs={})
        self._shares = shares

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        profiled = super().profile(changes)
        diagnosis = profiled.done.diagnosis
        (rank,) = diagnosis.ranks
        (step,) = rank.steps
        computing = [{**step.parts_s, "compute": share * step.window_s} for share in self._shares]
        steps = tuple(msgspec.structs.replace(step, parts_s=parts) for parts in computing)
        diagnosis = msgspec.structs.replace(diagnosis, ranks=(msgspec.structs.replace(rank, steps=steps),))
        return msgspec.structs.replace(profiled, done=msgspec.structs.replace(profiled.done, diagnosis=diagnosis))


# Of 0.97, 0.99 and 0.98: mean 0.98, standard error 0.00577, and t of 2 degrees of freedom 2.920 at 5 %.
@pytest.mark.parametrize(
    ("shares", "most", "words"),
    [
        ((0.98, 1.0, 0.99), 1.028, r"nothing helps by 3\.0 %: a change .* brings at most 2\.[78] % \(limit at 95 %"),
        ((0.97, 0.99, 0.98), 1.038, r"no change helps: .*; a change .* brings at most 3\.[78] % \(limit at 95 %"),
        ((0.98,), None, "no change helps: nothing was better than the baseline$"),
    ],
)
def test_a_job_that_only_computes_has_a_limit_of_what_anything_else_brings(
    shares: tuple[float, ...], most: float | None, words: str
) -> None:
    result = tuned(OnlyComputing(shares))
    (bound,) = result.bounds
    assert bound.speedup == pytest.approx(len(shares) / sum(shares))
    assert bound.most == (None if most is None else pytest.approx(most, abs=0.0006))
    assert re.match(words, headline(result)), headline(result)
    told = json.loads(tuning_json(result, ("flatout", "tune")))
    is_shown = most is not None and most < 1.03
    assert told["nothing_helps_by"] == (0.03 if is_shown else None)
    assert told["bounds"][0]["most"] == bound.most
    limit = "brings at most this" if bound.most is None else f"brings at most {percent(bound.most - 1)} (limit at 95 %"
    assert limit in " ".join(tuning_text(result, "out").split())
