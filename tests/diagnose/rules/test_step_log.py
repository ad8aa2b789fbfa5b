"""Findings from the step log of a recording: their cause, cost, period and ranks; and both sides of each threshold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagnose.jobs import attributed
from tests.step_log.recorded_ranks import rank_of, steps_of

from flatout.attribute.job import attribute_job
from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced
from flatout.diagnose.stalls import period_of
from flatout.diagnose.traced_stall import clause_of
from flatout.diagnosis_pipeline import Diagnosed, diagnose_paths
from flatout.records.change import JobFacts
from flatout.records.diagnosis import Diagnosis, Finding
from flatout.records.recording import Steps
from flatout.records.stall_trace import StalledRank, StallTrace, TracedActivity
from flatout.step_log.job_log import job_log
from flatout.step_log.totals import step_totals
from flatout.testing import TraceBuilder

DATA = Path(__file__).parents[2] / "data" / "cases"
REGULAR_S = 0.010
NUM_STEPS = 200


def steps(stalls: Mapping[int, float], num: int = NUM_STEPS, **columns: Mapping[int, float]) -> Steps:
    durations = [REGULAR_S * (1.01 if step % 2 else 0.99) + stalls.get(step, 0.0) for step in range(num)]
    return steps_of(durations, **columns)


def diagnosed(*ranks: Steps, facts: JobFacts | None = None) -> Diagnosis:
    log = job_log([rank_of(number, of_rank, len(ranks)) for number, of_rank in enumerate(ranks)])
    return diagnose(attribute_job([]), log=log, facts=facts or JobFacts())


def only(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


def every(period: int, seconds: float, first: int | None = None) -> dict[int, float]:
    return dict.fromkeys(range(period if first is None else first, NUM_STEPS, period), seconds)


@pytest.mark.parametrize(
    ("column", "name", "cause"),
    [
        ("checkpoint_s", "checkpoint-stall", "checkpoint"),
        ("evaluation_s", "evaluation-stall", "evaluation"),
        ("collection_s", "garbage-collection", "garbage collection"),
        ("compilation_s", "periodic-stall", "compilation"),
        ("logging_s", "periodic-stall", "logging"),
        ("loader_start_s", "periodic-stall", "loader start"),
    ],
)
def test_one_rank_stalls_and_the_other_waits(column: str, name: str, cause: str) -> None:
    stalls = every(20, 0.3)
    finding = only(diagnosed(steps(stalls), steps(stalls, **{column: stalls})))
    assert (finding.name, finding.evidence["cause"], finding.ranks) == (name, cause, (1,))
    assert finding.evidence["waiting_ranks"] == [0]
    assert finding.evidence["period_steps"] == 20
    assert finding.evidence["num_stalled_steps"] == 9
    assert finding.cost_s_per_step == pytest.approx(9 * 0.3 / NUM_STEPS, rel=0.02)
    assert finding.share_of_step == pytest.approx(9 * 0.3 / (9 * 0.3 + NUM_STEPS * REGULAR_S), rel=0.02)
    assert finding.confidence == "high"


@pytest.mark.parametrize(("share", "is_named"), [(0.09, False), (0.11, True)])
@pytest.mark.parametrize(("method", "first"), [("fork", "persistent_workers=True"), ("spawn", "DataLoader(multiproc")])
def test_an_evaluation_whose_loader_starts_says_so(share: float, is_named: bool, method: str, first: str) -> None:
    """Both ranks evaluate for 0.3 s; for a share of it they wait for new workers."""
    stalls, starts = every(20, 0.3), every(20, 0.3 * share)
    ranks = [steps(stalls, evaluation_s=stalls, evaluation_loader_s=starts) for _ in range(2)]
    log = job_log([rank_of(number, of_rank) for number, of_rank in enumerate(ranks)])
    facts = JobFacts(loader_start_method=method, loader_workers=2)
    (finding,) = diagnose(attribute_job([]), log=log, facts=facts).findings
    assert finding.name == "evaluation-stall"
    assert ("loader_start_share" in finding.evidence) == is_named
    assert finding.changes[0].startswith(first) == is_named
    if is_named:
        assert finding.evidence["loader_start_share"] == pytest.approx(share)
        assert finding.evidence["loader_start_s"] == pytest.approx(0.3 * share)


@pytest.mark.parametrize(("is_iterable", "is_told"), [(True, True), (None, True), (False, False)])
def test_wherever_more_workers_are_advised_the_samples_of_an_iterable_data_set_repeat(
    is_iterable: bool | None, is_told: bool
) -> None:
    facts = JobFacts(loader_is_iterable=is_iterable)
    late = every(20, 0.3)
    durations = np.linspace(0.010, 0.030, 400)
    grown = steps_of(durations.tolist(), loader_s=dict(enumerate(durations - 0.009)))
    shrunk = steps_of(durations[::-1].tolist(), loader_s=dict(enumerate(durations[::-1] - 0.009)))
    for ranks, name in ((steps(late, loader_s=late), "periodic-stall"), (grown, "drift"), (shrunk, "drift")):
        finding = only(diagnosed(ranks, facts=facts))
        advised = [line for line in finding.changes if "more workers" in line]
        assert finding.name == name and len(advised) == 1
        assert ("repeat" in advised[0]) == is_told


@pytest.mark.parametrize(
    ("facts", "safety"),
    [
        (JobFacts(loader_draws=True), "semantic"),
        (JobFacts(loader_keeps_state=True), "semantic"),
        (JobFacts(loader_draws=False, loader_keeps_state=False), "exact"),
        (JobFacts(), "exact"),  # "exact only if", says its text
        (JobFacts(loader_draws=True, loader_start_method="spawn"), "exact"),  # a fork server comes first
    ],
)
def test_kept_workers_are_no_exact_change_of_a_data_set_that_draws_or_keeps_state(facts: JobFacts, safety: str) -> None:
    stalls = every(40, 1.0, first=0)
    ranks = [steps(stalls, loader_start_s=stalls, num_loader_ends=every(40, 1.0)) for _ in range(2)]
    finding = only(diagnosed(*ranks, facts=facts))
    assert (finding.name, finding.safety) == ("epoch-boundary", safety)


@pytest.mark.parametrize(("pickled_s", "is_named"), [(0.09, False), (0.11, True), (None, False)])
def test_a_data_set_that_takes_long_to_pickle_for_each_worker_is_named_first(
    pickled_s: float | None, is_named: bool
) -> None:
    starts = every(20, 1.0)
    log = job_log([rank_of(0, steps(starts, loader_start_s=starts, num_loader_ends=starts), 1)])
    size = None if pickled_s is None else 700_000_000
    facts = JobFacts(loader_start_method="spawn", loader_pickled_bytes=size, loader_pickled_s=pickled_s)
    (finding,) = diagnose(attribute_job([]), log=log, facts=facts).findings
    assert (finding.name, finding.evidence.get("pickled_per_worker_bytes")) == ("epoch-boundary", size)
    assert ("668 MiB are pickled for each worker" in finding.changes[0]) == is_named


@pytest.mark.parametrize(("sampler_s", "is_told"), [(0.18, False), (0.22, True), (0.9, True), (None, None)])
def test_a_sampler_that_takes_a_fifth_of_the_start_of_an_epoch_is_told(
    sampler_s: float | None, is_told: bool | None
) -> None:
    starts = every(20, 1.0)
    facts = JobFacts(loader_workers=2, loader_sampler_s=sampler_s)
    finding = only(diagnosed(steps(starts, loader_start_s=starts, num_loader_ends=starts), facts=facts))
    assert finding.name == "epoch-boundary" and finding.evidence.get("sampler_s") == sampler_s
    assert ("for its sampler" in finding.title) == bool(is_told)
    assert ("the sampler's order" in finding.changes[0]) == bool(is_told)
    assert any("time the sampler" in change for change in finding.changes) == (is_told is None)


@pytest.mark.parametrize(("seconds", "ranks"), [(0.045, (0,)), (0.055, (0, 1))])
def test_a_rank_that_hardly_has_the_cause_is_not_named(seconds: float, ranks: tuple[int, ...]) -> None:
    """Rank 0 writes for 0.5 s, and rank 1 in other steps for about a tenth of that."""
    on_0, on_1 = every(40, 0.5), every(40, seconds, first=60)
    stalls = on_0 | on_1
    finding = only(diagnosed(steps(stalls, checkpoint_s=on_0), steps(stalls, checkpoint_s=on_1)))
    assert len(on_0) == len(on_1)
    assert finding.ranks == ranks


def test_a_stall_that_nothing_explains_is_of_all_ranks_and_unknown() -> None:
    finding = only(diagnosed(steps(every(25, 0.2)), steps(every(25, 0.2))))
    assert (finding.name, finding.evidence["cause"], finding.ranks) == ("periodic-stall", "unknown", (0, 1))
    assert finding.evidence["period_steps"] == 25
    assert finding.confidence == "medium"


def test_the_start_of_an_epoch_is_found_by_the_end_of_the_loader() -> None:
    stalls = every(40, 1.0, first=0)
    ends = every(40, 1.0)
    ranks = [steps(stalls, loader_start_s=stalls, num_loader_ends=ends) for _ in range(2)]
    finding = only(diagnosed(*ranks))
    assert (finding.name, finding.evidence["cause"], finding.ranks) == ("epoch-boundary", "loader start", (0, 1))
    assert finding.cost_s_per_step == pytest.approx(5 * 1.0 / NUM_STEPS, rel=0.02)
    assert "persistent_workers" in finding.changes[0]


def test_each_second_belongs_to_one_finding() -> None:
    starts, saves = every(40, 0.5), every(50, 0.4)
    stalls = {step: starts.get(step, 0.0) + saves.get(step, 0.0) for step in starts | saves}
    rank = steps(stalls, loader_start_s=starts, num_loader_ends=starts, checkpoint_s=saves)
    found = {finding.name: finding.cost_s_per_step for finding in diagnosed(rank, rank).findings}
    assert found["epoch-boundary"] == pytest.approx(sum(starts.values()) / NUM_STEPS, rel=0.02)
    assert found["checkpoint-stall"] == pytest.approx(sum(saves.values()) / NUM_STEPS, rel=0.02)


@pytest.mark.parametrize(("seconds", "is_found"), [(0.0038, False), (0.0043, True)])
def test_stalls_below_two_percent_of_the_mean_step_are_none(seconds: float, is_found: bool) -> None:
    """Ten stalls of 4.08 ms in 200 steps of 10 ms are 2 %."""
    stalls = every(20, seconds, first=0)
    assert bool(diagnosed(steps(stalls, checkpoint_s=stalls)).findings) == is_found


@pytest.mark.parametrize(("num", "confidence"), [(2, "medium"), (3, "high")])
def test_three_stalls_make_high_confidence(num: int, confidence: str) -> None:
    stalls = dict.fromkeys((30, 70, 110)[:num], 0.5)
    assert only(diagnosed(steps(stalls, checkpoint_s=stalls))).confidence == confidence


@pytest.mark.parametrize(
    ("stalled", "period"),
    [
        ([10, 20, 30, 40], 10),
        ([10, 20], None),  # one gap
        ([10, 20, 30], 10),
        ([10, 11, 30, 31, 50, 51], 20),  # a stall can last into the next step
        ([0, 10, 20, 30, 45], 10),  # three of four gaps agree
        ([0, 10, 20, 35, 52], None),
        ([0, 100, 200, 310, 420, 520], 100),  # 10 % of the period
        ([0, 100, 200, 311, 422, 522], None),
        ([20, 21, 22, 23], None),  # steps in a row have no period
    ],
)
def test_a_period_needs_gaps_that_agree(stalled: list[int], period: int | None) -> None:
    assert period_of(stalled) == period


def test_steps_in_a_row_are_not_called_periodic() -> None:
    title = only(diagnosed(steps(dict.fromkeys(range(60, 64), 0.3)))).title
    assert "4 of 200 steps, one after another;" in title and "every" not in title


def drifting(first_s: float, last_s: float, num: int = 400, noise_s: float = 0.0) -> Steps:
    line = np.linspace(first_s, last_s, num)
    return steps_of(list(line + noise_s * (np.arange(num) % 3 - 1)))


@pytest.mark.parametrize(("last_s", "is_found"), [(0.01234, False), (0.01239, True)])
def test_steps_that_grow_drift(last_s: float, is_found: bool) -> None:
    """The means of the first and the last of eight parts are 1/16 from the ends: 20 % is at 12.32 ms.

    The baseline, which is smooth, is a little flatter at its ends: there it is at 12.37 ms.
    """
    findings = diagnosed(drifting(0.010, last_s)).findings
    assert [finding.name for finding in findings] == ["drift"] * is_found


def test_a_drift_costs_what_exceeds_the_shorter_end() -> None:
    """The shorter end is the mean of an eighth of the job, so it lies a sixteenth of the growth above the start."""
    finding = only(diagnosed(drifting(0.010, 0.030), drifting(0.010, 0.030)))
    assert finding.evidence["direction"] == "grow"
    assert finding.cost_s_per_step == pytest.approx(0.010 * 7 / 8, rel=0.05)
    shrinking = only(diagnosed(drifting(0.030, 0.010)))
    assert shrinking.evidence["direction"] == "shrink"
    assert shrinking.cost_s_per_step == pytest.approx(0.010 * 7 / 8, rel=0.05)


@pytest.mark.parametrize(("last_s", "ranks"), [(0.0295, (0,)), (0.0305, (0, 1))])
def test_a_drift_names_the_ranks_that_change_at_least_half_as_much_as_the_rank_that_changes_most(
    last_s: float, ranks: tuple[int, ...]
) -> None:
    """Rank 0 grows by 40 ms."""
    assert only(diagnosed(drifting(0.010, 0.050), drifting(0.010, last_s))).ranks == ranks


@pytest.mark.parametrize(("loader_share", "cause"), [(0.0, None), (0.45, None), (0.55, "data loading")])
def test_a_drift_of_the_loader_is_told_from_one_of_the_training(loader_share: float, cause: str | None) -> None:
    """The first epoch reads what later ones find in a cache, and so steps take 30 ms and then 10."""
    epoch = [0.030] * 100 + [0.010] * 300
    loads = dict.fromkeys(range(100), loader_share * 0.020)
    finding = next(f for f in diagnosed(steps_of(epoch, loader_s=loads)).findings if f.name == "drift")
    assert finding.evidence["cause"] == cause
    assert finding.cost_s_per_step == pytest.approx(0.020 / 4, rel=0.15)  # the baseline is smooth
    assert ("waiting for batches" in finding.title) == (cause is not None)
    assert not any("tensors kept" in change for change in finding.changes), "nothing grows"


@pytest.mark.parametrize(("noise_s", "is_found"), [(0.0015, True), (0.0030, False)])
def test_a_drift_is_larger_than_the_variation_of_steps(noise_s: float, is_found: bool) -> None:
    """The change is 6.1 ms; the standard deviation is 1.4826 times the noise, so the limit is at 2.06 ms."""
    findings = diagnosed(drifting(0.010, 0.017, noise_s=noise_s)).findings
    assert any(finding.name == "drift" for finding in findings) == is_found


@pytest.mark.parametrize(("num", "is_found"), [(99, False), (100, True)])
def test_a_drift_needs_a_hundred_steps(num: int, is_found: bool) -> None:
    assert bool(diagnosed(drifting(0.010, 0.040, num=num)).findings) == is_found


def test_steps_that_go_up_and_down_do_not_drift() -> None:
    wave = 0.020 + 0.010 * np.sin(np.linspace(0, 6 * np.pi, 400)) + np.linspace(0, 0.005, 400)
    assert not [finding for finding in diagnosed(steps_of(list(wave))).findings if finding.name == "drift"]


def test_a_regular_job_has_no_finding() -> None:
    assert not diagnosed(steps({}), steps({})).findings


def test_a_recording_without_traces_has_its_ranks_and_no_traced_step() -> None:
    stalls = every(20, 0.3)
    job = diagnosed(steps(stalls), steps(stalls)).job
    assert (job.num_ranks, job.num_steps, job.step_s, job.traced_share) == (2, 0, None, 0.0)


# --- collections in a plain trace. The labelled trace was made with pauses of 250 ms of each rank's host, in two of
# eight steps, of which the GPU's queue hides 100 ms


def test_pauses_of_the_host_at_different_steps_of_each_rank_are_collections() -> None:
    found = diagnose_paths([DATA / "gcgpu.tar.xz"]).diagnosis.findings
    first = found[0]
    assert (first.name, first.ranks, first.confidence) == ("garbage-collection", (0, 1, 2, 3), "medium")
    assert first.evidence["num_stalled_steps"] == 8
    assert first.evidence["pause_s"]["0"] == pytest.approx(0.150, rel=0.01)
    assert first.cost_s_per_step == pytest.approx(0.150, rel=0.01)  # each step has the pause of one rank
    assert sum(finding.cost_s_per_step for finding in found) <= 0.400


# --- costs from traces in a job of which they stand for a part


@pytest.fixture(scope="module")
def host_bound() -> Diagnosed:
    return diagnose_paths([DATA.parent / "traces" / "host_bound_small.tar.xz"])


def with_log(traced: Diagnosed, regular_s: float, stall_s: float, kind: Mapping[int, str] | None = None) -> Diagnosis:
    """Return the diagnosis of the traces with a log of 200 steps, of which every tenth writes a checkpoint."""
    stalls = every(10, stall_s)
    durations = [regular_s + stalls.get(step, 0.0) for step in range(NUM_STEPS)]
    kinds = [(kind or {}).get(step, "") for step in range(NUM_STEPS)]
    rank = rank_of(0, steps_of(durations, kinds, checkpoint_s=stalls))
    return diagnose(traced.job, log=job_log([rank]))


def test_a_trace_of_a_job_that_stalls_has_its_costs_scaled_to_the_regular_step(host_bound: Diagnosed) -> None:
    """The regular step is half of the traced one without the recorder, and stalls take as long as all regular steps."""
    alone = {finding.name: finding for finding in host_bound.diagnosis.findings}
    recorder_s = alone["host-bound"].evidence["recorder_cost_s"]
    traced_s = (host_bound.diagnosis.job.step_s or 0.0) - recorder_s
    diagnosis = with_log(host_bound, regular_s=traced_s / 2, stall_s=traced_s / 2 * 200 / 19)
    found = {finding.name: finding for finding in diagnosis.findings}
    cost_s = alone["host-bound"].cost_s_per_step
    assert found["host-bound"].cost_s_per_step == pytest.approx(cost_s / 2)
    assert found["host-bound"].share_of_step == pytest.approx(cost_s / 2 / traced_s)
    assert found["checkpoint-stall"].share_of_step == pytest.approx(0.5)
    assert diagnosis.job.traced_share == pytest.approx(0.5)
    assert sum(finding.share_of_step for finding in diagnosis.findings) <= 1.0
    assert any("the traces stand for 50 % of the job" in note.problem for note in diagnosis.data_quality)


def test_costs_are_in_proportion_if_the_jobs_steps_are_longer_than_the_traced_ones(host_bound: Diagnosed) -> None:
    """Shares stay those of the traced step, so that a bound is never below what removing the cost gains."""
    finding = next(each for each in host_bound.diagnosis.findings if each.name == "host-bound")
    regular_s = (host_bound.diagnosis.job.step_s or 0.0) - finding.evidence["recorder_cost_s"]
    longer = next(each for each in with_log(host_bound, 2 * regular_s, 0.0).findings if each.name == "host-bound")
    assert longer.cost_s_per_step == pytest.approx(2 * finding.cost_s_per_step)
    assert longer.share_of_step == pytest.approx(finding.cost_s_per_step / regular_s)


@pytest.mark.parametrize(("stalled_share", "is_noted"), [(0.09, False), (0.11, True)])
def test_traces_that_stand_for_nine_tenths_stand_for_the_job(
    host_bound: Diagnosed, stalled_share: float, is_noted: bool
) -> None:
    traced_s = host_bound.diagnosis.job.step_s or 0.0
    stall_s = stalled_share / (1 - stalled_share) * traced_s * 200 / 19
    diagnosis = with_log(host_bound, regular_s=traced_s, stall_s=stall_s)
    assert any("the traces stand for" in note.problem for note in diagnosis.data_quality) == is_noted


def test_all_costs_from_a_trace_together_are_at_most_the_regular_step(host_bound: Diagnosed) -> None:
    cost_s = max(finding.cost_s_per_step for finding in host_bound.diagnosis.findings)
    diagnosis = with_log(host_bound, regular_s=cost_s / 2, stall_s=0.0)
    assert sum(finding.cost_s_per_step for finding in diagnosis.findings) <= cost_s / 2


regular_steps = st.floats(1e-4, 2.0)
stalled_steps = st.dictionaries(st.integers(0, NUM_STEPS - 1), st.floats(0, 3.0), max_size=30)
COLUMNS = ("loader_start_s", "checkpoint_s", "evaluation_s", "collection_s", "logging_s")


@settings(max_examples=40, deadline=None)
@given(
    regular_s=regular_steps,
    growth=st.floats(0, 2),
    stalls=st.fixed_dictionaries(dict.fromkeys(COLUMNS, stalled_steps)),
    unexplained=stalled_steps,
    traced=st.integers(0, NUM_STEPS - 10),
)
def test_the_costs_of_all_findings_are_at_most_the_mean_step(
    host_bound: Diagnosed,
    regular_s: float,
    growth: float,
    stalls: dict[str, dict[int, float]],
    unexplained: dict[int, float],
    traced: int,
) -> None:
    """Any mixture of stalls of several causes, drift and traced steps, in a log of one or two ranks."""
    kinds = ["first", *[""] * (NUM_STEPS - 1)]
    kinds[traced + 1 : traced + 4] = ["traced"] * 3
    durations = []
    for step in range(NUM_STEPS):
        own = sum(column.get(step, 0.0) for column in stalls.values())
        durations.append(regular_s * (1 + growth * step / NUM_STEPS) + own + unexplained.get(step, 0.0))
    ranks = [rank_of(0, steps_of(durations, kinds, **stalls)), rank_of(1, steps_of(durations, kinds))]
    log = job_log(ranks)
    assert log is not None
    diagnosis = diagnose(host_bound.job, log=log)
    costs_s = [finding.cost_s_per_step for finding in diagnosis.findings]
    assert sum(costs_s) <= log.step_s * (1 + 1e-9)
    for finding in diagnosis.findings:
        assert finding.share_of_step == pytest.approx(finding.cost_s_per_step / log.step_s)
    totals = step_totals(ranks)
    assert totals is not None
    assert (totals.mean_step_s, totals.regular_step_s) == (log.step_s, log.regular_s)


def test_waiting_for_the_first_batch_of_the_job_is_no_period() -> None:
    """It occurs once, and the header says how long it was; with later waits it is one of them."""
    assert not diagnosed(steps({0: 3.0}, loader_start_s={0: 3.0})).findings
    waits = {0: 3.0, 50: 3.0}
    assert only(diagnosed(steps(waits, loader_start_s=waits))).evidence["num_stalled_steps"] == 2


@pytest.mark.parametrize(
    ("collects", "first"), [(False, "remove gc.collect()"), (True, "gc.disable()"), (None, "gc.disable()")]
)
def test_a_script_that_collects_by_itself_is_not_told_to_turn_the_collector_off(
    collects: bool | None, first: str
) -> None:
    stalls = every(20, 0.3)
    log = job_log([rank_of(0, steps(stalls, collection_s=stalls))])
    facts = JobFacts(collects_automatically=collects)
    assert only(diagnose(attribute_job([]), log=log, facts=facts)).changes[0].startswith(first)


def stalled_rank(number: int, step: int, *activities: TracedActivity, idle_s: float = 0.0) -> StalledRank:
    return StalledRank(rank=number, step=step, step_s=0.31, excess_s=0.3, activities=activities, idle_s=idle_s)


CHECKPOINT = TracedActivity(name="flatout:checkpoint", seconds=0.29, is_communication=False)
BARRIER = TracedActivity(name="gloo:barrier", seconds=0.29, is_communication=True)


def with_stall_trace(step: int, period: int, column: str | None = "checkpoint_s") -> Diagnosis:
    """Two ranks stall every 20 steps for 0.3 s, and the trace of one step shows rank 0 writing a checkpoint."""
    stalls = every(20, 0.3)
    ranks = [steps(stalls, **({column: stalls} if column else {})), steps(stalls)]
    log = job_log([rank_of(number, each) for number, each in enumerate(ranks)])
    trace = StallTrace(
        step=step,
        period_steps=period,
        ranks=(stalled_rank(0, step, CHECKPOINT), stalled_rank(1, step, BARRIER)),
    )
    return diagnose(attribute_job([]), log=log, stall_trace=trace)


def test_the_trace_of_a_stall_says_what_ran_in_it_and_on_which_rank() -> None:
    diagnosis = with_stall_trace(120, 20)
    finding = only(diagnosis)
    assert "the trace of step 120 shows flatout:checkpoint for 290 ms on rank 0" in finding.title
    assert finding.title.endswith("while rank 1 waits in a collective")
    assert finding.evidence["traced_stall_activity_s"]["flatout:checkpoint (rank 0)"] == 0.29
    assert diagnosis.job.traced_stall_share == finding.share_of_step


LOADER = TracedActivity(name="enumerate(DataLoader)", seconds=0.28, is_communication=False)
LOADER_SHORT = TracedActivity(name="enumerate(DataLoader)", seconds=0.13, is_communication=False)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (stalled_rank(1, 120, LOADER), "enumerate(DataLoader) for 280 ms on both ranks"),
        (stalled_rank(1, 120, LOADER_SHORT), "enumerate(DataLoader) for 280 ms on rank 0"),
        (stalled_rank(1, 120, idle_s=0.25), "enumerate(DataLoader) for 280 ms on rank 0"),
        (stalled_rank(1, 120, idle_s=0.29), "no event for 290 ms (Python, or a wait outside torch) on rank 1"),
    ],
)
def test_the_clause_names_what_took_longest_and_all_ranks_that_did_the_same(second: StalledRank, words: str) -> None:
    trace = StallTrace(step=120, period_steps=20, ranks=(stalled_rank(0, 120, LOADER), second))
    assert words in clause_of(trace)


@pytest.mark.parametrize(
    ("step", "period", "is_used"),
    [(121, 20, True), (119, 20, True), (130, 20, False), (122, 20, False), (130, 33, False), (120, 33, True)],
)
def test_a_trace_stands_for_stalls_at_its_step_or_in_its_period(step: int, period: int, is_used: bool) -> None:
    finding = only(with_stall_trace(step, period))
    assert ("traced_stall_step" in finding.evidence) is is_used


@pytest.mark.parametrize(("step", "period", "is_used"), [(200, 20, True), (201, 21, True), (202, 20, False)])
def test_a_stall_of_unknown_cause_is_found_by_its_period(step: int, period: int, is_used: bool) -> None:
    """No stall is seen in the traced step, because the recorder prolongs it too."""
    finding = only(with_stall_trace(step, period, column=None))
    assert finding.evidence["cause"] == "unknown"
    assert ("traced_stall_step" in finding.evidence) is is_used


def with_a_longer_traced_step(stall_us: float, num_stalls: int, longer_us: float, column: str | None) -> Diagnosis:
    """Three traced steps of 10 ms, of which the host idles 4 ms; it idles longer in the second of them.

    Before them, the job has stalls.
    """
    trace, at = TraceBuilder(0), 0.0
    for number, longer in enumerate((0.0, longer_us, 0.0), 100):
        trace.step(number, at, 10_000 + longer).launch("gemm", at + 3995 + longer, 5, at + 4000 + longer, 6000)
        at += 10_000 + longer
    kinds = ["traced" if 100 <= step <= 102 else "" for step in range(NUM_STEPS)]
    stalls = dict.fromkeys(range(15, 15 + 5 * num_stalls, 5), stall_us / 1e6) | {101: longer_us / 1e6}
    durations = [0.010 + stalls.get(step, 0.0) for step in range(NUM_STEPS)]
    log = job_log([rank_of(0, steps_of(durations, kinds, **({column: stalls} if column else {})))])
    assert log is not None
    untraced = Untraced(step_s=0.010, spread_s=1e-5, num_steps=100)
    diagnosis = diagnose(attributed(trace), log=log, untraced=untraced)
    assert diagnosis.job.step_s == pytest.approx(0.010 + longer_us / 3e6)
    assert sum(finding.cost_s_per_step for finding in diagnosis.findings) <= log.step_s
    return diagnosis


def check_left_out(diagnosis: Diagnosis, *, is_left_out: bool) -> None:
    notes = [note for note in diagnosis.data_quality if "traced steps stalled (step 101)" in note.problem]
    assert bool(notes) == is_left_out
    if is_left_out:
        (finding,) = (each for each in diagnosis.findings if each.name == "host-bound")
        assert finding.cost_s_per_step == pytest.approx(0.004, rel=0.01)
        assert "4.00 ms per step as traced" in finding.title


@pytest.mark.parametrize(("stall_us", "is_left_out"), [(5100, True), (4900, False)])
def test_a_traced_step_that_stalled_does_not_stand_for_the_regular_one(stall_us: float, is_left_out: bool) -> None:
    check_left_out(with_a_longer_traced_step(stall_us, 5, stall_us, "collection_s"), is_left_out=is_left_out)


@pytest.mark.parametrize(
    ("num_stalls", "longer_us", "is_left_out"), [(3, 20_100, True), (3, 19_900, False), (2, 40_000, False)]
)
def test_a_traced_step_as_long_as_stalls_of_unknown_cause_is_one(
    num_stalls: int, longer_us: float, is_left_out: bool
) -> None:
    """Stalls of 40 ms: a traced step that is longer than the others by half of that stands for no regular step."""
    check_left_out(with_a_longer_traced_step(40_000, num_stalls, longer_us, None), is_left_out=is_left_out)


def test_a_stall_in_a_traced_step_is_not_charged_to_the_trace_again(host_bound: Diagnosed) -> None:
    """The stall takes as long as all traced steps: nothing is left for findings of the trace."""
    traced_s = host_bound.diagnosis.job.step_s or 0.0
    num_traced = host_bound.diagnosis.job.num_steps
    rank = steps_of(
        [traced_s] * NUM_STEPS,
        ["traced" if step < num_traced else "" for step in range(NUM_STEPS)],
        collection_s={0: num_traced * traced_s},
    )
    diagnosis = diagnose(host_bound.job, log=job_log([rank_of(0, rank)]))
    assert not [finding.name for finding in diagnosis.findings if finding.name == "host-bound"]
