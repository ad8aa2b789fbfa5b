from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report import builder

from flatout.records.comparison import EnvironmentDifference
from flatout.records.diagnosis import PART_NAMES, Diagnosis
from flatout.report.diff import diff, diff_json
from flatout.report.diff_text import diff_text
from flatout.report.terminal import TextStyle

PAIRS = [(a, b) for a in sorted(builder.ALL) for b in ("straggler", "no_steps")]

times = st.floats(0, 0.1)
steps = st.lists(st.dictionaries(st.sampled_from(PART_NAMES), times, min_size=1), min_size=0, max_size=3)
findings = st.lists(
    st.tuples(st.sampled_from(["straggler", "host-bound", "data-loading"]), times, st.integers(0, 2)), max_size=5
)


@st.composite
def diagnoses(draw: st.DrawFn) -> Diagnosis:
    ranks = [builder.rank_of(rank, draw(steps)) for rank in range(draw(st.integers(0, 3)))]
    found = [builder.finding(name, cost_s, 0.1, ranks=(rank,)) for name, cost_s, rank in draw(findings)]
    return builder.diagnosis_of(ranks, findings=sorted(found, key=lambda finding: -finding.cost_s_per_step))


@settings(max_examples=60, deadline=None)
@given(diagnoses(), diagnoses())
def test_the_other_way_round_every_change_has_the_opposite_sign(a: Diagnosis, b: Diagnosis) -> None:
    forth, back = diff(a, b), diff(b, a)
    assert forth.basis == back.basis
    assert (forth.a, forth.b) == (back.b, back.a)
    assert forth.change_s == -back.change_s
    assert [part.part for part in forth.parts] == [part.part for part in back.parts]
    for there, here in zip(forth.parts, back.parts, strict=True):
        assert there.change_s == -here.change_s
        assert (there.a_s, there.a_share) == (here.b_s, here.b_share)
    opposite = {"new": "gone", "gone": "new", "both": "both"}
    swapped = [(f.name, opposite[f.state], f.b_ranks, f.a_ranks, 0.0 - f.change_s) for f in back.findings]
    assert sorted(swapped, key=str) == sorted(
        [(f.name, f.state, f.a_ranks, f.b_ranks, f.change_s) for f in forth.findings], key=str
    )


@settings(max_examples=60, deadline=None)
@given(diagnoses(), diagnoses())
def test_changes_of_the_parts_sum_to_the_change(a: Diagnosis, b: Diagnosis) -> None:
    result = diff(a, b)
    assert sum(part.change_s for part in result.parts) == pytest.approx(result.change_s, abs=1e-9)
    assert sorted(part.part for part in result.parts) == sorted(PART_NAMES)
    sizes = [abs(part.change_s) for part in result.parts]
    assert sizes == sorted(sizes, reverse=True)


@given(diagnoses())
def test_a_diagnosis_does_not_differ_from_itself(a: Diagnosis) -> None:
    result = diff(a, a)
    assert result.change_s == 0
    assert {part.change_s for part in result.parts} == {0.0}
    assert {(finding.state, finding.change_s) for finding in result.findings} <= {("both", 0.0)}


def job(num_steps: int, parts: Mapping[str, float]) -> Diagnosis:
    return builder.diagnosis_of([builder.rank_of(rank, [parts] * num_steps) for rank in range(2)])


def test_the_part_that_explains_the_difference_comes_first() -> None:
    """The labelled pair of a ResNet with and without loader workers, as an independent tool measured it."""
    a = job(6, {"compute": 0.0986, "data_loading": 0.0593, "host_launch": 0.0197})
    b = job(6, {"compute": 0.1038, "data_loading": 0.0012, "host_launch": 0.0361})
    result = diff(a, b)
    assert result.basis == "step"
    assert result.parts[0].part == "data_loading"
    assert result.parts[0].change_s == pytest.approx(-0.0581)
    assert result.ratio == pytest.approx(0.1411 / 0.1776)
    text = " ".join(diff_text(result, a, b).split())
    assert "A step took 178 ms in A and 141 ms in B" in text
    assert "The largest part of that is data loading, -58.1 ms." in text
    assert "no verdict" in text
    assert "step times range: A 178 ms to 178 ms, median 178 ms of 6" in text


def test_findings_are_new_gone_or_changed() -> None:
    def with_findings(*found: tuple[str, float, tuple[int, ...]]) -> Diagnosis:
        made = [builder.finding(name, cost_s, cost_s * 10, ranks=ranks) for name, cost_s, ranks in found]
        return builder.diagnosis_of([builder.rank_of(0, [{"compute": 0.1}])], findings=made)

    a = with_findings(("straggler", 0.05, (2,)), ("straggler", 0.01, (5,)), ("host-bound", 0.02, (0,)))
    b = with_findings(("straggler", 0.012, (5,)), ("data-loading", 0.03, (0,)))
    found = {(f.name, f.state, f.a_ranks, f.b_ranks): f.change_s for f in diff(a, b).findings}
    assert found == {
        ("straggler", "both", (5,), (5,)): pytest.approx(0.002),
        ("straggler", "gone", (2,), None): pytest.approx(-0.05),
        ("host-bound", "gone", (0,), None): pytest.approx(-0.02),
        ("data-loading", "new", None, (0,)): pytest.approx(0.03),
    }


@pytest.mark.parametrize(
    ("name", "a_ranks", "b_ranks", "states"),
    [
        ("straggler", (0,), (1,), {"gone", "new"}),
        ("data-loading", (0, 1), (2, 3), {"gone", "new"}),
        ("data-loading", (0, 1), (1, 2), {"both"}),
        ("host-bound", (0, 1), (0, 1, 2, 3), {"both"}),
    ],
)
def test_findings_of_different_ranks_are_different_findings(
    name: str, a_ranks: tuple[int, ...], b_ranks: tuple[int, ...], states: set[str]
) -> None:
    a, b = (
        builder.diagnosis_of(
            [builder.rank_of(0, [{"compute": 0.1}])], findings=[builder.finding(name, 0.05, 0.5, ranks=ranks)]
        )
        for ranks in (a_ranks, b_ranks)
    )
    changes = diff(a, b).findings
    assert {change.state for change in changes} == states
    assert sum(change.change_s for change in changes) == pytest.approx(0.0)


def test_without_steps_whole_windows_are_compared() -> None:
    a, b = builder.no_steps(), builder.straggler()
    result = diff(a, b)
    assert result.basis == "window"
    assert result.a.time_s == pytest.approx(2.041)
    assert result.b.time_s == pytest.approx(sum(rank.window_s for rank in b.ranks) / 4)
    assert result.b.step_s_median is None
    gone = next(finding for finding in result.findings if finding.name == "straggler")
    assert gone.b_cost_s == pytest.approx(0.0467 * 3)
    text = " ".join(diff_text(result, a, b).split())
    assert "no steps are marked in A: complete recordings are compared" in text


def recorded(mean_step_s: float, **fields: object) -> Diagnosis:
    """A recording of 300 steps whose traced steps all look the same, whatever its other steps took."""
    traced = job(3, {"compute": 0.008})
    values = {"num_recorded_steps": 300, "mean_step_s": mean_step_s, "regular_step_s": 0.008} | fields
    return msgspec.structs.replace(traced, job=msgspec.structs.replace(traced.job, **values))


def test_recordings_are_compared_by_all_of_their_steps() -> None:
    """The stalls of A are in none of its traced steps: 18.4 s against 4.9 s for 300 steps of 32 samples."""
    a = recorded(18.4 / 300, samples_per_s=9600 / 18.4)
    b = recorded(4.9 / 300, samples_per_s=9600 / 4.9)
    result = diff(a, b)
    assert result.basis == "recording"
    assert (result.a.time_s, result.b.time_s) == pytest.approx((18.4 / 300, 4.9 / 300))
    assert result.change_s == pytest.approx(-13.5 / 300)
    assert result.ratio == pytest.approx(4.9 / 18.4)
    assert result.speedup == pytest.approx(3.755, abs=0.001)
    assert result.has_same_work is True
    assert result.traced_change_s == 0
    text = " ".join(diff_text(result, a, b).split())
    assert "B is 3.76 times as fast as A, one run each. Over all 300 steps of A and 300 of B: 522 samples/s" in text
    assert "The regular step took 8.00 ms in A and 8.00 ms in B. A traced step took" in text


@pytest.mark.parametrize(("samples", "same"), [(32.3, True), (32.4, False)])
def test_steps_of_other_work_are_compared_by_their_rates(samples: float, same: bool) -> None:
    a, b = recorded(0.1, samples_per_s=320.0), recorded(0.1, samples_per_s=samples * 10)
    result = diff(a, b)
    assert result.ratio == 1
    assert result.speedup == pytest.approx(samples / 32)
    assert result.has_same_work is same
    assert ("different numbers of samples" in diff_text(result, a, b)) is not same


def test_without_samples_the_step_time_is_compared() -> None:
    result = diff(recorded(0.2), recorded(0.1))
    assert (result.speedup, result.has_same_work) == (2.0, None)


def test_a_trace_without_a_step_log_is_compared_by_its_traced_window() -> None:
    a, b = recorded(0.2), job(3, {"compute": 0.004})
    result = diff(a, b)
    assert (result.basis, result.ratio, result.a.regular_step_s) == ("step", pytest.approx(0.5), None)
    assert "B has no step log, so only the traced windows are compared" in " ".join(diff_text(result, a, b).split())
    assert not any("step log" in note for note in diff(b, b).notes)


def test_the_spread_is_of_steps_not_of_ranks() -> None:
    ranks = [
        builder.rank_of(rank, [{"compute": time_s + 0.001 * rank} for time_s in (0.1, 0.2, 0.12)]) for rank in (0, 1)
    ]
    side = diff(builder.diagnosis_of(ranks), builder.healthy()).a
    assert (side.step_s_min, side.step_s_median, side.step_s_max) == pytest.approx((0.1005, 0.1205, 0.2005))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_text_fits_80_columns_and_is_safe(first: str, second: str) -> None:
    a, b = builder.ALL[first](), builder.ALL[second]()
    for style in (TextStyle(), TextStyle(has_unicode=False)):
        text = diff_text(diff(a, b), a, b, style=style, next_command="flatout explain straggler")
        assert max(map(len, text.splitlines())) <= 80
        assert "\x1b" not in text
        assert style.has_unicode or text.isascii()
        assert text.endswith("next: flatout explain straggler\n")


def test_json_has_the_schema_and_the_record() -> None:
    result = diff(builder.straggler(), builder.healthy())
    found = json.loads(diff_json(result, ["flatout", "diff", "a.json", "b.json"]))
    assert list(found)[:4] == ["schema", "version", "tool_version", "command"]
    assert (found["schema"], found["version"]) == ("flatout/diff", 2)
    del found["schema"], found["version"], found["tool_version"], found["command"]
    assert found == json.loads(msgspec.json.encode(result))


def light(num_ranks: int, mean_step_s: float) -> Diagnosis:
    """Return the diagnosis of a recording without a trace."""
    diagnosis = builder.diagnosis_of([])
    job = msgspec.structs.replace(diagnosis.job, num_ranks=num_ranks, mean_step_s=mean_step_s, num_recorded_steps=50)
    return msgspec.structs.replace(diagnosis, job=job)


@pytest.mark.parametrize("other", [light(1, 0.3), builder.straggler()])
def test_recordings_without_a_trace_are_compared_by_their_steps_alone(other: Diagnosis) -> None:
    job = msgspec.structs.replace(other.job, mean_step_s=0.3, num_recorded_steps=50)
    result = diff(light(1, 0.2), msgspec.structs.replace(other, job=job))
    assert (result.basis, result.parts, result.findings) == ("recording", (), ())
    assert result.change_s == pytest.approx(0.1)
    text = diff_text(result, light(1, 0.2), other)
    assert "no trace, so it is unknown which part of a step changed" in " ".join(text.split())
    for word in ("traced step took", "The recording took", "Neither has", "including the warm-up", "has no steps"):
        assert word not in " ".join(text.split())


def test_versions_that_differ_are_listed() -> None:
    a, b = builder.healthy(), builder.healthy()
    result = diff(a, b, [EnvironmentDifference(name="torch", a="2.10.0", b="2.11.0")])
    assert "what else differs A B torch 2.10.0 2.11.0" in " ".join(diff_text(result, a, b).split())
    assert "what else differs" not in diff_text(diff(a, b), a, b)
