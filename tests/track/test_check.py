"""The check of a history: what is compared, where a change is, what changed there, and the gate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.track.series import noisy, result

from flatout.errors import UsageError
from flatout.records.tracking import SeriesCheck, TrackCheck, TrackedResult
from flatout.track.check import CheckRequest, check_history
from flatout.track.history_file import ResultHistory


def checked(results: Sequence[TrackedResult], **options: Any) -> TrackCheck:
    return check_history(Path("h"), ResultHistory(results=tuple(results)), CheckRequest(**options))


def only(results: Sequence[TrackedResult], **options: Any) -> SeriesCheck:
    (series,) = checked(results, **options).series
    return series


def stepped(after: float = 0.11, *, length: int = 15, **options: Any) -> list[TrackedResult]:
    values = noisy([0.1] * 25 + [after] * length, noise=0.005)
    return [result(number, float(value), **options) for number, value in enumerate(values)]


def test_a_change_is_named_with_its_commits() -> None:
    series = only(stepped())
    (tracked,) = series.changes
    assert series.status == "changed"
    assert (tracked.change.effect, tracked.num_since) == ("worse", 15)
    assert (tracked.commits.last_before, tracked.commits.first_after, tracked.commits.num_results) == ("c24", "c25", 1)


@pytest.mark.parametrize(
    ("direction", "after", "effect"),
    [
        ("lower", 0.11, "worse"),
        ("lower", 0.09, "better"),
        ("higher", 0.11, "better"),
        ("higher", 0.09, "worse"),
        ("neutral", 0.11, "neutral"),
    ],
)
def test_a_measure_has_a_direction(direction: Any, after: float, effect: str) -> None:
    (tracked,) = only(stepped(after, direction=direction)).changes
    assert tracked.change.effect == effect


def test_an_uncertain_place_gives_a_range_of_commits() -> None:
    values = noisy([0.1] * 30 + [0.104] * 30, noise=0.02, seed=1)
    (tracked,) = only([result(number, float(value)) for number, value in enumerate(values)]).changes
    assert tracked.commits.num_results > 1
    assert tracked.commits.last_before == f"c{tracked.change.low - 1}"
    assert tracked.commits.first_after == f"c{tracked.change.high}"


def test_results_of_another_class_of_machine_are_never_compared() -> None:
    results = stepped(0.1)[:20] + [
        result(number + 20, float(value), machine="other")
        for number, value in enumerate(noisy([0.2] * 20, noise=0.005))
    ]
    check = checked(results)
    assert [(series.machine, series.status) for series in check.series] == [("2 ranks", "steady"), ("other", "steady")]


def test_what_changed_in_the_environment_there_is_named() -> None:
    results = [
        result(number, each.measures[0].value, environment={"torch": "2.10" if number < 25 else "2.11", "host": "n1"})
        for number, each in enumerate(stepped())
    ]
    results[30] = result(30, results[30].measures[0].value, environment={"torch": "2.11", "host": "n7"})
    (tracked,) = only(results).changes
    assert [(each.name, each.before, each.after) for each in tracked.environment] == [("torch", "2.10", "2.11")]


def test_a_fact_that_was_not_recorded_is_unknown() -> None:
    results = [
        result(number, each.measures[0].value, environment={} if number < 25 else {"driver": "550"})
        for number, each in enumerate(stepped())
    ]
    (tracked,) = only(results).changes
    assert [(each.name, each.before, each.after) for each in tracked.environment] == [("driver", None, "550")]


def test_the_parts_that_moved_are_named_largest_first() -> None:
    results = [
        result(
            number,
            each.measures[0].value,
            parts={
                "parts.compute": 0.08,
                "parts.wait": 0.01 + 0.001 * (number >= 25),
                "parts.data": 0.009 * (number >= 25),
            },
        )
        for number, each in enumerate(stepped())
    ]
    (tracked,) = only(results).changes
    assert [(part.name, part.before, part.after) for part in tracked.parts] == [
        ("parts.data", 0.0, 0.009),
        ("parts.wait", 0.01, 0.011),
    ]


def test_a_part_that_moved_by_less_than_a_tenth_of_the_largest_shift_is_not_named() -> None:
    for shift, names in ((0.0011, ["parts.data", "parts.wait"]), (0.0009, ["parts.data"])):
        results = [
            result(
                number,
                each.measures[0].value,
                parts={"parts.wait": 0.01 + shift * (number >= 25), "parts.data": 0.01 * (number >= 25)},
            )
            for number, each in enumerate(stepped())
        ]
        (tracked,) = only(results).changes
        assert [part.name for part in tracked.parts] == names


def test_parts_are_checked_only_if_they_are_asked_for() -> None:
    results = [result(number, 0.1, parts={"parts.data": 0.01}) for number in range(10)]
    assert only(results).measure == "step_s"
    assert only(results, measures=("parts.data",)).measure == "parts.data"


def test_the_rate_of_false_alarms_is_of_all_series_together() -> None:
    """The same series is called alone, and is not called among many at the same rate."""
    values = noisy([0.1] * 14 + [0.103] * 8, noise=0.012, seed=3)
    results = [result(number, float(value)) for number, value in enumerate(values)]
    (tracked,) = only(results, rate=0.2).changes
    alone = tracked.change.p_value * 0.5 * len(values)
    steady = [result(number, 0.1, job=f"job {job}") for job in range(9) for number in range(8)]
    assert only(results, rate=alone * 2).changes
    among = checked([*results, *steady], rate=alone * 2)
    assert len(among.series) == 10
    assert not any(series.changes for series in among.series)


def test_commits_are_in_the_order_of_their_times_if_all_are_known() -> None:
    values = noisy([0.1] * 20 + [0.12] * 20, noise=0.005)
    measured_late = [
        result((number * 7) % 40, float(value), commit=f"c{number}", commit_unix_s=1e9 + number)
        for number, value in enumerate(values)
    ]
    (tracked,) = only(measured_late).changes
    assert (tracked.commits.last_before, tracked.commits.first_after) == ("c19", "c20")
    unknown = [result(number, float(value), commit=None) for number, value in enumerate(values)]
    (tracked,) = only(unknown[::-1]).changes  # in the order of measuring, whatever the order of the lines
    assert (tracked.change.index, tracked.commits.first_after) == (20, None)


def test_the_gate_fails_for_a_change_beyond_it() -> None:
    for limit, outcome in ((0.12, "passed"), (0.08, "failed")):
        gate = checked(stepped(0.11), gate=limit).gate
        assert gate is not None
        assert gate.outcome == outcome


def test_the_gate_of_a_rate_counts_the_same_loss() -> None:
    """From 0.1 to 0.09 per second, each unit takes 11 % longer."""
    for limit, outcome in ((0.12, "passed"), (0.10, "failed")):
        gate = checked(stepped(0.09, direction="higher"), gate=limit).gate
        assert gate is not None
        assert gate.outcome == outcome


def test_the_gate_passes_for_better_for_old_and_for_neutral_changes() -> None:
    assert checked(stepped(0.09), gate=0.01).gate.outcome == "passed"  # type: ignore[union-attr]
    assert checked(stepped(0.2, direction="neutral"), gate=0.01).gate.outcome == "passed"  # type: ignore[union-attr]
    for length, outcome in ((12, "failed"), (13, "passed")):
        assert checked(stepped(length=length), gate=0.03, last=12).gate.outcome == outcome  # type: ignore[union-attr]


def test_a_loss_that_was_repaired_passes_the_gate() -> None:
    values = noisy([0.1] * 20 + [0.12] * 8 + [0.1] * 8, noise=0.005)
    check = checked([result(number, float(value)) for number, value in enumerate(values)], gate=0.03)
    assert [tracked.change.effect for tracked in check.series[0].changes] == ["worse", "better"]
    assert [tracked.is_lasting for tracked in check.series[0].changes] == [False, True]
    assert check.gate is not None
    assert check.gate.outcome == "passed"


def test_the_gate_is_undecided_with_too_few_results() -> None:
    for length, outcome in ((7, "undecided"), (8, "passed")):
        results = [result(number, 0.1) for number in range(length)]
        assert checked(results, gate=0.03).gate.outcome == outcome  # type: ignore[union-attr]
    mixed = [*stepped(), *(result(number, 0.1, job="new") for number in range(3))]
    assert checked(mixed, gate=0.03).gate.outcome == "failed"  # type: ignore[union-attr]


def test_results_are_selected_by_job_machine_measure_and_branch() -> None:
    results = [
        *(result(number, 0.1, job="alpha", branch="main") for number in range(8)),
        *(result(number, 0.1, job="beta", machine="8 ranks", branch="topic") for number in range(8)),
    ]
    assert {series.job for series in checked(results, jobs=("lph",)).series} == {"alpha"}
    assert {series.job for series in checked(results, machines=("8",)).series} == {"beta"}
    assert {series.job for series in checked(results, branches=("main",)).series} == {"alpha"}
    with pytest.raises(UsageError, match="has what was asked for"):
        checked(results, measures=("mfu",))
