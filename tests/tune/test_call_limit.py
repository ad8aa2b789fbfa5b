"""A batch size at a limit of latency: the throughput is compared, and a change over the limit is not used."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.change.jobs import diagnosis, facts
from tests.trial.training import trial
from tests.tune.simulated import STEP_S, SimulatedRunner, tuned

from flatout.change.arguments import knob_changes, parse_knob
from flatout.diagnosis_pipeline import Diagnosed
from flatout.errors import InputError, UsageError
from flatout.records.call_limit import CallLimit
from flatout.records.change import ChangeSet
from flatout.records.stop_rule import StopRule
from flatout.records.trial import OutputDigest, TrialResult
from flatout.records.tuning import TuneResult
from flatout.trial.latency_gate import call_percentile_s, check_latency
from flatout.tune.call_limit import parse_call_limit, with_latency
from flatout.tune.profiled import Profiled
from flatout.tune.result import is_better

# A call takes 0.2 s and 6.25 ms more for each sample: 0.25 s at batch 8.
CALLS_S = {8: 0.25, 16: 0.3, 32: 0.4, 64: 0.6, 128: 1.0}
KNOB = "batch={8,16,32,64}:--batch {}"


def batch_of(changes: ChangeSet) -> int:
    return int(changes.name.removeprefix("batch=")) if changes.changes else 8


def outputs(batch: int, samples: int = 8, off: float = 0.0) -> tuple[OutputDigest, ...]:
    rows = tuple((1.0 + number + off, 2.0) for number in range(samples))
    return (OutputDigest(call=0, shape=(batch, 2), norm=float(batch), entries=(1.0,), samples=rows),)


def of_inference(index: int, changes: ChangeSet) -> dict[str, object]:
    batch = batch_of(changes)
    return {
        "samples_per_step": float(batch),
        "model_outputs": outputs(batch),
        "losses": (),
        "gradients": (),
        "peak_memory_bytes": 1000 * batch,
    }


def searched(limit: str | None, ends: object = of_inference) -> TuneResult:
    runner = SimulatedRunner(
        {f"batch={batch}": STEP_S / call_s for batch, call_s in CALLS_S.items()},
        ends=ends,  # type: ignore[arg-type]
        job=facts(only_infers=True, wrapper=None),
        costs={},
        step_sd=0.01,
    )
    return tuned(runner, knobs=(KNOB,), latency=parse_call_limit(limit))


def test_the_largest_throughput_within_the_limit_is_adopted() -> None:
    result = searched("p99<500ms")
    assert is_better(result)
    assert result.tuning.changes.name == "batch=32"
    assert {one.name: one.outcome for one in result.tried}["batch=64"] == "over the limit"
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.interval is not None
    assert verdict.interval[0] <= (32 / 0.4) / (8 / 0.25) <= verdict.interval[1]
    note = next(note for note in result.notes if "the limit is p99<500ms" in note)
    assert note.startswith("p99 of the calls is 25") and "ms with the changes" in note


@pytest.mark.parametrize(
    ("limit", "expected"), [("p99<310ms", "batch=16"), (None, "batch=64"), ("p50 <= 1s", "batch=64")]
)
def test_another_limit_has_another_batch(limit: str | None, expected: str) -> None:
    assert searched(limit).tuning.changes.name == expected


def test_a_batch_that_changes_the_samples_outputs_is_unsafe() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        off = 0.1 if batch_of(changes) == 64 else 0.0
        return of_inference(index, changes) | {"model_outputs": outputs(batch_of(changes), off=off)}

    result = searched(None, ends)
    unsafe = next(one for one in result.tried if one.name == "batch=64")
    assert unsafe.outcome == "unsafe"
    assert "each batch size must read the same samples in the same order" in unsafe.reason
    assert result.tuning.changes.name == "batch=32"


def changed(**fields: object):  # type: ignore[no-untyped-def]
    return lambda index, changes: of_inference(index, changes) | fields


@pytest.mark.parametrize(
    ("limit", "fields", "message"),
    [
        ("p99<200ms", {}, "the unchanged job is over the limit of latency: p99 of "),
        ("p99<500ms", {"model_outputs": ()}, "`--latency` limits the calls of a script that only infers"),
        ("p99<500ms", {"has_overlapping_calls": True}, "several threads of the script call the model at once"),
    ],
)
def test_jobs_that_a_limit_does_not_fit_are_refused(limit: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        searched(limit, changed(**fields))


def timed(*step_s: float, index: int = 0) -> TrialResult:
    return msgspec.structs.replace(trial((), index=index), step_s=step_s)


def test_the_percentile_is_the_time_of_a_call() -> None:
    """Too few calls for the percentile give the longest one; all trials of a change count."""
    assert call_percentile_s([timed(0.1, 0.2, 0.3)], 50) == 0.2
    assert call_percentile_s([timed(*[0.1] * 9, 0.5)], 99) == 0.5
    assert call_percentile_s([timed(*[0.1] * 150), timed(*[0.1] * 49, 0.5, index=1)], 99) == 0.1
    limit = CallLimit(percentile=99.0, most_s=0.1, text="p99<100ms")
    assert check_latency([timed(*[0.1] * 4)], limit).is_passed
    gate = check_latency([timed(*[0.1] * 4, 0.1001)], limit)
    assert (gate.is_passed, gate.outcome) == (False, "over the limit")
    assert gate.reason == "p99 of 5 calls is 100 ms; the limit is 100 ms"
    assert not check_latency([], limit).is_passed


def test_limits_that_users_write() -> None:
    limit = parse_call_limit(" p99.9 <= 0.05s ")
    assert limit is not None
    assert (limit.percentile, limit.most_s, limit.text) == (99.9, 0.05, "p99.9 <= 0.05s")
    for text in ("50ms", "p99<0ms", "p100<1s", "p0<1s", "p99<50", "p99 ttft<50ms", "p99>50ms"):
        with pytest.raises(UsageError, match="`--latency` must limit a percentile"):
            parse_call_limit(text)


@pytest.mark.parametrize(("percentile", "least"), [(50.0, 20), (99.0, 100), (99.99, 1000)])
def test_a_trial_has_enough_calls_and_ends_early_where_their_mean_is_over_the_limit(
    percentile: float, least: int
) -> None:
    limit = CallLimit(percentile=percentile, most_s=0.1, text="")
    rule = StopRule(min_steps=20, max_steps=5000, abandon_step_s=0.07)
    assert with_latency(rule, limit, is_candidate=False).min_steps == least
    assert with_latency(rule, limit, is_candidate=False).abandon_step_s == 0.07
    assert with_latency(rule, limit, is_candidate=True).abandon_step_s == 0.07
    alone = msgspec.structs.replace(rule, abandon_step_s=None)
    assert with_latency(alone, limit, is_candidate=True).abandon_step_s == 0.1


def test_a_batch_is_exact_only_in_a_script_that_only_infers() -> None:
    command = ("python", "infer.py", "--batch", "8")
    found = knob_changes(parse_knob(KNOB), command, facts(only_infers=True))
    assert [change.knob.safety for change in found] == ["exact"] * 3
    for knob, job in ((KNOB, facts()), (KNOB.replace("batch=", "layers="), facts(only_infers=True))):
        with pytest.raises(UsageError, match="is semantic"):
            knob_changes(parse_knob(knob), command, job)


def test_without_an_own_knob_larger_batches_of_the_scripts_loader_are_tried() -> None:
    """The patch cuts the same samples into batches of 16, 32, 64 and 128; the trace shows compute."""

    class OfLoader(SimulatedRunner):
        def profile(self, changes: ChangeSet, **how: Any) -> Profiled:
            seen = diagnosis({}, step_s=STEP_S, parts={"compute": 0.2})
            done = Diagnosed(diagnosis=seen, job=None, sources={})  # type: ignore[arg-type]
            return msgspec.structs.replace(super().profile(changes, **how), done=done)

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        sizes = [int(change.value) for change in changes.changes if change.knob.name == "loader-batch"]
        return of_inference(index, ChangeSet()) | {"samples_per_step": float(sizes[0] if sizes else 8)}

    def result_with(limit: str | None, **more: object) -> TuneResult:
        runner = OfLoader(
            {f"loader-batch={batch}": STEP_S / call_s for batch, call_s in CALLS_S.items()},
            ends=ends,
            job=facts(only_infers=True, wrapper=None, loader_workers=0, device="cpu"),
            costs={},
            step_sd=0.01,
        )
        return tuned(runner, latency=parse_call_limit(limit), max_screened=10, **more)

    result = result_with("p99<500ms")
    outcomes = {one.name: one.outcome for one in result.tried}
    assert outcomes["loader-batch=64"] == outcomes["loader-batch=128"] == "over the limit"
    assert result.tuning.changes.name == "loader-batch=32"
    for without in (result_with(None), result_with("p99<500ms", knobs=(KNOB,))):
        assert not any(one.name.startswith("loader-batch") for one in without.tried)
