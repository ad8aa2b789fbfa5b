"""Which conditions a result meets, on both sides of each limit."""

from __future__ import annotations

import pytest
from tests.report import builder, tuning_builder

from flatout.conditions.met import met_by_ceilings, met_by_diagnosis, met_by_diff, met_by_ledger, met_by_tuning
from flatout.conditions.words import Condition
from flatout.records.ceilings import Ceilings, LoadedLink, Measurement, PeerDifference
from flatout.records.diagnosis import Diagnosis
from flatout.records.ledger import LedgerClass, LedgerReport
from flatout.report.diff import diff


def condition(word: str, share: float | None = None) -> Condition:
    return Condition(word=word, share=share)


def recorded(samples_per_s: float | None, num_ranks: int = 2, findings: tuple[str, ...] = ()) -> Diagnosis:
    ranks = [builder.rank_of(rank, [{"compute": 0.1}]) for rank in range(num_ranks)]
    found = [builder.finding(name, 0.02, 0.2) for name in findings]
    fields = {"mean_step_s": 0.1, "samples_per_s": samples_per_s, "num_recorded_steps": 100}
    return builder.diagnosis_of(ranks, findings=found, **fields)


@pytest.mark.parametrize(("share", "is_met"), [(0.2, True), (0.201, False)])
def test_a_finding_of_a_share_or_a_name(share: float, is_met: bool) -> None:
    diagnosis = recorded(100.0, findings=("straggler",))
    assert bool(met_by_diagnosis(diagnosis, [condition("finding", share)])) is is_met
    assert met_by_diagnosis(diagnosis, [condition("straggler")]) == ["straggler: 20 % of the step"]
    assert met_by_diagnosis(diagnosis, [condition("host-bound")]) == []


@pytest.mark.parametrize(("after", "is_met"), [(90.8, True), (91.0, False), (200.0, False)])
def test_slower_by_ten_percent(after: float, is_met: bool) -> None:
    """100 samples/s against 90.9 are 10 % more time."""
    result = diff(recorded(100.0), recorded(after))
    assert bool(met_by_diff(result, [condition("slower", 0.1)])) is is_met


def test_a_job_of_another_size_is_never_slower() -> None:
    result = diff(recorded(100.0), recorded(50.0, num_ranks=4))
    assert met_by_diff(result, [condition("slower", 0.1)]) == []


@pytest.mark.parametrize(("after", "share", "is_met"), [(160.0, 0.8, False), (159.0, 0.8, True), (None, 0.1, True)])
def test_the_scaling_efficiency_is_too_low_or_unknown(after: float | None, share: float, is_met: bool) -> None:
    result = diff(recorded(100.0), recorded(after, num_ranks=4))
    assert bool(met_by_diff(result, [condition("efficiency", share)])) is is_met
    assert met_by_diff(diff(recorded(100.0), recorded(50.0)), [condition("efficiency", 0.99)]) == []


def test_a_new_finding() -> None:
    before, after = recorded(100.0, findings=("straggler",)), recorded(100.0, findings=("straggler", "host-bound"))
    assert met_by_diff(diff(before, after), [condition("new-finding")]) == ["host-bound is new in B"]
    assert met_by_diff(diff(after, before), [condition("new-finding")]) == []


def test_a_tuning() -> None:
    better, nothing = tuning_builder.better(), tuning_builder.nothing()
    assert better.tuning.verdict is not None and better.tuning.verdict.speedup is not None
    gain = better.tuning.verdict.speedup - 1
    assert met_by_tuning(better, [condition("gain", gain - 0.001)])
    assert met_by_tuning(better, [condition("gain", gain + 0.001), condition("no-gain"), condition("undecided")]) == []
    assert met_by_tuning(nothing, [condition("no-gain")]) == ["no change is shown to be better"]
    assert met_by_tuning(nothing, [condition("gain", 0.0)]) == []
    assert met_by_tuning(tuning_builder.undecided(), [condition("undecided")])


def ceilings(**fields: object) -> Ceilings:
    values = {
        "host": "h",
        "taken_at": "",
        "took_s": 1.0,
        "device": "d",
        "num_devices": 2,
        "is_gpu": True,
        "backend": "nccl",
        "software": "",
        "measurements": (),
    }
    return Ceilings(**(values | fields))  # type: ignore[arg-type]


def copy(speed: float) -> Measurement:
    link = LoadedLink(speed_gt_per_s=speed, width=16, best_speed_gt_per_s=32.0, best_width=16, source="sysfs")
    return Measurement(
        name="copy_to_device",
        value=1.0,
        unit="B/s",
        spread=0.0,
        device="d",
        ranks=(0,),
        n=1,
        seconds=1.0,
        checked="",
        pcie=link,
    )


@pytest.mark.parametrize(("share", "is_met"), [(0.2, True), (0.21, False)])
def test_peers_that_differ_by_a_share(share: float, is_met: bool) -> None:
    peer = PeerDifference(name="matmul", peer="GPU 3", value=0.8, usual=1.0, by=-0.2, unit="FLOP/s")
    assert bool(met_by_ceilings(ceilings(peers=(peer,)), [condition("peer", share)])) is is_met


def test_a_slow_link_and_what_was_not_measured() -> None:
    assert met_by_ceilings(ceilings(measurements=(copy(16.0),)), [condition("slow-link")])
    assert met_by_ceilings(ceilings(measurements=(copy(32.0),)), [condition("slow-link")]) == []
    absent = ceilings(not_measured={"storage": "no --path"})
    assert met_by_ceilings(absent, [condition("not-measured")]) == ["storage was not measured: no --path"]
    assert met_by_ceilings(ceilings(), [condition("not-measured")]) == []


def ledger(goodput: float | None, **fields: object) -> LedgerReport:
    values = dict.fromkeys(LedgerReport.__struct_fields__, None) | {
        "failures": 0,
        "hangs": 0,
        "goodput": goodput,
        "classes": (
            LedgerClass(name="hang", device_s=2.0, share=0.02, cost=None, energy_kwh=None),
            LedgerClass(name="throttled", device_s=None, share=None, cost=None, energy_kwh=None),
        ),
    }
    return LedgerReport(**(values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("goodput", "is_met"), [(0.9, False), (0.899, True), (None, True)])
def test_goodput_below_a_share_or_unknown(goodput: float | None, is_met: bool) -> None:
    assert bool(met_by_ledger(ledger(goodput), [condition("goodput", 0.9)])) is is_met


def test_classes_failures_and_hangs_of_a_ledger() -> None:
    report = ledger(1.0)
    assert met_by_ledger(report, [condition("hang", 0.02)]) == ["hang: 2.0 % of the allocated time"]
    assert met_by_ledger(report, [condition("hang", 0.021), condition("throttled", 0.0)]) == []
    assert met_by_ledger(report, [condition("failures"), condition("hangs")]) == []
    assert len(met_by_ledger(ledger(1.0, failures=1, hangs=2), [condition("failures"), condition("hangs")])) == 2
