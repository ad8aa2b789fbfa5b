"""What holds for every rule: its explanation, its form, and that each second is counted in one finding only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.attribute.strategies import group_traces, traces
from tests.diagnose.jobs import (
    GEMM,
    STEP,
    attributed,
    diagnosed,
    found,
    free_of_recorder_cost,
    names,
    times,
    total_cost_s,
)
from tests.diagnose.rules.test_straggler import computing
from tests.diagnose.rules.test_unbalanced_data import with_lengths
from tests.diagnose.simulate import programs, simulated

from flatout.diagnose.explain import HEADINGS, explanation, explanations, listed
from flatout.diagnose.find import diagnose
from flatout.diagnose.finding import rank_words
from flatout.diagnose.rules import RULES
from flatout.errors import InputError
from flatout.records.diagnosis import Diagnosis
from flatout.report.text import diagnosis_text
from flatout.testing import TraceBuilder

NAMES = {
    "data-loading", "exposed-communication", "straggler", "checkpoint-stall", "host-bound", "host-sync",
    "pipeline-bubble", "redundant-gradient-sync", "exposed-all-gather", "no-tensor-cores", "small-kernels",
    "allocator-churn", "memory-copy", "unbalanced-data", "late-in-turn", "idle-devices",
    "epoch-boundary", "garbage-collection", "evaluation-stall", "periodic-stall", "epoch-sawtooth", "drift",
    "separate-reductions", "preprocessing", "no-kv-cache", "repeated-prefill", "small-batch",
    "thread-oversubscription", "idle-cores", "eager-mode",
}  # fmt: skip
PLAIN_GEMM = "volta_sgemm_128x64_nn"
MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

every_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.NAME for rule in RULES])


# --- their explanations


def test_there_is_a_rule_for_each_name_and_no_other() -> None:
    assert {rule.NAME for rule in RULES} == NAMES
    assert len(RULES) == len(NAMES)


@every_rule
def test_a_rule_is_explained_under_five_headings(rule: type) -> None:
    found_explanation = explanation(rule.NAME)  # type: ignore[attr-defined]
    assert tuple(found_explanation.sections) == HEADINGS
    assert HEADINGS == ("What it means", "Why it costs", "Evidence", "Change to try", "When this is wrong")
    for text in found_explanation.sections.values():
        assert text.strip()
        assert not text.startswith(" "), "indented"
    assert found_explanation.summary.endswith(".")
    assert "\n" not in found_explanation.summary


@every_rule
def test_a_rule_is_found_by_its_name_and_its_code_in_any_case(rule: type) -> None:
    name, code = rule.NAME, rule.CODE  # type: ignore[attr-defined]
    assert explanation(name) == explanation(code) == explanation(name.upper()) == explanation(code.lower())
    assert (explanation(name).code, explanation(name).name) == (code, name)


def test_codes_are_stable_and_no_two_are_alike() -> None:
    codes = [rule.CODE for rule in RULES]
    assert sorted(codes) == [f"F{number:02}" for number in range(1, len(RULES) + 1)]


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InputError, match="no finding named slowness") as error:
        explanation("slowness")
    for name in NAMES:
        assert name in error.value.hint


def test_the_list_and_the_warnings_are_of_all_rules() -> None:
    assert {name for name, _ in listed()} == NAMES
    assert explanations().keys() == NAMES
    assert all(text and "\n" not in text for text in explanations().values())


def test_specific_rules_stand_before_those_that_they_take_from() -> None:
    order = [rule.NAME for rule in RULES]
    for specific, general in (
        ("redundant-gradient-sync", "exposed-communication"),
        ("separate-reductions", "exposed-communication"),
        ("exposed-all-gather", "exposed-communication"),
        ("host-sync", "host-bound"),
        ("allocator-churn", "host-bound"),
        ("small-kernels", "host-bound"),
        ("checkpoint-stall", "memory-copy"),
        ("preprocessing", "host-bound"),
        ("small-batch", "eager-mode"),
        ("thread-oversubscription", "idle-cores"),
        ("eager-mode", "host-bound"),
        ("no-kv-cache", "drift"),
        ("unbalanced-data", "straggler"),
        ("unbalanced-data", "late-in-turn"),
        ("late-in-turn", "straggler"),
    ):
        assert order.index(specific) < order.index(general)


# --- the form of their findings


def eventful() -> list[TraceBuilder]:
    """Two ranks with a bit of everything, rank 1 late by its compute in fp32."""
    ranks = [TraceBuilder(0), TraceBuilder(1)]
    for trace, more in zip(ranks, (0, 1000), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).data_loading(at, 500).malloc(at + 500, 250).free(at + 750, 250)
            trace.copy("HtoD", num_bytes=2**20, launch_at=at + 1000, launch_duration=500, start=at + 1000,
                       duration=500, pageable=True)  # fmt: skip
            trace.launch(PLAIN_GEMM, at + 1800, 5, at + 1805, 2000 + more)
            trace.sync("cudaStreamSynchronize", at + 1810, 1995 + more).annotation("torch.save", at + 3900 + more, 300)
            begin = at + 4300 + more
            trace.collective("allreduce", begin, begin + 5, at + 6500 - begin)
            trace.annotation("Optimizer.step#AdamW.step", at + 6600, 2400)
            for i in range(120):
                trace.launch("adam", at + 6600 + 20 * i, 20, at + 6620 + 20 * i, 5)
    return ranks


def check_form(diagnosis: Diagnosis, ranks: set[int]) -> None:
    for finding in diagnosis.findings:
        assert finding.name in NAMES
        assert finding.ranks
        assert set(finding.ranks) <= ranks
        assert list(finding.ranks) == sorted(set(finding.ranks))
        assert finding.cost_s_per_step > 0
        assert finding.share_of_step >= 0.02
        assert finding.changes
        assert finding.safety in ("exact", "rounding", "semantic")
        assert finding.confidence in ("high", "medium", "inconclusive")
        assert finding.title
        assert "\n" not in finding.title
        assert not re.search(r"\bnan\b|\binf\b|None", finding.title)
        assert msgspec.json.decode(msgspec.json.encode(finding.evidence)) == json.loads(
            json.dumps(finding.evidence, allow_nan=False)
        )
    costs = [finding.cost_s_per_step for finding in diagnosis.findings]
    assert costs == sorted(costs, reverse=True)


def test_findings_are_complete_and_their_evidence_can_be_written() -> None:
    diagnosis = diagnosed(*eventful())
    assert len(diagnosis.findings) >= 6
    check_form(diagnosis, {0, 1})


@MANY
@given(st.one_of(programs().map(simulated), group_traces(), traces.map(lambda trace: [trace])), st.booleans())
def test_any_job_is_diagnosed_in_that_form(ranks: list[TraceBuilder], is_free: bool) -> None:
    diagnosis = free_of_recorder_cost(*ranks) if is_free else diagnosed(*ranks)
    check_form(diagnosis, {trace.rank for trace in ranks})


@pytest.mark.parametrize(
    ("ranks", "num_ranks", "words"),
    [
        ((2,), 8, "rank 2"),
        ((0, 3), 8, "ranks 0 and 3"),
        ((0, 1, 2, 5), 8, "ranks 0, 1, 2 and 5"),
        ((0, 1, 2, 5, 6), 8, "5 of 8 ranks"),
        (tuple(range(8)), 8, "all 8 ranks"),
        ((0, 1), 2, "both ranks"),
        ((0, 1, 2), 3, "all 3 ranks"),
        ((0,), 1, "rank 0"),
    ],
)
def test_up_to_four_ranks_are_named(ranks: tuple[int, ...], num_ranks: int, words: str) -> None:
    assert rank_words(ranks, num_ranks) == words


def late_by_loading(num_ranks: int) -> list[TraceBuilder]:
    """All load data, and the last rank for longest."""
    traces = [TraceBuilder(rank, num_ranks) for rank in range(num_ranks)]
    for trace in traces:
        load = 3000 if trace.rank == num_ranks - 1 else 1000
        for number, at in times(2):
            trace.step(number, at, STEP).data_loading(at, load).launch(GEMM, at + load, 5, at + load + 5, 2000)
            trace.collective("allreduce", at + load + 5, at + load + 2005, 3020 - load)
            trace.launch(GEMM, at + load + 6, 1, at + 5025, STEP - 5025)
    return traces


def late_by_launching(num_ranks: int) -> list[TraceBuilder]:
    """The host of the last rank launches last."""
    traces = [TraceBuilder(rank, num_ranks) for rank in range(num_ranks)]
    for trace in traces:
        idle = 3000 if trace.rank == num_ranks - 1 else 1000
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at + idle - 5, 5, at + idle, 2000)
            trace.collective("allreduce", at + idle, at + idle + 2000, 3020 - idle)
            trace.launch(GEMM, at + idle + 2, 1, at + 5020, STEP - 5020)
    return traces


@pytest.mark.parametrize(
    ("make", "name", "keys"),
    [
        (late_by_loading, "data-loading", {"idle_in_loader_s"}),
        (late_by_launching, "host-bound", {"traced_idle_s", "others_wait_s"}),
        (lambda num_ranks: computing(*(0,) * (num_ranks - 1), 3000), "straggler", {"waiting_s"}),
        (
            lambda num_ranks: with_lengths(*((1000, 1000),) * (num_ranks - 1), (4000, 4000), us_per_token=(1,) * 20),
            "unbalanced-data",
            {"input_elements", "compute_s"},
        ),
    ],
    ids=["data-loading", "host-bound", "straggler", "unbalanced-data"],
)
def test_evidence_is_by_rank_up_to_sixteen_of_them(
    make: Callable[[int], list[TraceBuilder]], name: str, keys: set[str]
) -> None:
    """With more ranks the evidence is one number or absent: a page of a thousand numbers helps nobody."""
    for num_ranks in (8, 18):
        evidence = found(free_of_recorder_cost(*make(num_ranks)), name).evidence
        for key in keys:
            assert isinstance(evidence[key], dict) == (num_ranks == 8), key


# --- each second belongs to one finding


def step_s(diagnosis: Diagnosis) -> float:
    if diagnosis.job.step_s is not None:
        return diagnosis.job.step_s
    return sum(rank.window_s for rank in diagnosis.ranks) / len(diagnosis.ranks)


def test_findings_of_an_eventful_job_do_not_cost_more_than_its_step() -> None:
    diagnosis = free_of_recorder_cost(*eventful())
    assert 0.5 * step_s(diagnosis) < total_cost_s(diagnosis.findings) <= step_s(diagnosis)


@MANY
@given(st.one_of(programs().map(simulated), group_traces(), traces.map(lambda trace: [trace])))
def test_findings_of_any_job_do_not_cost_more_than_its_step(ranks: list[TraceBuilder]) -> None:
    diagnosis = free_of_recorder_cost(*ranks)
    assert total_cost_s(diagnosis.findings) <= step_s(diagnosis) * (1 + 1e-9)


def test_compute_that_makes_a_rank_late_is_not_saved_twice() -> None:
    """Rank 1 multiplies for 900 us of 1000 without tensor cores, rank 0 for 100 and then waits for it.

    Balancing the two would save the wait, faster products would save it too: together no more than a step.
    """
    ranks = [TraceBuilder(0), TraceBuilder(1)]
    for trace, compute in zip(ranks, (1000, 9000), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).launch(PLAIN_GEMM, at, 5, at + 5, compute)
            trace.collective("allreduce", at + 5, at + 5 + compute, STEP - 5 - compute)
    diagnosis = free_of_recorder_cost(*ranks)
    assert total_cost_s(diagnosis.findings) <= step_s(diagnosis) * (1 + 1e-9)


def test_late_ranks_of_groups_that_never_meet_do_not_cost_more_than_a_step_together() -> None:
    """Ranks 1 and 3 each make one other rank wait for 8000 of 10,000 us."""
    ranks = [TraceBuilder(rank, 4) for rank in range(4)]
    for trace in ranks:
        members = (0, 1) if trace.rank < 2 else (2, 3)
        compute = 9000 if trace.rank % 2 else 1000
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, compute)
            trace.collective("allreduce", at + 5, at + 5 + compute, STEP - 5 - compute, group_ranks=members)
    diagnosis = free_of_recorder_cost(*ranks)
    assert {f.ranks for f in diagnosis.findings if f.name == "straggler"} == {(1,), (3,)}
    assert total_cost_s(diagnosis.findings) <= step_s(diagnosis) * (1 + 1e-9)


def test_a_step_of_a_healthy_job_has_no_finding() -> None:
    ranks = [TraceBuilder(0), TraceBuilder(1)]
    for trace in ranks:
        for number, at in times(3):
            trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 105)
            trace.collective("allreduce", at + 5, at + 2000, 500).collective("allreduce", at + 6, at + STEP - 100, 100)
    assert free_of_recorder_cost(*ranks).findings == ()


# --- of whole steps, or of the recording


def test_costs_are_means_over_the_steps() -> None:
    """3000 us of loading in one of three steps."""
    trace = TraceBuilder(0, 1)
    for number, at in times(3):
        load = 3000 if number == 2 else 0
        trace.step(number, at, STEP).data_loading(at, load)
        trace.launch(GEMM, at + load, 5, at + load + 5, STEP - load - 5)
    finding = found(free_of_recorder_cost(trace), "data-loading")
    assert finding.cost_s_per_step == pytest.approx(1000e-6)


def test_what_lies_in_the_lead_in_costs_nothing() -> None:
    """The warm-up's last kernel runs until 4000; a loader before that holds up nobody."""
    trace = TraceBuilder(0, 1).launch(GEMM, -100, 5, 1000, 3000)
    trace.step(1, 0, STEP).data_loading(0, 900).launch(GEMM, 1000, 5, 4000, STEP - 4000)
    diagnosis = free_of_recorder_cost(trace)
    assert diagnosis.findings == ()
    assert diagnosis.ranks[0].lead_in_s == pytest.approx(4000e-6)
    assert diagnosis.job.step_s == pytest.approx(6000e-6)


def test_without_steps_the_recording_stands_for_one() -> None:
    trace = TraceBuilder(0, 1).op("aten::mm", 0, 1).data_loading(0, 3000).launch(GEMM, 3000, 5, 3005, STEP - 3005)
    diagnosis = free_of_recorder_cost(trace)
    assert diagnosis.job.step_s is None
    assert found(diagnosis, "data-loading").cost_s_per_step == pytest.approx(3000e-6)
    assert found(diagnosis, "data-loading").share_of_step == pytest.approx(0.3)
    assert any("no ProfilerStep" in note.problem for note in diagnosis.data_quality)


def test_without_steps_no_printed_title_speaks_of_a_step() -> None:
    """Costs are of the whole recording: 40 calls in it must not be printed as 40 per step."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, more in zip(traces, (0, 2000), strict=True):
        time = 5.0
        for _ in range(40):
            trace.launch(GEMM, time - 5, 5, time, 150).op("aten::item", time + 2, 150)
            trace.sync("cudaStreamSynchronize", time + 3, 148)
            time += 200
        trace.launch(GEMM, time - 5, 5, time, 1000 + more)
        trace.collective("allreduce", time, time + 1000 + more, 4000 - more)
    diagnosis = free_of_recorder_cost(*traces)
    assert {"host-sync", "straggler"} <= set(names(diagnosis))
    printed = " ".join(diagnosis_text(diagnosis).split())
    for finding in diagnosis.findings:
        assert finding.title in printed
        assert not re.search(r"\b(a|each|every|per|the) step\b", finding.title)


def test_an_empty_recording_has_no_finding() -> None:
    diagnosis = diagnosed(TraceBuilder(0, 1))
    assert diagnosis.findings == ()
    assert diagnosis.ranks[0].window_s == 0


def test_missing_ranks_are_told_with_what_they_hide() -> None:
    diagnosis = diagnosed(TraceBuilder(1, 4).step(1, 0, STEP).collective("allreduce", 0, 10, 5000))
    notes = [note for note in diagnosis.data_quality if "3 of 4 ranks" in note.problem]
    assert len(notes) == 1
    assert "0, 2, 3" in notes[0].problem
    assert "communication_unsplit" in notes[0].effect


def test_the_same_job_is_always_diagnosed_alike() -> None:
    job = attributed(*eventful())
    assert diagnose(job) == diagnose(job)


def test_much_idle_time_that_no_rule_covers_is_told() -> None:
    trace = TraceBuilder(0, 1)
    for number in range(3):
        at = 1000 * number
        trace.step(number + 1, at, 1000).launch("relu", at, 2, at + 400, 590)
    diagnosis = free_of_recorder_cost(trace)
    assert diagnosis.findings == ()
    told = [note.problem for note in diagnosis.data_quality if "launch latency" in note.problem]
    assert len(told) == 1 and re.match(r"(39|4[01]) % of the step is idle", told[0])
