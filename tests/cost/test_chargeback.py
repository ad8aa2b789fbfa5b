"""What teams are charged, against sums made in exact fractions, and prices typed here."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.catalog.carbon import grid_carbon
from flatout.catalog.prices import all_prices, exactly
from flatout.cost.chargeback import Tariff, chargeback
from flatout.cost.split import split
from flatout.records.attempts import Attempts, JobAttempt, Usage
from flatout.records.chargeback import LINES, Chargeback

TARIFF = Tariff(prices=all_prices(), usd_per_gpu_hour=exactly(2.0, "here"), gpu="h100")


def attempt(
    job: str = "1",
    *,
    hours: float = 1.0,
    gpus: float = 8,
    state: str = "COMPLETED",
    account: str | None = "vision",
    gpu_types: dict[str, float] | None = None,
    energy_j: float | None = None,
) -> JobAttempt:
    return JobAttempt(
        job=job,
        state=state,
        elapsed_s=hours * 3600,
        num_gpus=gpus,
        gpu_types=gpu_types or {},
        account=account,
        energy_j=energy_j,
        line=1,
    )


def charged(
    *attempts: JobAttempt,
    usages: tuple[Usage, ...] = (),
    tariff: Tariff = TARIFF,
    budgets: dict[str, float] | None = None,
    budget_period_s: float | None = None,
    checkpoint_interval_s: float | None = None,
) -> Chargeback:
    found = Attempts(path="jobs.txt", attempts=attempts, num_rows=len(attempts))
    return chargeback(
        found,
        {usage.job: usage for usage in usages},
        tariff,
        budgets=budgets,
        budget_period_s=budget_period_s,
        checkpoint_interval_s=checkpoint_interval_s,
    )


def test_without_measured_use_idle_time_is_unknown_and_never_0() -> None:
    (team,) = charged(attempt()).teams
    assert team.idle_held is None
    assert (team.used.gpu_hours, team.unsplit.gpu_hours, team.lost.gpu_hours) == (0, 8, 0)
    assert charged(attempt()).measured_share == 0


def test_measured_use_tells_used_from_idle() -> None:
    (team,) = charged(attempt(), usages=(Usage(job="1", busy_share=0.25),)).teams
    assert team.idle_held is not None
    assert (team.used.gpu_hours, team.idle_held.gpu_hours, team.unsplit.gpu_hours) == (2, 6, 0)
    assert (team.used.usd.value, team.idle_held.usd.value) == (4.0, 12.0)


def test_the_use_of_an_array_is_that_of_its_tasks() -> None:
    usages = (Usage(job="9", busy_share=1.0), Usage(job="9_2", busy_share=0.0))
    found = charged(attempt("9_1"), attempt("9_2"), usages=usages)
    assert found.total.idle_held is not None
    assert (found.total.used.gpu_hours, found.total.idle_held.gpu_hours) == (8, 8)


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("FAILED", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("TIMEOUT", "time-out"),
        ("PREEMPTED", "preempted"),
        ("REQUEUED", "requeued"),
        ("NODE_FAIL", "node failure"),
        ("BOOT_FAIL", "node failure"),
        ("COMPLETED", None),
        ("CANCELLED", None),
        ("RUNNING", None),
    ],
)
def test_what_its_user_did_not_choose_is_lost(state: str, cause: str | None) -> None:
    (team,) = charged(attempt(state=state)).teams
    assert team.lost_gpu_hours_by_cause == ({cause: 8.0} if cause else {})
    assert team.lost.gpu_hours == (8 if cause else 0)
    assert team.gpu_hours_by_state == {state: 8.0}


def test_with_checkpoints_only_what_came_after_the_last_is_lost() -> None:
    failed = attempt(state="TIMEOUT", hours=2.25)
    (team,) = charged(failed, checkpoint_interval_s=3600.0).teams
    assert team.lost.gpu_hours == 0.25 * 8
    own = charged(failed, usages=(Usage(job="1", checkpoint_interval_s=7200.0),), checkpoint_interval_s=60.0)
    assert own.total.lost.gpu_hours == 0.25 * 8
    assert own.total.unsplit.gpu_hours == 2 * 8


attempts = st.lists(
    st.builds(
        attempt,
        st.integers(1, 30).map(str),
        hours=st.floats(0, 1000, allow_nan=False),
        gpus=st.sampled_from([0, 1, 3, 8, 1 / 7, 3 / 7, 2048]),
        state=st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT", "PREEMPTED", "RUNNING", "CANCELLED", "NODE_FAIL"]),
        account=st.sampled_from(["vision", "language", None]),
        gpu_types=st.sampled_from([{}, {"h100": 1.0}, {"h100": 1.0, "a100": 2.0}, {"a100_1g.5gb": 1 / 7}]),
        energy_j=st.none() | st.floats(1, 1e12),
    ),
    max_size=20,
)
usages = st.lists(
    st.builds(
        Usage,
        job=st.integers(1, 30).map(str),
        busy_share=st.none() | st.floats(0, 1),
        power_w=st.none() | st.floats(0, 1200),
        checkpoint_interval_s=st.none() | st.floats(0.1, 1e5),
    ),
    max_size=10,
    unique_by=lambda usage: usage.job,
)


@settings(deadline=None)
@given(attempts=attempts, usages=usages, interval=st.none() | st.floats(1, 1e5))
def test_lines_sum_exactly_to_the_gpu_time_that_was_held(
    attempts: list[JobAttempt], usages: list[Usage], interval: float | None
) -> None:
    found = charged(*attempts, usages=tuple(usages), checkpoint_interval_s=interval)
    held_ms = sum(round(each.num_gpus * each.elapsed_s * 1000) for each in attempts)
    assert found.total.total.gpu_ms == held_ms
    for team in (*found.teams, found.total):
        idle_ms = team.idle_held.gpu_ms if team.idle_held is not None else 0
        assert team.used.gpu_ms + idle_ms + team.unsplit.gpu_ms + team.lost.gpu_ms == team.total.gpu_ms
        assert sum(Fraction(hours) for hours in team.gpu_hours_by_state.values()) * 3_600_000 == pytest.approx(
            team.total.gpu_ms, rel=1e-12
        )
    for line in ("used", "unsplit", "lost", "total"):
        assert sum(getattr(team, line).gpu_ms for team in found.teams) == getattr(found.total, line).gpu_ms
    # Each attempt alone, by hand: nothing is negative, and nothing is lost that is not of a lost state.
    by_job = {usage.job: usage for usage in usages}
    for each in attempts:
        parts = split(each, by_job.get(each.job))
        assert list(parts) == list(LINES)
        assert min(parts.values()) >= 0


@settings(deadline=None)
@given(attempts=attempts)
def test_money_and_energy_of_teams_sum_to_the_whole(attempts: list[JobAttempt]) -> None:
    found = charged(*attempts, tariff=msgspec.structs.replace(TARIFF, grid=grid_carbon("FR")))
    for name in ("usd", "kwh", "kg_co2", "electricity_usd"):
        whole = getattr(found.total.total, name).value
        parts = [getattr(team.total, name).value for team in found.teams]
        assert whole == pytest.approx(sum(parts))
        for team in found.teams:
            lines = [team.used, team.unsplit, team.lost, *([team.idle_held] if team.idle_held is not None else [])]
            assert getattr(team.total, name).value == pytest.approx(sum(getattr(line, name).value for line in lines))


def test_money_is_by_type_of_gpu_and_unknown_where_a_price_is() -> None:
    by_type = Tariff(prices=all_prices())
    found = charged(attempt(gpu_types={"h100": 2.0, "a100": 6.0}), tariff=by_type)
    assert found.total.total.usd.value == pytest.approx(2 * 2.95 + 6 * 1.29)
    assert found.total.total.usd.low == pytest.approx(2 * 1.99 + 6 * 0.80)
    unknown = charged(attempt(gpu_types={"h100": 2.0}), tariff=by_type).total.total.usd
    assert (unknown.value, unknown.low) == (None, None)
    assert "type Slurm does not report" in unknown.reason
    assert (
        "`t4` spot"
        in charged(
            attempt(gpu_types={"t4": 8.0}), tariff=Tariff(prices=all_prices(), terms="spot")
        ).total.total.usd.reason
    )


def test_energy_is_measured_where_somebody_measured_it() -> None:
    prices = all_prices()
    overhead = prices.host.typical * prices.pue.typical
    by_sampler = charged(attempt(), usages=(Usage(job="1", busy_share=1.0, power_w=500.0),)).total.total.kwh
    assert by_sampler.value == pytest.approx(8 * 0.5 * overhead)
    by_nodes = charged(attempt(energy_j=3.6e7)).total.total.kwh
    assert by_nodes.value == pytest.approx(10 * prices.pue.typical)
    guessed = charged(attempt()).total.total.kwh
    assert guessed.low is not None and guessed.value is not None and guessed.high is not None
    # Somewhere between all idle and all at the limit of 700 W.
    assert guessed.low < 8 * 0.7 * 0.2 * overhead < guessed.value < 8 * 0.7 * overhead < guessed.high
    assert guessed.provenance == "assumed"


def test_idle_gpus_draw_less_than_busy_ones() -> None:
    (team,) = charged(attempt(), usages=(Usage(job="1", busy_share=0.5),)).teams
    assert team.idle_held is not None
    assert team.used.kwh.value is not None and team.idle_held.kwh.value is not None
    assert team.idle_held.kwh.value < team.used.kwh.value / 3


def test_carbon_is_of_the_grid_and_unknown_without_one() -> None:
    assert charged(attempt()).total.total.kg_co2.value is None
    france = charged(attempt(), tariff=msgspec.structs.replace(TARIFF, grid=grid_carbon("FR"))).total.total
    poland = charged(attempt(), tariff=msgspec.structs.replace(TARIFF, grid=grid_carbon("PL"))).total.total
    assert france.kg_co2.value is not None and poland.kg_co2.value is not None and france.kwh.value is not None
    assert france.kg_co2.value == pytest.approx(france.kwh.value * 0.031)
    assert poland.kg_co2.value / france.kg_co2.value == pytest.approx(565 / 31)


def test_a_budget_is_judged_by_what_its_team_spent() -> None:
    ranged = Tariff(prices=all_prices(), gpu="h100")  # 8 GPU-hours: 15.92 to 40, typically 23.60
    found = charged(
        attempt(),
        tariff=ranged,
        budgets={"vision": 20.0, "language": 5.0},
    )
    assert [(one.team, one.status) for one in found.budgets] == [("vision", "over"), ("language", "no jobs")]
    for usd, status in ((23.0, "over"), (24.0, "may be over"), (41.0, "within")):
        assert charged(attempt(), tariff=ranged, budgets={"vision": usd}).budgets[0].status == status
    unpriced = Tariff(prices=all_prices())
    assert charged(attempt(), tariff=unpriced, budgets={"vision": 1e9}).budgets[0].status == "unknown"


def test_a_budget_of_a_period_warns_ahead() -> None:
    """8 GPU-hours at 2 USD in the first 2 of 10 hours, so 80 USD by the end."""
    first, second = attempt("1", hours=0.5), attempt("2", hours=0.5)
    jobs = (
        msgspec.structs.replace(first, start_s=1000.0),
        msgspec.structs.replace(second, start_s=1000.0 + 1.5 * 3600),
    )
    for usd, status in ((15.0, "over"), (79.0, "will be over"), (81.0, "within")):
        (found,) = charged(*jobs, budgets={"vision": usd}, budget_period_s=36_000.0).budgets
        assert (found.status, found.expected_usd) == (status, pytest.approx(80))
        (found,) = charged(*jobs, budgets={"vision": usd}).budgets
        assert (found.status, found.expected_usd) == ("over" if usd < 16 else "within", None)
    (found,) = charged(*jobs, budgets={"vision": 17.0}, budget_period_s=3600.0).budgets
    assert (found.status, found.expected_usd) == ("within", pytest.approx(16))  # the period is over


def test_what_the_file_cannot_tell_is_noted() -> None:
    assert "without `sacct -D`" in charged(attempt("1"), attempt("2")).notes[0]
    assert charged(attempt("1", state="PREEMPTED"), attempt("1")).notes == ()
    assert "held a GPU" in charged(attempt(gpus=0)).notes[0]
    assert "77" in charged(attempt(), usages=(Usage(job="77", busy_share=1.0),)).notes[0]
    steps = chargeback(Attempts(path="x", attempts=(), num_rows=3, num_steps=3), {}, TARIFF)
    assert "all describe job steps" in steps.notes[0]
