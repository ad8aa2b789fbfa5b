"""A script that only infers has no loss: its first outputs are held against those of the unchanged job."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.trial.training import changes
from tests.trial.training import trial as trained

from flatout.change.arguments import knob_changes, parse_knob
from flatout.inside.checks.model_outputs import MAX_CALLS, MAX_ENTRIES, ModelOutputRecorder
from flatout.inside.protocol import File
from flatout.records.change import ChangeSet, JobFacts, Safety
from flatout.records.trial import TrialResult
from flatout.trial.model_outputs import read_model_outputs
from flatout.trial.output_gate import check_model_outputs, output_note, reference_notes
from flatout.trial.output_samples import ROUNDED


def trial(tmp_path: Path, outputs: list[object]) -> TrialResult:
    """A trial whose model returned these, written and read as in a real one."""
    recorder = ModelOutputRecorder()
    for call, output in enumerate(outputs):
        recorder.take(call, output)
    recorder.write(tmp_path, 0)
    return msgspec.structs.replace(trained(()), model_outputs=read_model_outputs(tmp_path))


def logits(off: float = 0.0, seed: int = 0) -> list[object]:
    """Three calls with clear answers; each entry is off by this share of the entries' size."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(3, 8, 10))
    return [torch.tensor(each * (1 + off)) for each in values]


@pytest.mark.parametrize(
    ("safety", "off", "is_passed"),
    [
        ("exact", 0.0, True),
        ("exact", 0.9e-5, True),
        ("exact", 1.1e-5, False),
        ("rounding", 0.045, True),
        ("rounding", 0.055, False),
        ("semantic", 0.5, False),
        ("semantic", 0.04, True),
    ],
)
def test_outputs_may_differ_by_as_much_as_the_change_allows(
    tmp_path: Path, safety: Safety, off: float, is_passed: bool
) -> None:
    base = [trial(tmp_path, logits())] * 2
    assert check_model_outputs(trial(tmp_path, logits(off)), base, changes(safety)).is_passed is is_passed


@pytest.mark.parametrize(("off", "is_passed"), [(7e-4, True), (9e-4, False)])
def test_outputs_may_differ_by_four_times_what_those_of_the_unchanged_job_do(
    tmp_path: Path, off: float, is_passed: bool
) -> None:
    base = [trial(tmp_path, logits()), trial(tmp_path, logits(2e-4))]
    assert check_model_outputs(trial(tmp_path, logits(off)), base, changes("exact")).is_passed is is_passed


def test_of_an_exact_change_every_answer_must_be_that_of_the_job(tmp_path: Path) -> None:
    near = torch.tensor([[1.0, 1 - 4e-6]] * 64)
    one = near.clone()
    one[0] = near[0].flip(0)
    base = [trial(tmp_path, [near])] * 2
    assert not check_model_outputs(trial(tmp_path, [one]), base, changes("exact")).is_passed


def test_other_answers_are_refused_even_if_the_numbers_are_near(tmp_path: Path) -> None:
    near = torch.tensor([[1.0, 0.999]] * 64)
    base = [trial(tmp_path, [near])] * 2
    two, one = near.clone(), near.clone()
    two[:2, 1] = one[:1, 1] = 1.001
    passed = check_model_outputs(trial(tmp_path, [one]), base, changes("rounding"))
    refused = check_model_outputs(trial(tmp_path, [two]), base, changes("rounding"))
    assert passed.is_passed, "1 of 64 answers"
    assert not refused.is_passed
    assert "97 % of its answers are the job's, and 98 % must be" in refused.reason


def test_a_model_with_half_of_its_layers_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(4)]
    inputs = torch.randn(4, 16)
    with torch.no_grad():
        whole = [torch.nn.Sequential(*layers)(inputs)]
        half = [torch.nn.Sequential(*layers[:2])(inputs)]
    gate = check_model_outputs(trial(tmp_path, half), [trial(tmp_path, whole)], changes("exact"))
    assert not gate.is_passed
    assert "its outputs differ by" in gate.reason


def test_another_shape_another_number_and_nothing_at_all_are_refused(tmp_path: Path) -> None:
    base = [trial(tmp_path, [torch.ones(2, 3)])]
    for other in ([torch.ones(2, 4)], [torch.full((2, 3), math.nan)], [torch.full((2, 3), math.inf)]):
        assert not check_model_outputs(trial(tmp_path, other), base, changes("rounding")).is_passed
    assert not check_model_outputs(trained(()), base, changes("exact")).is_passed


@pytest.mark.parametrize(("off", "is_known"), [(0.9e-3, True), (1.1e-3, False)])
def test_of_a_job_that_does_not_repeat_itself_no_gain_is_claimed(tmp_path: Path, off: float, is_known: bool) -> None:
    base = [trial(tmp_path, logits()), trial(tmp_path, logits(off))]
    gate = check_model_outputs(trial(tmp_path, logits()), base, changes("exact"))
    assert gate.is_passed is is_known
    note = output_note(base)
    if not is_known:
        assert "cannot be judged" in gate.reason
        assert note is not None and "no gain can be claimed" in note
    else:
        assert note is None


def test_of_a_model_that_returns_text_no_gain_is_claimed(tmp_path: Path) -> None:
    base = [trial(tmp_path, ["a sentence"])]
    assert not check_model_outputs(trial(tmp_path, ["a sentence"]), base, changes("exact")).is_passed
    assert reference_notes(base) == ("the job's model returns no tensors of plain numbers, so no gain can be claimed",)


def test_a_job_that_trains_is_judged_by_its_losses_and_gradients() -> None:
    assert check_model_outputs(trained(()), [trained(())], changes("exact")).is_passed
    assert any("loss" in note for note in reference_notes([trained(())]))


@pytest.mark.parametrize(("sets_own_seed", "is_said"), [(False, True), (True, False), (None, False)])
def test_a_seed_that_only_the_trials_have_is_said(sets_own_seed: bool | None, is_said: bool) -> None:
    baseline = msgspec.structs.replace(trained((2.0, 1.0)), sets_own_seed=sets_own_seed)
    assert any("does not seed torch" in note for note in reference_notes([baseline])) is is_said


def test_outputs_in_dictionaries_and_tuples_are_found_in_a_fixed_order(tmp_path: Path) -> None:
    tensor, other = torch.arange(6.0).reshape(2, 3), torch.ones(1)
    first = trial(tmp_path, [{"logits": tensor, "cache": (other, [other])}])
    second = trial(tmp_path, [{"cache": (other, [other]), "logits": tensor}])
    assert first.model_outputs == second.model_outputs
    assert [digest.shape for digest in first.model_outputs] == [(1,), (1,), (2, 3)]
    assert first.model_outputs[2].answers == (2, 2)
    assert first.model_outputs[2].norm == pytest.approx(math.sqrt(55))


def test_only_the_first_calls_and_a_few_entries_are_kept(tmp_path: Path) -> None:
    digests = trial(tmp_path, [torch.arange(1000.0)] * (MAX_CALLS + 3)).model_outputs
    assert [digest.call for digest in digests] == list(range(MAX_CALLS))
    entries = digests[0].entries
    assert len(entries) == MAX_ENTRIES
    assert (entries[0], entries[-1]) == (0.0, 999.0)


@pytest.mark.parametrize("content", ["", "{", json.dumps({"rank": 0, "calls": {"x": 1}})])
def test_a_damaged_file_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / File.MODEL_OUTPUTS.of(0)).write_text(content)
    assert read_model_outputs(tmp_path) == ()


def of_batch(tmp_path: Path, samples: torch.Tensor, size: int) -> TrialResult:
    """A trial of a model that returns logits and one number for each sample, in batches of this size."""
    recorder = ModelOutputRecorder()
    for call, batch in enumerate(samples.split(size)):
        if call:
            recorder.take(call, (batch, batch.sum(1, keepdim=True)))
    recorder.write(tmp_path, 0)
    return msgspec.structs.replace(trained(()), model_outputs=read_model_outputs(tmp_path))


BATCH = ChangeSet(
    changes=knob_changes(parse_knob("batch/exact={8}:--batch {}"), ("python", "--batch", "16"), JobFacts())
)


@pytest.mark.parametrize(("size", "other", "shared"), [(16, 8, 248), (1, 64, 193), (64, 4, 196), (100, 7, 163)])
def test_another_batch_size_is_compared_sample_by_sample(tmp_path: Path, size: int, other: int, shared: int) -> None:
    """The first call of a run is not recorded: its samples are those of other calls in the other run."""
    samples = torch.randn(600, 10, generator=torch.Generator().manual_seed(0))
    base = [of_batch(tmp_path, samples, size)] * 2
    gate = check_model_outputs(of_batch(tmp_path, samples, other), base, BATCH)
    assert gate.is_passed
    assert gate.reason.startswith(f"the outputs of {shared} samples differ by 0.0e+00")
    last = samples.clone()
    last[max(size, other) + shared - 1] += 1e-2
    wrong = check_model_outputs(of_batch(tmp_path, last, other), base, BATCH)
    assert not wrong.is_passed
    assert "each batch size must read the same samples in the same order" in wrong.reason
    assert not check_model_outputs(of_batch(tmp_path, samples, other), base, changes("exact")).is_passed


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float32, "fp32"), (torch.float16, "fp16"), (torch.bfloat16, "bf16")]
)
@pytest.mark.parametrize(("share", "is_passed"), [(0.8, True), (1.2, False)])
def test_another_batch_size_may_round_otherwise(
    tmp_path: Path, dtype: torch.dtype, name: str, share: float, is_passed: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(600, 10, generator=generator)
    rounded = samples * (1 + share * ROUNDED[name] * torch.randn(600, 10, generator=generator))
    base = [of_batch(tmp_path, samples.to(dtype), 16)]
    assert check_model_outputs(of_batch(tmp_path, rounded.to(dtype), 64), base, BATCH).is_passed is is_passed


def test_whole_numbers_are_not_rounded(tmp_path: Path) -> None:
    classes = torch.randint(0, 1000, (600, 1), generator=torch.Generator().manual_seed(0)).float()
    other = classes.clone()
    other[100] += 1
    base = [of_batch(tmp_path, classes, 16)]
    assert check_model_outputs(of_batch(tmp_path, classes, 64), base, BATCH).is_passed
    assert not check_model_outputs(of_batch(tmp_path, other, 64), base, BATCH).is_passed


def test_too_few_samples_in_both_runs_judge_nothing(tmp_path: Path) -> None:
    samples = torch.randn(1200, 10, generator=torch.Generator().manual_seed(0))
    base = [of_batch(tmp_path, samples, 1)] * 2
    for other, is_passed in ((249, True), (250, False)):
        assert check_model_outputs(of_batch(tmp_path, samples, other), base, BATCH).is_passed is is_passed


def test_rows_that_are_no_samples_are_not_compared(tmp_path: Path) -> None:
    """The rows of another batch are longer, as in an output of length by batch, or the output is one mean."""
    for base, other in ((torch.ones(5, 8), torch.ones(5, 4)), ((torch.ones(8), torch.ones(())), (torch.ones(4), 1.0))):
        gate = check_model_outputs(trial(tmp_path, [other]), [trial(tmp_path, [base])], BATCH)
        assert not gate.is_passed
        assert "cannot be judged" in gate.reason


def test_one_number_for_each_sample_is_a_row(tmp_path: Path) -> None:
    scores = torch.arange(32.0)
    base = [trial(tmp_path, list(scores.split(8)))]
    assert check_model_outputs(trial(tmp_path, list(scores.split(16))), base, BATCH).is_passed
    assert not check_model_outputs(trial(tmp_path, list((scores + 1).split(16))), base, BATCH).is_passed
