"""Where the time of a start goes, from times that are known."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.trial.recordings import START_UNIX_S, rank

from flatout.records.recording import RankRecording
from flatout.records.start_costs import StartCosts, StartTimes
from flatout.records.trial import TrialResult
from flatout.report.start_costs import start_hint, start_line, start_parts, trial_line
from flatout.trial.start_costs import start_costs

T0 = START_UNIX_S


def started(**values: object) -> StartTimes:
    """A process that was started after 2 s and had torch after 5 s; its first step begins after 10 s."""
    return StartTimes(**({"process_s": T0 + 2, "torch_s": T0 + 5} | values))  # type: ignore[arg-type]


def recorded(times: StartTimes | None, number: int = 0, **columns: float) -> RankRecording:
    """A first step of 4 s, a warm-up of two steps of 0.5 s, and three counted steps of 0.1 s."""
    made = rank(number, (4.0, 0.5, 0.5, 0.1, 0.1, 0.1), settled=3)
    first = {name: np.array([value, 0, 0, 0, 0, 0]) for name, value in columns.items()}
    return msgspec.structs.replace(made, started=times, steps=msgspec.structs.replace(made.steps, **first))


def parts(costs: StartCosts | None) -> dict[str, float]:
    assert costs is not None
    assert costs.start_s == pytest.approx(15.0)  # 10 s to the first step, 4 s, 1 s
    names = [name for name in costs.__struct_fields__ if name not in ("compilation_s", "end_s")]
    return {name: pytest.approx(getattr(costs, name), abs=1e-5) for name in names if getattr(costs, name) > 1e-5}


def test_a_start_is_divided_by_what_the_process_noted() -> None:
    times = started(groups=((T0 + 6, T0 + 7),), compilation_s=2.5)
    costs = start_costs([recorded(times, loader_s=1.5)], T0, T0 + 18.0)
    assert parts(costs) == {
        "launch_s": 2.0,
        "import_s": 3.0,
        "group_s": 1.0,
        "setup_s": 4.0,
        "first_batch_s": 1.5,
        "first_step_s": 2.5,
        "warmup_s": 1.0,
    }
    assert costs is not None
    assert costs.compilation_s == 2.5
    assert costs.end_s == pytest.approx(2.7, abs=1e-5)  # the last counted step ended after 15.3 s


def test_an_evaluation_counts_alone_wherever_it_lies() -> None:
    """From 8 s to 12 s: two seconds before the first event, two seconds in the first step; a loader starts in it."""
    times = started(evaluations=((T0 + 8, T0 + 12),), loaders=((T0 + 8.5, T0 + 9.5), (T0 + 9.0, T0 + 9.9)))
    assert parts(start_costs([recorded(times)], T0, None)) == {
        "launch_s": 2.0,
        "import_s": 3.0,
        "setup_s": 3.0,
        "evaluation_s": 4.0,
        "first_step_s": 2.0,
        "warmup_s": 1.0,
    }


def test_an_evaluation_that_the_recorder_saw_in_the_first_step_counts_too() -> None:
    costs = start_costs([recorded(started(), evaluation_s=3.0, loader_s=2.0)], T0, None)
    assert parts(costs) == {
        "launch_s": 2.0,
        "import_s": 3.0,
        "setup_s": 5.0,
        "evaluation_s": 3.0,
        "first_batch_s": 1.0,  # no more is left of the first step
        "warmup_s": 1.0,
    }


def test_a_loader_that_starts_before_the_first_event_is_part_of_the_first_batch() -> None:
    costs = start_costs([recorded(started(loaders=((T0 + 9, T0 + 10),)), loader_start_s=0.5)], T0, None)
    assert parts(costs)["first_batch_s"] == pytest.approx(1.5)


def test_a_forked_rank_has_imported_torch_before_it_was_started() -> None:
    costs = start_costs([recorded(started(process_s=T0 + 6))], T0, None)
    assert parts(costs) == {"launch_s": 6.0, "setup_s": 4.0, "first_step_s": 4.0, "warmup_s": 1.0}


def test_clocks_that_differ_shift_time_but_the_sum_stays() -> None:
    ahead = started(process_s=T0 - 3, torch_s=T0 - 1)
    assert parts(start_costs([recorded(ahead)], T0, None))["setup_s"] == pytest.approx(10.0)
    behind = started(process_s=T0 + 90, torch_s=T0 + 95)
    assert parts(start_costs([recorded(behind)], T0, None)) == {"launch_s": 15.0}


def test_the_costs_are_those_of_the_rank_that_began_to_count_last() -> None:
    late = msgspec.structs.replace(recorded(started(torch_s=T0 + 6), 1), settled_step=4)
    costs = start_costs([recorded(started()), late], T0, None)
    assert costs is not None and costs.import_s == pytest.approx(4.0)


@pytest.mark.parametrize("which", ["no rank", "an older recorder", "never settled"])
def test_costs_that_are_unknown_are_none(which: str) -> None:
    ranks = {
        "no rank": [],
        "an older recorder": [recorded(None)],
        "never settled": [recorded(started()), msgspec.structs.replace(recorded(started(), 1), settled_step=None)],
    }[which]
    assert start_costs(ranks, T0, None) is None


def trial(index: int = 0, *, evaluation_s: float = 0.0, **values: object) -> TrialResult:
    costs = StartCosts(
        launch_s=4.0, import_s=3.0, setup_s=10.0, group_s=0.3, evaluation_s=evaluation_s, first_batch_s=1.0,
        first_step_s=1.5, warmup_s=1.2, end_s=0.8,
    )  # fmt: skip
    made = {
        "outcome": "completed",
        "step_s": (1.0,) * 4,
        "start_s": costs.start_s,
        "start_costs": costs,
    } | values
    return TrialResult(index=index, arm="baseline", **made)  # type: ignore[arg-type]


def test_a_trial_is_told_in_one_line() -> None:
    assert trial_line([trial()]) == "a trial: 21.0 s to start, 4.00 s to measure, 800 ms to end"
    assert trial_line([trial(start_costs=None)]) == "a trial: 21.0 s to start, 4.00 s to measure"
    assert trial_line([trial(outcome="failed"), trial(start_s=None)]) is None


def test_the_parts_of_a_start_are_told_with_the_longest_first_and_small_ones_together() -> None:
    assert start_line([trial()]) == (
        "of its start: 10.0 s the script's own setup, 4.00 s launching the ranks, 3.00 s importing torch,"
        " 1.50 s the first step, 1.20 s further warm-up steps, 1.00 s waiting for the first batch, 300 ms other"
    )
    assert sum(start_parts([trial()]).values()) == pytest.approx(21.0)
    assert start_line([trial(start_costs=None)]) is None


@pytest.mark.parametrize(("group_s", "is_shown"), [(0.45, True), (0.4, False)])
def test_parts_below_two_percent_of_the_start_are_summed_up(group_s: float, is_shown: bool) -> None:
    costs = msgspec.structs.replace(trial().start_costs, group_s=group_s)  # type: ignore[type-var]
    assert ("making process groups" in start_parts([trial(start_costs=costs)])) == is_shown


@pytest.mark.parametrize(("evaluation_s", "is_told"), [(2.4, True), (2.2, False)])
def test_a_long_evaluation_before_the_training_is_told(evaluation_s: float, is_told: bool) -> None:
    """Beside 21 s of other parts, a tenth of the start is 2.33 s."""
    hint = start_hint([trial(evaluation_s=evaluation_s)])
    assert (hint is not None) == is_told
    if hint is not None:
        assert "2.40 s of each trial (10 % of its start)" in hint
