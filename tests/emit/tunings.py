"""Tunings made by hand."""

from __future__ import annotations

from functools import cache

from tests.change.jobs import EVERY_KIND, facts

from flatout.change.arguments import knob_changes, parse_knob
from flatout.change.catalogue import all_changes
from flatout.change.combine import combine
from flatout.records.change import Change, JobFacts
from flatout.records.prediction import Prediction
from flatout.records.tuning import TunedChange, Tuning
from flatout.records.verdict import Verdict

COMMAND = ("torchrun", "--nproc-per-node", "4", "train.py", "--out", "a b", "--name=it's", "--batch", "8")
FACTS = facts(passes_per_step=4, optimizer_is_fused=False)
VERDICT = Verdict(
    verdict="better",
    objective="step_s",
    speedup=3.21,
    mean_speedup=3.22,
    interval=(3.1, 3.33),
    best_case=3.15,
    error_rate=0.05,
    min_effect=0.01,
    num_pairs=6,
    num_void=0,
    void_reasons=(),
    order="AB BA AB BA AB BA",
    next_analysis=None,
    reason="faster in all pairs",
)


@cache
def every_change() -> tuple[Change, ...]:
    """The catalogue with the values of jobs of every kind, each once."""
    found = {change.name: change for job in EVERY_KIND for change in all_changes(job)}
    return tuple(found.values())


def changes(*names: str) -> list[Change]:
    by_name = {change.name: change for change in every_change()}
    return [by_name[name] for name in names]


def own_argument() -> Change:
    (change,) = knob_changes(parse_knob("batch/exact={16}:--batch {}"), COMMAND, JobFacts())
    return change


def tuning(*found: Change, command: tuple[str, ...] = COMMAND, **values: object) -> Tuning:
    prediction = {
        change.name: Prediction(
            change=change.name, family=change.family, speedup=2.5, low=1.5, high=3.5, how="replayed", bound=20.0
        )
        for change in found
    }
    given = {
        "verdict": VERDICT,
        "each": tuple(
            TunedChange(change=change, verdict=VERDICT, prediction=prediction[change.name]) for change in found
        ),
        "machine": {"device": "NVIDIA H200", "num_ranks": "4", "ranks_per_host": "4", "num_hosts": "1"},
        "versions": {"torch": "2.11.0", "nccl": "2.28.9"},
        "date": "2026-11-28",
        "num_trials": 40,
    } | values
    # What a change requires of the script is taken to be there.
    script = facts(loader_workers=4, loader_pins_memory=True, loader_has_persistent_workers=True)
    return Tuning(command=command, changes=combine(found, script), **given)  # type: ignore[arg-type]
