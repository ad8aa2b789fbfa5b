"""Spot or on demand: against a simulation that goes second by second, and public figures of public traces."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.cost.spot import DECIDE_EVERY_S, SpotJob, availability, replay, spot_advice, wilson, youngs_interval_s
from flatout.errors import InputError, UsageError
from flatout.read.spot_trace import read_spot_trace
from flatout.records.spot import STRATEGIES, SpotTrace, Strategy


def trace(*steps: tuple[float, int], end_s: float) -> SpotTrace:
    return SpotTrace(
        path="trace", times_s=tuple(time for time, _ in steps), counts=tuple(count for _, count in steps), end_s=end_s
    )


def second_by_second(
    trace: SpotTrace, job: SpotJob, strategy: Strategy, start: int
) -> tuple[int | None, dict[str, int], int, int]:
    """What the docstring of `cost.spot` says, in the plainest way: finish, seconds held, losses, work done again."""
    work, deadline, every, save, restart = (
        int(each)
        for each in (job.work_s, job.deadline_s, job.checkpoint_interval_s, job.checkpoint_cost_s, job.restart_s)
    )
    counts: list[int] = []
    for time_s, until_s, count in zip(trace.times_s, (*trace.times_s[1:], trace.end_s), trace.counts, strict=True):
        counts += [count] * round(until_s - time_s)
    enough = [count >= job.num_instances for count in counts]
    on, is_final = None, False
    saved = unsaved = starting = saving = losses = again = 0
    held = {"spot": 0, "on-demand": 0}
    now = start
    while now < len(enough) or on == "on-demand":
        there = now < len(enough) and enough[now]
        if on == "spot" and not there:
            losses, again, on, unsaved, starting, saving = losses + 1, again + unsaved, None, 0, 0, 0
            is_lost = True
        else:
            is_lost = False
        flips = now < len(enough) and (now == start or enough[now] != enough[now - 1])
        is_told = now < len(enough)  # beyond its end, a trace tells nothing
        if is_lost or flips or (is_told and strategy == "mix" and (now - start) % DECIDE_EVERY_S == 0):
            safe = saved if on == "spot" else saved + unsaved
            left = work - safe
            needed = save + restart + left + max(math.ceil(left / every) - 1, 0) * save
            pace = work * min((now - start) / deadline, 1)
            later = work * min((now + 2 * restart - start) / deadline, 1)
            to: str | None
            is_final = is_final or (strategy == "mix" and start + deadline - now - DECIDE_EVERY_S < needed)
            if strategy == "on-demand" or is_final:
                to = "on-demand"
            elif strategy == "spot":
                to = "spot" if there else None
            elif on == "on-demand" and saved + unsaved < later:
                to = "on-demand"
            elif there:
                to = "spot"
            else:
                to = "on-demand" if on is None and saved + unsaved < pace else None
            if to != on:
                starting = restart + (save if on and to else 0)
                saved, unsaved, saving, on = saved + unsaved, 0, 0, to
        now += 1
        if on is None:
            continue
        held[on] += 1
        if starting:
            starting -= 1
        elif saving:
            saving -= 1
            if not saving:
                saved, unsaved = saved + unsaved, 0
        else:
            unsaved += 1
            if saved + unsaved == work:
                return now - start, held, losses, again
            if unsaved == every:
                saving = save
                if not save:
                    saved, unsaved = saved + unsaved, 0
    return None, held, losses, again


@settings(max_examples=150, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 3)), min_size=1, max_size=12),
    work=st.integers(1, 1500),
    slack=st.integers(0, 2000),
    every=st.integers(1, 400),
    save=st.integers(0, 40),
    restart=st.integers(0, 120),
    num_instances=st.integers(1, 3),
    start=st.integers(0, 800),
    strategy=st.sampled_from(STRATEGIES),
)
def test_a_replay_is_what_going_second_by_second_gives(
    spans: list[tuple[int, int]],
    work: int,
    slack: int,
    every: int,
    save: int,
    restart: int,
    num_instances: int,
    start: int,
    strategy: Strategy,
) -> None:
    times, time_s = [], 0
    for span, _ in spans:
        times.append(float(time_s))
        time_s += span
    found = SpotTrace(path="x", times_s=tuple(times), counts=tuple(count for _, count in spans), end_s=float(time_s))
    start = min(start, time_s - 1)
    job = SpotJob(
        work_s=work,
        deadline_s=restart + work + (math.ceil(work / every) - 1) * save + slack,
        checkpoint_interval_s=every,
        checkpoint_cost_s=save,
        restart_s=restart,
        num_instances=num_instances,
    )
    finish, held, losses, again = second_by_second(found, job, strategy, start)
    run = replay(found, job, strategy, start)
    assert (run.finish_s, run.spot_s, run.on_demand_s, run.num_losses, run.lost_work_s) == (
        finish if finish is None else pytest.approx(finish),
        pytest.approx(held["spot"]),
        pytest.approx(held["on-demand"]),
        losses,
        pytest.approx(again),
    )


@settings(max_examples=100, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(60, 20_000), st.integers(0, 1)), min_size=2, max_size=30),
    slack=st.floats(1.05, 3),
    restart=st.integers(0, 600),
    save=st.integers(0, 60),
)
def test_the_mix_never_misses_a_deadline_that_on_demand_meets(
    spans: list[tuple[int, int]], slack: float, restart: int, save: int
) -> None:
    total = sum(span for span, _ in spans)
    times = [float(sum(span for span, _ in spans[:place])) for place in range(len(spans))]
    found = SpotTrace(path="x", times_s=tuple(times), counts=tuple(count for _, count in spans), end_s=float(total))
    job = SpotJob(
        work_s=total / 5, deadline_s=1.0, checkpoint_interval_s=900, checkpoint_cost_s=save, restart_s=restart
    )
    needed = restart + job.duration_s(job.work_s) + save
    job = SpotJob(
        work_s=job.work_s,
        deadline_s=max(needed * slack, needed + DECIDE_EVERY_S),
        checkpoint_interval_s=900,
        checkpoint_cost_s=save,
        restart_s=restart,
    )
    for start in (0.0, total / 7, total / 3):
        run = replay(found, job, "mix", start)
        if start + job.deadline_s <= total:
            assert run.finish_s is not None
            assert run.finish_s <= job.deadline_s + 1e-6


def test_a_loss_costs_what_was_not_saved_and_a_start() -> None:
    found = trace((0, 1), (1000, 0), (2000, 1), end_s=10_000)
    job = SpotJob(work_s=1000, deadline_s=5000, checkpoint_interval_s=300, restart_s=100)
    run = replay(found, job, "spot", 0)
    # 100 of start, 900 of work of which all is saved; after the gap 100 of start and 100 of work.
    assert (run.finish_s, run.spot_s, run.num_losses, run.lost_work_s) == (2200, 1200, 1, 0)
    run = replay(found, SpotJob(work_s=1000, deadline_s=5000, checkpoint_interval_s=400, restart_s=100), "spot", 0)
    assert (run.finish_s, run.num_losses, run.lost_work_s) == (2300, 1, 100)


def test_where_spot_is_always_there_all_take_it() -> None:
    found = spot_advice(
        trace((0, 4), end_s=400_000),
        SpotJob(work_s=36_000, deadline_s=72_000, checkpoint_interval_s=3600, num_instances=4),
        spot_usd_per_h=1.0,
        on_demand_usd_per_h=3.0,
    )
    cost = {one.strategy: one.cost_usd_mean for one in found.outcomes}
    hours = 10 + 300 / 3600
    assert cost == {
        "spot": pytest.approx(4 * hours),
        "on-demand": pytest.approx(4 * 3 * hours),
        "mix": pytest.approx(4 * hours),
    }
    assert found.advice in ("spot", "mix")
    assert found.availability.mean_time_to_loss_s is None


def test_where_spot_is_never_there_on_demand_is_the_advice() -> None:
    found = spot_advice(
        trace((0, 0), end_s=400_000),
        SpotJob(work_s=36_000, deadline_s=72_000, checkpoint_interval_s=3600),
        spot_usd_per_h=1.0,
        on_demand_usd_per_h=3.0,
    )
    by_name = {one.strategy: one for one in found.outcomes}
    assert (by_name["spot"].met_share, by_name["spot"].num_unfinished) == (0, 200)
    assert by_name["spot"].finish_s_quantiles["p50"] is None
    assert by_name["mix"].met_share == 1
    assert found.advice == "on-demand"


def test_a_deadline_or_trace_that_is_too_short_is_refused() -> None:
    job = SpotJob(work_s=36_000, deadline_s=36_000, checkpoint_interval_s=3600)
    with pytest.raises(UsageError, match=r"at least the work with a start and its checkpoints, 10\.08 h"):
        spot_advice(trace((0, 1), end_s=1e6), job, spot_usd_per_h=1, on_demand_usd_per_h=2)
    with pytest.raises(InputError, match="at least as long as the deadline"):
        spot_advice(
            trace((0, 1), end_s=1e4),
            SpotJob(work_s=36_000, deadline_s=50_000, checkpoint_interval_s=3600),
            spot_usd_per_h=1,
            on_demand_usd_per_h=2,
        )


def test_the_interval_of_a_share_is_wilsons() -> None:
    """Against the score test: at the ends of the interval the share lies 1.96 standard errors away."""
    for share, number in ((0.5, 20), (0.84, 30), (0.1, 7)):
        for end in wilson(share, number):
            assert abs(share - end) / math.sqrt(end * (1 - end) / number) == pytest.approx(1.96, abs=1e-3)
    assert wilson(1.0, 30)[1] == 1
    assert wilson(0.0, 30)[0] == 0


def test_starts_that_overlap_do_not_narrow_the_interval() -> None:
    job = SpotJob(work_s=36_000, deadline_s=72_000, checkpoint_interval_s=3600)
    some, many = (
        spot_advice(trace((0, 1), end_s=400_000), job, spot_usd_per_h=1, on_demand_usd_per_h=3, num_starts=number)
        for number in (50, 200)
    )
    assert some.num_apart == many.num_apart == 5
    assert some.outcomes[0].met_share_interval == many.outcomes[0].met_share_interval == wilson(1.0, 5)


def test_youngs_interval() -> None:
    assert youngs_interval_s(20, 4000) == 400


@pytest.fixture(scope="session")
def public(shared_data: Path) -> Path:
    return shared_data / "job_traces"


def test_public_traces_have_the_availability_that_is_published_of_them(public: Path) -> None:
    """One V100 of AWS for 45 days: there 17-90 % of the time, lost after 0.7-10.5 h; 8 of them after 0.8-1.2 h."""
    folder = public / "skypilot_spot" / "availability" / "1-node"
    one = [availability(read_spot_trace(path), 1) for path in (folder / "aws-02-15-2023").glob("*.json")]
    assert len(one) == 9
    assert [round(f([each.share for each in one]), 2) for f in (min, max)] == [0.17, 0.90]
    hours = [each.mean_time_to_loss_s / 3600 for each in one if each.mean_time_to_loss_s is not None]
    assert [round(f(hours), 1) for f in (min, max)] == [0.7, 10.5]
    eight = [availability(read_spot_trace(path), 1) for path in (folder / "aws-10-26-2022").glob("*v100_8.json")]
    assert sorted(round((each.mean_time_to_loss_s or 0) / 3600, 1) for each in eight) == [0.8, 1.2]


def test_public_events_and_samples_are_read(public: Path) -> None:
    found = read_spot_trace(public / "bamboo_spot" / "p3-trace.csv")
    lines = (public / "bamboo_spot" / "p3-trace.csv").read_text().split()
    assert found.counts[-1] == sum(1 if ",add," in line else -1 for line in lines)
    assert found.end_s == 40_920
    google = read_spot_trace(public / "bamboo_spot" / "gcloud" / "a100x1-east1b.txt")
    assert (google.counts[:2], google.times_s[1]) == ((55, 54), 260)
    with pytest.raises(InputError, match="line 4: times must not decrease"):
        read_spot_trace(public / "bamboo_spot" / "gcloud" / "v100x1-east1c.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{}", "is not a spot-instance trace"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "a positive gap"),
        ('{"metadata": {"gap_seconds": 60}, "data": []}', "a positive gap and data"),
        ('{"metadata": {"gap_seconds": 60}, "data": [-1]}', "counts of 0 or more"),
        ("0,add,a\n5,swap,b\n", "line 2: must look like `480000,add,node1`"),
        ("5,add,a\n3,add,b\n", "line 2: times must not decrease"),
        ("hello\n", "line 1: must look like"),
        ("2026-01-01, 00:00:00, x\n", "line 1: must look like"),
        ("0,add,a\n", "must cover some time"),
        ('{"metadata": {"gap_seconds": 1e21}, "data": [0, 1]}', r"at most 3,153,600,000 s \(a hundred years\)"),
        ('{"metadata": {"gap_seconds": 1576800000.5}, "data": [0, 1]}', "a hundred years"),
        ("0,add,a\n3153600000001,remove,a\n", "a hundred years"),
        ("0,add,a\n" + "9" * 5000 + ",remove,a\n", "line 2: must look like"),
        ("0,add,a\n²,remove,a\n", "line 2: must look like"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_spot_trace(path)
    assert "\n" not in str(caught.value)


def test_a_trace_of_a_hundred_years_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"metadata": {"gap_seconds": 1576800000}, "data": [0, 1]}')
    assert read_spot_trace(path).end_s == 100 * 365 * 86_400
